"""Slots of shared cards count as their part of a GPU in usage, and are compared with slots only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.executions import JobProgressed
from schemas.placements import Assignment, Desired, NodePlaced
from schemas.usage import JobUsage
from services.telemetry.core.holders import Holder
from services.telemetry.core.usage import GpuMoment, Usage
from tests.build import START_MS
from tests.unit.telemetry.telemetry_rig import Fed, gpu
from tests.unit.telemetry.test_usage_findings import named, tell
from tests.unit.telemetry.test_usage_windows import restarted, usage


def place_slots(fed: Fed, node: str, sequence: int, **jobs: list[int]) -> None:
    assignments = [Assignment(job_id=job, attempt=1, desired=Desired.RUN, gpus=slots) for job, slots in jobs.items()]
    placed = NodePlaced(
        node=node, cluster="c0", pool="p", sequence=sequence, epoch=1, time_ms=0, assignments=assignments
    )
    tell(fed, "placements", node, placed)


def feed(fed: Fed, samples: int, pct: float = 80.0) -> None:
    """Two cards of four slots each, as one node of slots."""
    for _ in range(samples):
        fed.wall_ms += 5000
        slots = [gpu(slot, utilization_pct=pct, uuid=f"GPU-{slot // 4}/{slot % 4}") for slot in range(8)]
        fed.sample("n00-quarter", *slots, machine="n00", slots_per_card=4)


def last_of(fed: Fed, job: str) -> JobUsage:
    return [one for one in usage(fed, JobUsage) if one.job_id == job][-1]


def test_all_slots_of_a_card_for_a_minute_are_a_gpu_minute_and_one_slot_is_a_quarter_of_it() -> None:
    fed = Fed()
    feed(fed, 1)
    place_slots(fed, "n00-quarter", 1, a=[0, 1, 2, 3], b=[4])
    feed(fed, 12, pct=80.0)
    feed(fed, 12, pct=1.0)
    again = restarted(fed)
    now_ms, again.wall_ms = again.wall_ms, START_MS
    place_slots(again, "n00-quarter", 1, a=[0, 1, 2, 3], b=[4])  # the topic is read again, with the record's old time
    again.wall_ms = now_ms
    place_slots(fed, "n00-quarter", 2)
    whole, quarter = last_of(fed, "a"), last_of(fed, "b")
    assert (whole.held_gpu_s, quarter.held_gpu_s) == (120.0, 30.0)
    assert (whole.idle_gpu_s, quarter.idle_gpu_s) == (60.0, 15.0)
    assert whole.busy_gpu_s == pytest.approx(60 * 0.8 + 60 * 0.01)
    assert whole.windows.minute_pct == quarter.windows.minute_pct
    feed(again, 12)
    place_slots(again, "n00-quarter", 2)
    assert last_of(again, "a").held_gpu_s == 180.0, "after a restart it goes on in the same unit"


@given(st.integers(1, 48), st.lists(st.tuples(st.integers(1, 20_000), st.floats(0, 100)), min_size=1, max_size=30))
def test_all_slots_of_a_card_add_up_to_the_card(per_card: int, readings: list[tuple[int, float]]) -> None:
    cards, slots = Usage(), Usage()
    slots.cut("n", per_card)
    wall_ms = 1_000_000
    for passed_ms, pct in readings:
        wall_ms += passed_ms
        for books, count in ((cards, 1), (slots, per_card)):
            moments = [GpuMoment(index, f"GPU-{index}", pct, None, None) for index in range(count)]
            books.take("n", "c0", wall_ms, 5.0, moments, dict.fromkeys(range(count), Holder("a", False, 1_000_000)))
    whole, parts = cards.jobs["a"], slots.jobs["a"]
    for name in ("held_us", "busy_us", "idle_us", "unseen_us"):
        assert abs(getattr(whole, name) - getattr(parts, name)) <= 2 * per_card * len(readings), "microseconds"


def test_a_job_on_slots_is_slow_beside_others_on_slots_not_beside_jobs_on_whole_cards() -> None:
    fed = Fed()
    fed.sample("n00", gpu(0), gpu(1))
    feed(fed, 1)
    place_slots(fed, "n00", 1, c=[0], d=[1])
    place_slots(fed, "n00-quarter", 1, a=[0], b=[4])
    for job in "abcd":
        named(fed, job, "llama-8b")
    for _ in range(4):
        for job, node, rate in (("c", "n00", 100.0), ("d", "n00", 104.0), ("a", "n00-quarter", 26.0)):
            said = JobProgressed(
                job_id=job, attempt=1, node=node, cluster="c0", time_ms=0, fraction=0.1, samples_per_s=rate
            )
            tell(fed, "executions", job, said)
    feed(fed, 2)
    fed.wall_ms += 5000
    fed.sample("n00", gpu(0), gpu(1))
    told = last_of(fed, "a")
    assert (told.gpus, told.slots_per_card, told.usual_samples_per_s) == (1, 4, 26.0)
    assert (last_of(fed, "c").slots_per_card, last_of(fed, "c").usual_samples_per_s) == (1, 100.0)
    assert not [found for line in fed.lines for found in line.findings if found.job_id == "a"]

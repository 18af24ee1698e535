"""Windows and job sums: right against a naive count, charged once, and the same after a restart as without one."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import decode
from schemas.records import Record
from schemas.usage import JobUsage, NodeUsage
from services.telemetry.core.windows import STEPS, UsageWindows
from tests.build import START_MS
from tests.unit.telemetry.telemetry_rig import Fed, gpu
from tests.unit.telemetry.test_usage_findings import place


@given(st.lists(st.tuples(st.integers(1, 4000), st.floats(0, 100)), min_size=1, max_size=60))
@settings(max_examples=150, deadline=None)
def test_the_means_are_those_of_all_steps_in_the_window(readings) -> None:
    windows, kept = UsageWindows(), deque()
    wall_ms = START_MS
    for passed_s, pct in readings:
        wall_ms += passed_s * 1000
        windows.add(wall_ms, 5000, round(50 * pct))
        kept.append((wall_ms, 5000, round(50 * pct)))
    again = UsageWindows()
    again.restore(windows.told(wall_ms))
    for name, (width_ms, steps) in STEPS.items():
        first = wall_ms // width_ms - steps + 1
        inside = [(seen, busy) for at, seen, busy in kept if at // width_ms >= first]
        wanted = round(min(100.0, 100.0 * sum(b for _, b in inside) / sum(s for s, _ in inside)), 2)
        assert windows.mean_pct(name, wall_ms) == wanted
        assert again.mean_pct(name, wall_ms) == wanted
    assert again.told(wall_ms) == windows.told(wall_ms)


def usage(fed: Fed, kind) -> list:
    events = [decode(each.headers, each.value).event for each in fed.out if each.topic == "usage" and each.value]
    return [event for event in events if isinstance(event, kind)]


def feed(fed: Fed, samples: int, pct: float | None = 80.0, **changed) -> None:
    for _ in range(samples):
        fed.wall_ms += 5000
        fed.sample("n00", gpu(0, utilization_pct=pct, **changed), gpu(1))


def restarted(before: Fed) -> Fed:
    fed = Fed()
    fed.wall_ms, fed.out, fed.offset = before.wall_ms, list(before.out), before.offset
    for offset, sent in enumerate(before.out):
        if sent.topic in fed.handler.rebuilt_from:
            fed.handler.recover(Record(sent.topic, 0, offset, sent.key, sent.value, sent.headers, fed.wall_ms))
    return fed


def test_a_job_is_charged_for_what_it_held_used_left_idle_and_what_nobody_saw() -> None:
    fed = Fed()
    feed(fed, 3)
    place(fed, 1, "a")
    feed(fed, 60, pct=80.0)
    feed(fed, 60, pct=1.0)
    feed(fed, 60, pct=4294967295.0)
    place(fed, 2)
    job = usage(fed, JobUsage)[-1]
    assert (job.job_id, job.held_gpu_s) == ("a", 900.0)
    assert job.busy_gpu_s == pytest.approx(300 * 0.8 + 300 * 0.01)
    assert (job.idle_gpu_s, job.unseen_gpu_s) == (300.0, 300.0)
    assert job.memory_mib_peak == 1024


def test_a_silent_agent_leaves_held_time_unseen_not_idle() -> None:
    fed = Fed()
    place(fed, 1, "a")
    feed(fed, 10)
    fed.wall_ms += 3_600_000
    feed(fed, 10)
    place(fed, 2)
    job = usage(fed, JobUsage)[-1]
    assert job.held_gpu_s == 50 + 3600 + 50
    assert job.unseen_gpu_s == 3600 + 5 - 15
    assert job.idle_gpu_s == 0


def test_energy_counts_increases_only() -> None:
    fed = Fed()
    place(fed, 1, "a")
    for energy_j in (1000.0, 2000.0, 4_294_967_295.0, 3000.0, 4000.0, 10.0, 510.0):
        feed(fed, 1, energy_j=energy_j)
    feed(fed, 1)
    assert usage(fed, JobUsage)[-1].energy_j == 1000.0 + 1000.0 + 500.0


def test_an_ended_jobs_last_record_says_so_and_is_removed_a_day_later() -> None:
    fed = Fed()
    place(fed, 1, "a")
    feed(fed, 10)
    place(fed, 2)
    assert usage(fed, JobUsage)[-1].ended_ms is not None
    feed(fed, 3)
    fed.wall_ms += 86_400_000
    fed.out.extend(fed.handler.tick(fed.now))
    gone = [each for each in fed.out if each.topic == "usage" and each.value is None]
    assert [(each.key, each.partition) for each in gone] == [(b"job/a", 0)]


def test_after_a_restart_windows_and_sums_go_on_as_if_nothing_had_happened() -> None:
    plain, broken = Fed(), Fed()
    for fed in (plain, broken):
        place(fed, 1, "a")
        feed(fed, 101, pct=70.0)
    assert broken.wall_ms == usage(broken, NodeUsage)[-1].wall_ms
    broken = restarted(broken)
    place_again(broken)
    for fed in (plain, broken):
        feed(fed, 100, pct=30.0)
    assert usage(broken, NodeUsage)[-1] == usage(plain, NodeUsage)[-1]
    assert usage(broken, JobUsage)[-1] == usage(plain, JobUsage)[-1]


def place_again(fed: Fed) -> None:
    """The compacted placements topic is read again, with the record's old time."""
    now_ms, fed.wall_ms = fed.wall_ms, START_MS
    place(fed, 1, "a")
    fed.wall_ms = now_ms


def test_samples_that_come_again_after_a_restart_are_not_charged_again() -> None:
    fed = Fed()
    place(fed, 1, "a")
    feed(fed, 21)
    last = usage(fed, JobUsage)[-1]
    fed = restarted(fed)
    place_again(fed)
    fed.wall_ms -= 30_000
    feed(fed, 6)
    feed(fed, 2)
    place(fed, 2)
    assert usage(fed, JobUsage)[-1].held_gpu_s == last.held_gpu_s + 10
    assert fed.handler.rejected == {"time_backwards": 5, "repeated": 1}

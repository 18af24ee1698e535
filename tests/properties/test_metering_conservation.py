"""Metering is exact: what is reported adds up to what executors recorded, in any order, with any duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.base import Event
from schemas.demand import DemandObserved
from schemas.executions import JobCheckpointed, JobStarted, StopCause
from services.console.metering.account import Window, rows_of
from services.console.metering.ledger import Hold, Ledger
from services.console.metering.report import GPU_HOUR_MS, By, report_of
from tests import build

T0 = build.START_MS
UNTIL = T0 + 10_000


SLOTS = {"n1": 2, "n2": 3, "n3": 7}
"""Nodes whose GPUs are slots of shared cards, so many per card."""


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Event], int | Fraction]:
    """(events, GPU-milliseconds that executors recorded until UNTIL): every attempt starts once and ends at most once."""
    events: list[Event] = [replace(build.node(name, gpus=14), slots_per_card=count) for name, count in SLOTS.items()]
    recorded: int | Fraction = 0
    for number in range(draw(st.integers(1, 5))):
        name, share = f"j{number}", Fraction(1, SLOTS.get(f"n{number}", 1))
        events.append(build.accepted(name, 1, team=f"team{number % 2}"))
        at_ms = T0 + draw(st.integers(0, 3000))
        attempts = draw(st.integers(1, 3))
        for attempt in range(1, attempts + 1):
            gpus = draw(st.integers(1, 4))
            end_ms = at_ms + draw(st.integers(0, 3000))
            events.append(
                JobStarted(
                    job_id=name, attempt=attempt, node=f"n{number}", cluster="c0", time_ms=at_ms, wall_ms=at_ms,
                    gpus=list(range(gpus)), sequence=1,
                )
            )  # fmt: skip
            for _ in range(draw(st.integers(0, 2))):
                save_ms = draw(st.integers(at_ms, end_ms))
                events.append(
                    JobCheckpointed(
                        job_id=name, attempt=attempt, node=f"n{number}", cluster="c0", time_ms=save_ms, fraction=0.5
                    )
                )
            last = attempt == attempts
            if last and draw(st.booleans()):
                recorded += gpus * share * max(0, UNTIL - at_ms)
                break
            if last:
                events.append(build.completed(name, f"n{number}", end_ms, attempt=attempt))
            else:
                cause = draw(st.sampled_from([StopCause.DRAIN, StopCause.GANG_BROKEN]))
                events.append(
                    build.stopped(name, f"n{number}", end_ms, cause, attempt=attempt, checkpointed=draw(st.booleans()))
                )
            recorded += gpus * share * max(0, min(end_ms, UNTIL) - min(at_ms, UNTIL))
            at_ms = end_ms + draw(st.integers(0, 1000))
    return events, recorded


def rows(events: Sequence[Event], window: Window):
    ledger = Ledger()
    for event in events:
        ledger.fold(event)
    return rows_of(ledger, window)


@settings(max_examples=150, deadline=None)
@given(histories())
def test_the_sum_of_all_rows_is_what_executors_recorded(history: tuple[list[Event], int | Fraction]):
    events, recorded = history
    found = rows(events, Window(T0, UNTIL))
    assert sum(row.held_gpu_ms for row in found) == recorded
    assert all(row.effective_gpu_ms >= 0 and row.idle_gpu_ms >= 0 and row.lost_gpu_ms >= 0 for row in found)
    assert all(row.held_gpu_ms == row.effective_gpu_ms + row.idle_gpu_ms + row.lost_gpu_ms for row in found)


@settings(max_examples=150, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_any_order_and_any_duplicates_give_the_same_rows(history, random):
    events, _ = history
    mixed = [*events, *random.choices(events, k=len(events))]
    random.shuffle(mixed)
    assert rows(mixed, Window(T0, UNTIL)) == rows(events, Window(T0, UNTIL))


@settings(max_examples=80, deadline=None)
@given(histories(), st.integers(T0, UNTIL))
def test_two_windows_side_by_side_hold_what_one_over_both_holds(history, cut_ms: int):
    events, recorded = history
    held = [
        sum(row.held_gpu_ms for row in rows(events, window)) for window in (Window(T0, cut_ms), Window(cut_ms, UNTIL))
    ]
    assert sum(held) == recorded


@settings(max_examples=80, deadline=None)
@given(histories(), st.sampled_from(list(By)))
def test_however_it_is_grouped_the_groups_add_up_to_the_total(history, by: By):
    events, recorded = history
    window = Window(T0, UNTIL)
    report = report_of(rows(events, window), by, window)
    for part in (
        "held_h",
        "slot_hours",
        "effective_h",
        "idle_h",
        "lost_h",
        "jobs",
        "completed",
        "interruptions",
        "resumptions",
    ):
        total = getattr(report.total, part)
        assert abs(sum(getattr(group, part) for group in report.groups) - total) < 1e-9
    assert abs(report.total.held_h - recorded / GPU_HOUR_MS) < 1e-9


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(sorted(SLOTS)), st.integers(0, 3000), st.integers(0, 12_000), st.randoms(use_true_random=False))
def test_all_slots_of_a_card_together_are_the_card(node: str, from_ms: int, run_ms: int, random):
    """One job per slot of a card, beside a whole card held as long."""
    events: list[Event] = [replace(build.node(node, gpus=SLOTS[node]), slots_per_card=SLOTS[node])]
    held = [("whole", "n0", 0), *((f"part{slot}", node, slot) for slot in range(SLOTS[node]))]
    for name, where, gpu in held:
        at_ms = T0 + from_ms
        start = JobStarted(
            job_id=name, attempt=1, node=where, cluster="c0", time_ms=at_ms, wall_ms=at_ms, gpus=[gpu], sequence=1
        )
        events += [build.accepted(name, 1), start, build.completed(name, where, at_ms + run_ms)]
    random.shuffle(events)
    found = {row.name: row for row in rows(events, Window(T0, UNTIL))}
    parts = [row for name, row in found.items() if name != "whole"]
    assert sum(row.held_gpu_ms for row in parts) == found["whole"].held_gpu_ms
    assert sum(row.slot_ms for row in parts) == SLOTS[node] * found["whole"].held_gpu_ms


@st.composite
def demands(draw: st.DrawFn) -> list[DemandObserved]:
    """Windows of up to three applications; each tells what it likes."""
    whole = st.none() | st.integers(0, 10_000)
    seconds = st.none() | st.floats(0, 100)
    return [
        DemandObserved(
            app_id=f"app{draw(st.integers(0, 2))}",
            cluster="c0",
            time_ms=T0 + draw(st.integers(0, 12)) * 1000,
            window_s=draw(st.sampled_from([0.1, 1.0, 5.0])),
            load=draw(st.floats(0, 1e6)),
            per_gpu=10.0,
            unit=draw(st.sampled_from(["requests/s", "tokens/s", "images/s"])),
            requests=draw(whole),
            requests_failed=draw(whole),
            tokens=draw(whole),
            latency_p50_s=draw(seconds),
            latency_p99_s=draw(seconds),
        )
        for _ in range(draw(st.integers(0, 25)))
    ]


def served(events: Sequence[Event], shuffled=None):
    ledger = Ledger()
    for name in ("app0", "app1", "app2"):
        ledger.fold(build.application(name))
        ledger.holds[name] = [Hold(T0, (("n00", 0),))]
    for event in events:
        ledger.fold(event)
    window = Window(T0, UNTIL)
    found = rows_of(ledger, window)
    if shuffled is not None:
        shuffled.shuffle(found)
    return report_of(found, By.TEAM, window)


@settings(max_examples=150, deadline=None)
@given(demands(), st.randoms(use_true_random=False))
def test_what_was_served_is_the_same_in_any_order_of_events_and_rows(events, random):
    mixed = [*events, *events]
    random.shuffle(mixed)
    assert served(mixed, random) == served(events)


@settings(max_examples=150, deadline=None)
@given(demands())
def test_figures_of_serving_stay_within_what_was_told(events):
    total = served(events).total
    assert total.requests_ok is None or 0.0 <= total.requests_ok <= 1.0
    for found, told in (
        (total.latency_p50_s, [one.latency_p50_s for one in events]),
        (total.latency_p99_s, [one.latency_p99_s for one in events]),
    ):
        assert found is None or found in told

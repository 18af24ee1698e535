"""The ledger: parts and ends from executions, ends nobody reported, applications' holds, owners."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from msgspec.structs import replace

from schemas.executions import HeldGpus, JobCheckpointed, JobStarted, NodeReported, StopCause
from schemas.nodes import Finding, FindingCode
from schemas.status import JobState, JobStatusChanged
from schemas.usage import JobUsage
from services.console.metering.account import Window, rows_of
from services.console.metering.attempts import attempts_of
from services.console.metering.ledger import End, Hold, Ledger
from services.console.metering.report import GPU_HOUR_MS, By, report_of
from services.console.metering.report_output import report_html, report_table
from tests import build

T0 = build.START_MS
HOUR = 3_600_000
LATE = T0 + 100 * HOUR


def started(job_id: str, at_ms: int, gpus: int = 2, node: str = "n00", attempt: int = 1) -> JobStarted:
    return JobStarted(
        job_id=job_id,
        attempt=attempt,
        node=node,
        cluster="c0",
        time_ms=at_ms,
        wall_ms=at_ms,
        gpus=list(range(gpus)),
        sequence=1,
    )


def saved(job_id: str, at_ms: int, attempt: int = 1) -> JobCheckpointed:
    return JobCheckpointed(job_id=job_id, attempt=attempt, node="n00", cluster="c0", time_ms=at_ms, fraction=0.5)


def reported(at_ms: int, *running: str, node: str = "n00") -> NodeReported:
    held = [HeldGpus(job_id=name, attempt=1, gpus=[0]) for name in running]
    return build.reported(node, at_ms, applied=1, running=held)


def ledger_of(*events) -> Ledger:
    ledger = Ledger()
    for event in events:
        ledger.fold(event)
    return ledger


def row(ledger: Ledger, name: str, since_ms: int = T0 - HOUR, until_ms: int = LATE):
    return {one.name: one for one in rows_of(ledger, Window(since_ms, until_ms))}[name]


def test_the_end_is_the_completions_own_time_however_late_it_arrives():
    ledger = ledger_of(build.completed("a", "n00", T0 + HOUR), build.accepted("a", 2), started("a", T0))
    assert row(ledger, "a").held_gpu_ms == 2 * HOUR
    assert row(ledger, "a").state == "completed"


def test_a_running_job_counts_until_now_and_provisionally_as_effective():
    one = row(ledger_of(build.accepted("a", 2), started("a", T0)), "a", until_ms=T0 + HOUR)
    assert (one.held_gpu_ms, one.effective_gpu_ms, one.state) == (2 * HOUR, 2 * HOUR, "running")


def test_slots_of_shared_cards_count_as_their_parts_of_a_card_and_are_shown_beside_it():
    halves, node = "n00+h100-half", replace(build.node("n00+h100-half", gpus=16, machine="n00"), slots_per_card=2)
    ledger = ledger_of(
        node,
        build.accepted("a", 2),
        build.accepted("w", 2),
        started("a", T0, 2, halves),
        started("w", T0, 2),
        build.stopped("a", halves, T0 + 2 * HOUR, StopCause.DRAIN),
        build.completed("w", "n00", T0 + HOUR),
    )
    half, whole = row(ledger, "a"), row(ledger, "w")
    assert (half.held_gpu_ms, half.lost_gpu_ms, half.slot_ms) == (2 * HOUR, 2 * HOUR, 4 * HOUR)
    assert (whole.held_gpu_ms, whole.slot_ms) == (2 * HOUR, 0)
    window = Window(T0, LATE)
    shared, plain = (report_of(rows, By.JOB, window) for rows in (rows_of(ledger, window), [whole]))
    assert (shared.total.held_h, shared.total.slot_hours) == (4.0, 4.0)
    assert "SLOT-H" in [column.header for column in report_table(shared).columns]
    assert "slot hours" in report_html(shared, LATE)
    assert "SLOT-H" not in [column.header for column in report_table(plain).columns]
    assert "slot" not in report_html(plain, LATE)


def test_an_application_on_a_third_of_a_card_holds_exactly_a_third():
    ledger = ledger_of(build.application("app"), replace(build.node("n00+third", gpus=3), slots_per_card=3))
    ledger.holds["app"] = [Hold(T0, (("n00+third", 0),)), Hold(T0 + 1000, ())]
    assert row(ledger, "app").held_gpu_ms == Fraction(1000, 3)


def test_what_ran_after_the_last_checkpoint_of_a_failed_attempt_is_lost():
    ledger = ledger_of(
        build.accepted("a", 2),
        started("a", T0),
        saved("a", T0 + HOUR),
        build.stopped("a", "n00", T0 + 3 * HOUR, StopCause.DRAIN),
        started("a", T0 + 4 * HOUR, attempt=2),
        build.completed("a", "n00", T0 + 5 * HOUR, attempt=2),
    )
    one = row(ledger, "a")
    assert (one.held_gpu_ms, one.lost_gpu_ms, one.effective_gpu_ms) == (8 * HOUR, 4 * HOUR, 4 * HOUR)
    assert (one.interruptions, one.resumptions, one.attempts) == (1, 1, 2)


def test_a_checkpoint_answered_at_the_stop_saves_all_of_it():
    ledger = ledger_of(
        build.accepted("a", 2),
        started("a", T0),
        build.stopped("a", "n00", T0 + HOUR, StopCause.DRAIN, checkpointed=True),
        started("a", T0 + 2 * HOUR, attempt=2),
    )
    assert row(ledger, "a").lost_gpu_ms == 0


def test_a_part_that_vanished_ends_with_the_first_report_of_its_node_without_it():
    ledger = ledger_of(build.accepted("a", 2), started("a", T0), reported(T0 + HOUR, "a"), reported(T0 + 2 * HOUR))
    (attempt,) = attempts_of(ledger, "a", LATE)
    assert (attempt.end, attempt.end_ms) == (End.VANISHED, T0 + 2 * HOUR)
    assert row(ledger, "a").interruptions == 1


def test_a_part_that_vanished_ends_with_the_next_attempt_where_its_node_says_nothing():
    ledger = ledger_of(build.accepted("a", 2), started("a", T0), started("a", T0 + HOUR, node="n01", attempt=2))
    first, second = attempts_of(ledger, "a", LATE)
    assert (first.end, first.end_ms, second.end) == (End.VANISHED, T0 + HOUR, None)


def test_a_report_that_comes_later_replaces_what_was_concluded():
    events = [build.accepted("a", 2), started("a", T0), reported(T0 + 2 * HOUR)]
    assert row(ledger_of(*events), "a").held_gpu_ms == 4 * HOUR
    assert row(ledger_of(*events, build.completed("a", "n00", T0 + HOUR)), "a").held_gpu_ms == 2 * HOUR


def test_a_gang_is_complete_only_when_all_its_parts_are():
    ledger = ledger_of(
        build.accepted("a", 16),
        started("a", T0, 8),
        started("a", T0, 8, node="n01"),
        build.completed("a", "n00", T0 + HOUR),
    )
    assert row(ledger, "a", until_ms=T0 + 2 * HOUR).state == "running"
    ledger.fold(build.completed("a", "n01", T0 + HOUR))
    assert row(ledger, "a").held_gpu_ms == 16 * HOUR


def test_only_the_windows_part_counts():
    ledger = ledger_of(build.accepted("a", 2), started("a", T0), build.completed("a", "n00", T0 + 4 * HOUR))
    assert row(ledger, "a", T0 + HOUR, T0 + 2 * HOUR).held_gpu_ms == 2 * HOUR
    assert [one.name for one in rows_of(ledger, Window(T0 + 5 * HOUR, LATE))] == []


def test_idle_is_from_a_finding_to_the_nodes_next_state():
    idle = Finding(code=FindingCode.IDLE_HELD, gpu=0, job_id="a")
    ledger = ledger_of(build.accepted("a", 2), started("a", T0), build.completed("a", "n00", T0 + 4 * HOUR))
    for at_ms, findings in ((T0 + HOUR, [idle]), (T0 + 2 * HOUR, [])):
        state = build.node("n00", findings=findings)
        ledger.fold(
            type(state)(**{name: getattr(state, name) for name in state.__struct_fields__} | {"time_ms": at_ms})
        )
    one = row(ledger, "a")
    assert (one.idle_gpu_ms, one.effective_gpu_ms) == (HOUR, 7 * HOUR)


def test_telemetrys_own_share_of_idle_time_comes_before_findings():
    usage = JobUsage(job_id="a", cluster="c0", wall_ms=1, held_gpu_s=100.0, idle_gpu_s=25.0)
    ledger = ledger_of(build.accepted("a", 2), started("a", T0), build.completed("a", "n00", T0 + HOUR), usage)
    assert row(ledger, "a").idle_gpu_ms == HOUR // 2


def test_a_spawn_that_failed_held_nothing():
    ledger = ledger_of(build.accepted("a", 2), build.failed("a", "n00", T0 + HOUR))
    assert row(ledger, "a").held_gpu_ms == 0


def test_states_that_say_the_same_again_are_not_kept():
    ledger = ledger_of(*[msgspec.structs.replace(build.node("n00"), time_ms=T0 + n) for n in range(50)])
    assert ledger.idle == {"n00": {}}


def test_what_was_over_long_ago_is_forgotten_and_nothing_else():
    ledger = ledger_of(
        build.accepted("old", 2),
        started("old", T0),
        build.completed("old", "n00", T0 + HOUR),
        JobStatusChanged(job_id="old", state=JobState.COMPLETED, time_ms=T0 + HOUR, sequence=2),
        build.accepted("running", 2),
        started("running", T0),
    )
    before = row(ledger, "running")
    ledger.forget(T0 + 2 * HOUR)
    assert set(ledger.parts) == {("running", 1, "n00")}
    assert set(ledger.owners) == {"running"}
    assert row(ledger, "running") == before


@pytest.mark.parametrize(("waited_h", "starved"), [(5, 0), (7, 1)])
def test_a_job_is_starved_by_its_wait_even_if_it_never_started(waited_h: int, starved: int):
    window = Window(T0 - HOUR, T0 + waited_h * HOUR)
    rows = rows_of(ledger_of(build.accepted("a", 2)), window)
    assert report_of(rows, By.TEAM, window).total.starved == starved


def test_gpu_hours_per_output_and_success_of_a_group():
    ledger = ledger_of(
        build.accepted("a", 2),
        build.accepted("b", 2),
        started("a", T0),
        started("b", T0),
        build.completed("a", "n00", T0 + HOUR),
        build.failed("b", "n00", T0 + HOUR),
    )
    ledger.final["b"] = (1, JobState.FAILED)
    window = Window(T0 - HOUR, LATE)
    total = report_of(rows_of(ledger, window), By.USER, window).total
    assert (total.completed, total.failed, total.success) == (1, 1, 0.5)
    assert total.hours_per_completed == pytest.approx(4 * HOUR / GPU_HOUR_MS)

"""A job's trace on its node: placement applied, started, saved and ended, each where it happens and for as long as it takes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from schemas.executions import StopCause
from schemas.placements import Assignment, Desired
from services.executor.core.reconcile import Start
from services.executor.shell.drivers.simulated import SimulatedDriver
from services.executor.shell.run_spans import RunSpans
from services.runtime.span_spool import SpanLine, read_spans
from services.runtime.tracing import Tracing
from tests.unit.executor.executor_rig import SAVES, Rig, assignment, placed, virtually

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def traced(job_id: str, *gpus: int, **changed) -> Assignment:
    return assignment(job_id, *gpus, traceparent=f"00-{TRACE}-{PARENT}-01", **changed)


@pytest.fixture
def told(tmp_path: Path):
    """Run a scenario on a traced executor; the spans of the trace, in the order they ended."""

    def run(scenario) -> list[SpanLine]:
        tracing = Tracing("executor", "executor", run_dir=tmp_path, environ={})

        async def wired(rig: Rig) -> None:
            rig.spans = tracing
            rig.driver = SimulatedDriver(rig.clock, checkpoint_s=1.0)
            await rig.start()
            await scenario(rig)

        virtually(wired)
        tracing.stop()
        found = sorted(read_spans(tmp_path, TRACE), key=lambda span: (span.end_ns, span.start_ns))
        assert {(span.service, span.parent_id) for span in found} == {("executor", PARENT)}
        return found

    return run


def names(found: list[SpanLine]) -> list[str]:
    return [f"{span.name} {span.attributes.get('gpugrid.action', '')}".strip() for span in found]


def test_from_the_placement_to_the_end_of_a_job_that_succeeds(told) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.place(placed(1, traced("a", 0, run_s=5.0)))
        await rig.wait_s(10.0)

    found = told(scenario)
    assert names(found) == ["apply start", "start", "end"]
    apply, start, end = found
    assert apply.start_ns <= start.start_ns <= start.end_ns <= end.start_ns
    assert all(span.attributes["gpugrid.job.id"] == "a" for span in found)
    assert all(span.attributes["gpugrid.node"] == "n00" for span in found)
    assert end.attributes["gpugrid.outcome"] == "completed"
    assert end.attributes["gpugrid.run_s"] == 5.0
    assert end.error == ""


def test_a_failure_is_an_error_and_a_stop_is_not(told) -> None:
    async def fails(rig: Rig) -> None:
        await rig.place(placed(1, traced("a", 0, run_s=5.0, labels={"simulated/fails_at": "0.5"})))
        await rig.wait_s(10.0)

    end = told(fails)[-1]
    assert end.name == "end"
    assert end.attributes["gpugrid.outcome"].startswith("failed: ")
    assert end.error

    async def stops(rig: Rig) -> None:
        await rig.place(placed(2, traced("b", 0, checkpoint=SAVES)))
        await rig.wait_s(3.0)
        wish = {"desired": Desired.STOP, "stop_cause": StopCause.PREEMPTED}
        await rig.place(placed(3, traced("b", 0, checkpoint=SAVES, **wish)))
        await rig.wait_s(10.0)

    mine = [span for span in told(stops) if span.attributes["gpugrid.job.id"] == "b"]
    assert names(mine) == ["apply start", "start", "apply stop", "checkpoint", "end"]
    checkpoint, end = mine[-2:]
    assert checkpoint.attributes["gpugrid.checkpoint.asked_for"] == "stop"
    assert end.start_ns <= checkpoint.start_ns <= checkpoint.end_ns <= end.end_ns, "ending includes saving"
    assert end.attributes["gpugrid.outcome"] == "stopped: preempted"
    assert end.error == ""


def test_a_checkpoint_that_was_asked_for_lasts_until_its_answer(told) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.place(placed(1, traced("a", 0, checkpoint=SAVES)))
        await rig.wait_s(3.0)
        await rig.place(placed(2, traced("a", 0, checkpoint=SAVES, checkpoint_request=1)))
        await rig.wait_s(5.0)

    found = told(scenario)
    assert names(found) == ["apply start", "start", "apply checkpoint", "checkpoint"]
    assert found[-1].attributes["gpugrid.checkpoint.fraction"] > 0
    assert found[-1].error == ""


def test_a_start_that_waits_for_its_gpus_counts_from_the_placement_that_asked_first(told) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.place(placed(1, assignment("first", 0, run_s=20.0)))
        await rig.wait_s(1.0)
        for sequence in (2, 3):
            await rig.place(placed(sequence, assignment("first", 0, run_s=20.0), traced("second", 0, run_s=5.0)))
            await rig.wait_s(5.0)
        marks.append(time.time_ns())
        await rig.wait_s(60.0)

    marks: list[int] = []
    apply = told(scenario)[0]
    assert names([apply]) == ["apply start"]
    assert apply.start_ns < marks[0] < apply.end_ns


def test_an_application_that_comes_back_was_not_asked_for_again(tmp_path: Path) -> None:
    tracing = Tracing("executor", "executor", run_dir=tmp_path, environ={})
    spans = RunSpans("n00", tracing)
    serving = traced("chat", 0, application=True)
    spans.received(placed(1, serving))
    spans.apply(Start(serving), None).end()
    ended_ns = time.time_ns()
    spans.received(placed(2, serving))
    spans.apply(Start(serving), None).end()
    tracing.stop()
    first, again = sorted(read_spans(tmp_path, TRACE), key=lambda span: span.start_ns)
    assert first.end_ns <= ended_ns < again.start_ns


def test_no_answer_is_an_error_unless_the_run_is_gone(tmp_path: Path) -> None:
    tracing = Tracing("executor", "executor", run_dir=tmp_path, environ={})
    spans = RunSpans("n00", tracing)
    for ended in (False, True):
        span = tracing.begin("checkpoint", f"00-{TRACE}-{PARENT}-01", {})
        spans.answered(span, None, ended=ended, wait_s=30.0)
    tracing.stop()
    assert sorted(span.error for span in read_spans(tmp_path, TRACE)) == ["", "no answer within 30 s"]

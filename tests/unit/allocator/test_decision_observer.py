"""What a decision leaves for people: a trace with queue wait and decision, and the documented metrics."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace as changed

from schemas.executions import JobCompleted
from schemas.messages import message
from schemas.records import Message, Now, Record
from services.allocator.core.fragmentation import gap_share
from services.allocator.core.heuristic import plan_fast
from services.allocator.core.pose import pose
from services.allocator.shell.intake_batch import Batch
from services.allocator.shell.observe import DecisionObserver
from services.runtime.metrics import Metrics
from services.runtime.span_spool import SpanLine, read_spans
from services.runtime.tracing import Tracing
from tests import build, shared_cards
from tests.allocator_driver import POLICY, Driver

DAYS_MS = 3 * 86_400_000


class Watched:
    """A driver whose decisions are observed as the loop does it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = Driver()
        self.metrics = Metrics("allocator", "allocator-0")
        self.observe = DecisionObserver(Tracing("allocator", "a", run_dir=folder, environ={}), self.metrics)

    def give(self, *events) -> None:
        self.driver.give(*events)
        owner = SimpleNamespace(state=self.driver.state, policy=POLICY, decide_s=0.004)
        inputs = self.driver.decided.record.inputs
        records = [Record(one.topic, 0, one.offset, b"big", bytes(one.payload), headers(one), 0) for one in inputs]
        self.observe(owner, self.driver.decided, Batch(inputs=inputs, records=records), 0.005)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    """Two nodes, and a job that is too big for them."""
    watched = Watched(tmp_path)
    huge = (build.accepted("huge", 32), build.forecast("huge", {32: 600.0}))
    watched.give(build.node("n00", order=0), build.node("n01", order=1), *huge)
    return watched


def report(watched: Watched, kind: str, sent: Message) -> None:
    record = Record("executions", 0, 0, sent.key, sent.value, sent.headers, time.time_ns() // 1_000_000)
    watched.observe._reported(watched.driver.state, SimpleNamespace(type=kind), record)


def headers(item) -> tuple[tuple[str, bytes], ...]:
    return (("traceparent", item.traceparent.encode()),)


def spans(watched: Watched, job_id: str) -> dict[str, SpanLine]:
    trace = watched.driver.job(job_id).traceparent[3:35]
    return {line.name: line for line in read_spans(watched.folder, trace) if line.trace_id == trace}


def test_a_wait_of_days_is_a_number_and_a_link_not_an_open_span(watched: Watched) -> None:
    watched.give(build.accepted("big", 8), build.forecast("big", {8: 600.0}))
    job = watched.driver.job("big")
    job.submitted_ms -= DAYS_MS
    job.queued_ms = 0
    watched.observe._queue_wait(job, watched.driver.decided.record, job.traceparent, time.time_ns())
    line = [one for one in read_spans(watched.folder, job.traceparent[3:35]) if one.name == "queue wait"][-1]
    assert line.attributes["gpugrid.queue.wait_s"] >= DAYS_MS / 1000
    assert (line.end_ns - line.start_ns) < 1e9
    assert line.links == (job.traceparent[3:35],)


def test_a_trace_tells_decision_and_wait_and_a_failure_is_logged_with_it(watched: Watched, caplog) -> None:
    watched.give(build.accepted("big", 8), build.forecast("big", {8: 600.0}))
    found = spans(watched, "big")
    assert found["decide"].attributes["gpugrid.decision.outcome"] == "placed"
    assert found["queue wait"].attributes["gpugrid.job.id"] == "big"
    part = watched.driver.job("big").parts[0]
    trace = watched.driver.job("big").traceparent
    lost = build.failed("big", part.node, build.START_MS + 700_000, run_s=700.0, detail="out of memory")
    sent = message(lost, key="big", id="1", source="/t", time_ms=0, traceparent=trace)
    report(watched, "job.failed.v1", sent)
    assert set(spans(watched, "big")) == {"decide", "queue wait"}, "what executors do is in their own spans"
    (line,) = [one for one in caplog.records if one.message == "failed"]
    assert (line.job_id, line.trace_id, line.node_id) == ("big", trace[3:35], part.node)
    assert line.reason == "exit_code out of memory"
    assert watched.value("gpugrid_job_parts_ended_total", outcome="failed") == 1


@pytest.mark.parametrize(("run_s", "within"), [(500.0, "p50"), (700.0, "p90"), (2000.0, "beyond")])
def test_how_forecasts_held_is_counted(watched: Watched, run_s: float, within: str) -> None:
    watched.give(build.accepted("big", 8), build.forecast("big", {8: 600.0}))
    node = watched.driver.job("big").parts[0].node
    for kind, event in (
        ("job.started.v1", build.started("big", node, build.START_MS)),
        ("job.completed.v1", JobCompleted(job_id="big", attempt=1, node=node, cluster="c0", time_ms=1, run_s=run_s)),
    ):
        report(watched, kind, message(event, key="big", id=kind, source="/t", time_ms=0))
    assert watched.value("gpugrid_forecast_durations_total", within=within) == 1


def test_the_grid_is_told_in_gauges(watched: Watched) -> None:
    watched.give(build.accepted("big", 8), build.forecast("big", {8: 600.0}))
    watched.observe._grid._due_s = 0.0
    watched.observe._grid.update(watched.driver.state, POLICY)
    pool = {"cluster": "c0", "pool": "h100"}
    assert watched.value("gpugrid_free_gpus", **pool) == 8
    assert watched.value("gpugrid_schedulability_nodes", **pool) == 1
    assert watched.value("gpugrid_largest_block_gpus", **pool) == 8
    assert watched.value("gpugrid_fragmented_gpus", **pool, form="lonely_nodes") == 8
    assert watched.value("gpugrid_fragmented_gpus", **pool, form="partly_held_nodes") == 0
    assert watched.value("gpugrid_fragmented_gpus", **pool, form="usual_jobs") > 0  # of the jobs one wants 16
    assert watched.value("gpugrid_queue_jobs", cluster="c0", size_class=">8") == 1
    assert watched.value("gpugrid_running_jobs", cluster="c0", size_class="8") == 1
    assert watched.value("gpugrid_value_per_hour", cluster="c0", source="jobs") == 3 * 8
    assert watched.value("gpugrid_submit_to_placed_seconds_count", size_class="8") == 1
    text, kind = watched.metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert "openmetrics" in kind
    assert f'trace_id="{watched.driver.job("big").traceparent[3:35]}"' in text.decode(), "a bucket leads to its trace"


def test_the_largest_block_is_one_that_the_grid_has(watched: Watched) -> None:
    """Nodes of a rack side by side, whatever their order says; two nodes of two are no sixteen; slots of two cards are no pair."""

    def largest(pool: str, *events) -> float | None:
        driver = Driver(shared_cards.SETTINGS).give(*events)
        watched.observe._grid._due_s = 0.0
        watched.observe._grid.update(driver.state, POLICY)
        return watched.value("gpugrid_largest_block_gpus", cluster="c0", pool=pool)

    racks = [build.node(f"n{at}", order=at, rack="xyxy"[at]) for at in range(4)]
    busy = [build.node(f"n{at}", order=at, rack="xyxy"[at], unhealthy=range(8)) for at in (1, 3)]
    assert largest("h100", *racks, *busy) == 16
    mixed = [build.node("n0", unhealthy=range(8)), *[build.node(f"n{at}", gpus=2, order=at) for at in (1, 2)]]
    assert largest("h100", *mixed) == 4
    whole, halves = shared_cards.machine(cards=2)
    gpus = [changed(gpu, healthy=gpu.index in (1, 2)) for gpu in halves.gpus]
    cut = shared_cards.shaped([shared_cards.HALF] * 2, 1)
    assert largest(shared_cards.HALF, whole, changed(halves, gpus=gpus), cut) == 1


def test_planned_idle_time_that_nobody_fits_is_told(watched: Watched) -> None:
    """One job runs for an hour, the waiting one takes both nodes for four after it: the hour beside the first is a gap."""
    watched.give(build.accepted("big", 8), build.forecast("big", {8: 3600.0}))
    watched.give(build.accepted("next", 16), build.forecast("next", {16: 4 * 3600.0}))
    posed = pose(watched.driver.state, "h100", 81_920, POLICY, Now(build.START_MS, build.START_MS), frozenset())
    plan = plan_fast(posed.problem, 4)
    watched.observe._grid._due_s = 0.0
    watched.observe._grid.update(watched.driver.state, POLICY, [(posed, plan)])
    found = watched.value("gpugrid_window_gap_ratio", cluster="c0", pool="h100")
    assert found == gap_share(posed.problem, plan) > 0


def test_what_applications_ask_for_and_don_t_have_is_unmet(watched: Watched) -> None:
    watched.give(build.application("chat", floor=24, peak=32))
    watched.observe._grid._due_s = 0.0
    watched.observe._grid.update(watched.driver.state, POLICY)
    pool = {"cluster": "c0", "pool": "h100"}
    held = sum(len(part.gpus) for part in watched.driver.state.apps["chat"].parts)
    assert watched.value("gpugrid_realtime_wanted_gpus", **pool) == 24
    assert watched.value("gpugrid_realtime_unmet_gpus", **pool) == 24 - held

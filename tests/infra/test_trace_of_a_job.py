"""One trace from the publisher to the end of the process, read back from a real store; metrics of the same run from Prometheus."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deploy.backends.running import metric_store, scrape_targets
from schemas.status import JobState
from tests.infra.observed_stack import ObservedStack, names, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]
HOPS = {
    ("upstream", "publish job-events"),
    ("intake", "process job-events"),
    ("forecaster", "process jobs"),
    ("allocator", "decide"),
    ("allocator", "queue wait"),
    ("executor", "apply"),
    ("executor", "start"),
    ("executor", "end"),
}


def tags(span: dict) -> dict:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def test_the_complete_trace_of_a_job_is_in_the_store(stack) -> None:
    running, store = stack
    trace_id = running.publish("whole", run_s=2.0)
    assert running.finished("whole").state is JobState.COMPLETED
    until(lambda: names(store, trace_id) >= HOPS, f"missing: {HOPS - names(store, trace_id)}")
    spans = {span["operationName"]: span for span in store.trace(trace_id)}
    roots = [span for span in store.trace(trace_id) if not span["references"]]
    assert [span["operationName"] for span in roots] == ["publish job-events"]
    intake = tags(spans["process job-events"])
    assert intake["messaging.system"] == "kafka"
    assert intake["messaging.destination.name"] == "job-events"
    assert intake["messaging.operation.type"] == "process"
    assert intake["messaging.consumer.group.name"] == "gpugrid-intake"
    assert intake["span.kind"] == "consumer"
    assert "messaging.kafka.message.key" not in intake, "the collector takes the keys out"
    wait = spans["queue wait"]
    assert tags(wait)["gpugrid.queue.wait_s"] >= 0
    assert wait["duration"] < 1e6, "no span stays open while a job waits"
    assert [one["traceID"] for one in wait["references"] if one["refType"] == "FOLLOWS_FROM"] == [trace_id]
    order = ["publish job-events", "process job-events", "decide", "start", "end"]
    begun = [min(one["startTime"] for one in store.trace(trace_id) if one["operationName"] == name) for name in order]
    assert begun == sorted(begun)


def test_a_decision_about_several_jobs_links_to_all_of_them(stack) -> None:
    running, store = stack
    traces = {running.publish(f"batched-{number}", run_s=1.0) for number in range(6)}
    for number in range(6):
        running.finished(f"batched-{number}")

    def linked() -> set[str]:
        found = store.search("allocator", "decide batch")
        return {one["traceID"] for span in found for one in span["references"] if one["refType"] == "FOLLOWS_FROM"}

    until(lambda: traces <= linked(), "no decision links to the jobs it was about")


def test_a_failed_job_ends_its_trace_with_an_error_and_its_log_names_job_and_trace(stack) -> None:
    running, store = stack
    trace_id = running.publish("broken", run_s=2.0, fails_at="0.5")
    assert running.finished("broken").state is JobState.FAILED
    until(lambda: ("executor", "end") in names(store, trace_id), "the end of a failed job is not in its trace")
    (end,) = [span for span in store.trace(trace_id) if span["operationName"] == "end"]
    assert tags(end)["error"] is True
    lines = running.log_lines("allocator")
    mine = [line for line in lines if line.get("job_id") == "broken"]
    assert {line["message"] for line in mine} >= {"placed", "failed"}
    assert {line["trace_id"] for line in mine} == {trace_id}


def test_the_documented_metrics_are_scraped_and_a_slow_bucket_leads_to_its_trace(
    prometheus: None, stack, tmp_path: Path
) -> None:
    running, store = stack
    begun_s = time.time()
    targets = scrape_targets(running.run_dir)
    assert {each["labels"]["service"] for each in targets} >= {
        "intake",
        "forecaster",
        "allocator",
        "telemetry",
        "agent",
    }
    with metric_store(tmp_path, targets) as metrics:
        until(lambda: len(metrics.query("up == 1")) == len(targets), "not every process is scraped")
        trace_id = running.publish("measured", run_s=1.0)
        running.finished("measured")

        def value(expression: str) -> float:
            found = metrics.query(expression)
            return float(found[0]["value"][1]) if found else -1.0

        for expression in (
            "sum(gpugrid_decision_seconds_count) > 0",
            'sum(gpugrid_submit_to_placed_seconds_count{size_class="1"}) > 0',
            "sum(gpugrid_placed_to_running_seconds_count) > 0",
            "sum(gpugrid_submit_to_running_seconds_count) > 0",
            'sum(gpugrid_job_parts_ended_total{outcome="completed"}) > 0',
            'sum(gpugrid_events_total{topic="job-events"}) > 0',
            "sum(gpugrid_utilization_ratio) >= 0",
            'sum(gpugrid_nodes{health="usable"}) == 2',
            'sum(gpugrid_schedulability_nodes{pool="h100"}) >= 1',
            "sum(gpugrid_gpu_memory_total_bytes) > 0",
            "histogram_quantile(0.99, sum by (le) (rate(gpugrid_decision_seconds_bucket[1m]))) < 5",
            "gpugrid:unplaceable_share >= 0 or vector(1)",
            'count(gpugrid_consumer_lag_records{service="allocator"}) >= 5',
            'count(gpugrid_consumer_lag_records{service="executor",topic="placements"}) >= 1',
        ):
            until(lambda wanted=expression: bool(metrics.query(wanted)), f"never true: {expression}")
        assert value("max(gpugrid_consumer_lag_records)") < 1000

        def told() -> bool:
            series = metrics.exemplars("gpugrid_submit_to_placed_seconds_bucket", begun_s - 600, time.time() + 60)
            return trace_id in {one["labels"].get("trace_id") for each in series for one in each["exemplars"]}

        until(told, "no exemplar names the job's trace")
        until(lambda: bool(names(store, trace_id)), "the exemplar leads to no trace")


def test_a_collector_that_dies_delays_no_job_and_loses_no_event(stack) -> None:
    """The last one here: the collector does not come back."""
    running, _ = stack
    alive_s = timed(running, "alive")
    running.lose_collector()
    dead_s = timed(running, "dead")
    print(f"publish to final status of eight jobs: {alive_s:.2f} s with the collector, {dead_s:.2f} s without")
    # Eight exports that wait for a collector would cost 10 s each; the rest is how busy the machine is.
    assert dead_s < 2 * alive_s + 5.0


def timed(running: ObservedStack, prefix: str) -> float:
    """From publishing eight jobs to the last one's final status."""
    begun_s = time.monotonic()
    for number in range(8):
        running.publish(f"{prefix}-{number}", run_s=0.5)
    for number in range(8):
        assert running.finished(f"{prefix}-{number}").state is JobState.COMPLETED
    return time.monotonic() - begun_s

"""What people see of each decision: spans in the traces of the jobs it touched, metrics. Reads, never changes anything."""

from __future__ import annotations

import logging
import time
from collections import Counter

from schemas.codec import DecodeError, decode_payload
from schemas.decisions import DecisionInput, DecisionMade, Placed, StopOrdered, Waits
from schemas.executions import JobCompleted, JobFailed, JobStarted, JobStopped
from schemas.records import Record
from schemas.status import JobState
from services.allocator.core.decide import Decided
from services.allocator.core.state import Job, State
from services.allocator.shell.grid_metrics import GridMetrics, size_class
from services.allocator.shell.intake_batch import Batch
from services.allocator.shell.owner import ClusterOwner
from services.runtime.metrics import Metrics, exemplar
from services.runtime.tracing import LINKS_MAX, Attributes, Spans

JOBS_REMEMBERED_MAX = 20_000
"""Running jobs whose forecast is compared with what they take."""
REPORTS = ("job.started.v1", "job.completed.v1", "job.failed.v1", "job.stopped.v1")
Report = JobStarted | JobCompleted | JobFailed | JobStopped
QUEUE_PERIOD_S = 1.0
"""Counting the queue walks over it: often enough for a gauge, rare enough for 10,000 jobs."""


log = logging.getLogger(__name__)


class DecisionObserver:
    """The allocator's `observe`: one span per decision that links to its jobs, one span per job in the job's own trace."""

    def __init__(self, spans: Spans, metrics: Metrics) -> None:
        self._spans = spans
        self._metrics = metrics
        self._forecasts: dict[str, tuple[float, float]] = {}
        self._grid = GridMetrics(metrics.registry)
        self._counted_at_s = 0.0
        self._reasons: set[tuple[str, str]] = set()

    def __call__(self, owner: ClusterOwner, decided: Decided, batch: Batch, elapsed_s: float) -> None:
        record = decided.record
        start_ns = time.time_ns() - int(elapsed_s * 1e9)
        attributes: Attributes = {
            "gpugrid.cluster": record.cluster,
            "gpugrid.decision.sequence": record.sequence,
            "gpugrid.decision.inputs": len(record.inputs),
            "gpugrid.decision.effects": len(record.effects),
        }
        links = list(record.traces.values())[:LINKS_MAX]
        span = self._spans.begin("decide batch", "", attributes, links=links, start_ns=start_ns)
        for sentence in decided.violations:
            span.set("gpugrid.decision.violation", sentence)
        span.end(error="; ".join(decided.violations) or None)
        self._job_spans(owner.state, record, start_ns)
        self._measure(owner, decided, batch, span.traceparent)
        self._measure_placed(owner.state, record)

    def count_answer(self, outcome: str, wall_s: float) -> None:
        """An answer of full mode, and how long it took to come."""
        self._metrics.full_mode_answers.labels(outcome).inc()
        self._metrics.decision_s.labels("full").observe(wall_s)

    def _job_spans(self, state: State, record: DecisionMade, start_ns: int) -> None:
        effects = {
            effect.job_id: effect for effect in record.effects if isinstance(effect, Placed | StopOrdered | Waits)
        }
        for job_id in list(effects)[:LINKS_MAX]:
            traceparent = record.traces.get(job_id)
            if not traceparent:
                continue
            effect = effects[job_id]
            attributes: Attributes = {
                "gpugrid.job.id": job_id,
                "gpugrid.decision.sequence": record.sequence,
                "gpugrid.decision.outcome": _outcome(effect),
            }
            self._spans.begin("decide", traceparent, attributes, start_ns=start_ns).end()
            job = state.jobs.get(job_id)
            if isinstance(effect, Placed) and job is not None:
                self._queue_wait(job, record, traceparent, start_ns)
                said = {"job_id": job_id, "trace_id": traceparent[3:35], "cluster": record.cluster}
                log.info("placed", extra={**said, "sequence": record.sequence})

    def _queue_wait(self, job: Job, record: DecisionMade, traceparent: str, start_ns: int) -> None:
        """The wait may have been days: no span is open so long. It is a moment with the wait as a number, linked to the job's
        arrival, in domain time."""
        attributes: Attributes = {
            "gpugrid.job.id": job.job_id,
            "gpugrid.queue.wait_s": max(0, record.now_ms - (job.queued_ms or job.submitted_ms)) / 1000,
            "gpugrid.queue.submitted_ms": job.submitted_ms,
            "gpugrid.attempt": job.attempt,
        }
        links = [job.traceparent] if job.traceparent else []
        self._spans.begin("queue wait", traceparent, attributes, links=links, start_ns=start_ns).end()

    def _reported(self, state: State, item: DecisionInput, record: Record) -> None:
        """What executors did, in the counters and the log; their spans are their own."""
        if item.type not in REPORTS:
            return
        try:
            event = decode_payload(item.type, record.value or b"")
        except DecodeError:
            return
        assert isinstance(event, JobStarted | JobCompleted | JobFailed | JobStopped), "REPORTS says so"
        self._count_report(state, event)
        if isinstance(event, JobFailed):
            said = {"job_id": event.job_id, "trace_id": (record.header("traceparent") or "")[3:35]}
            error = f"{event.cause.value} {event.detail}".strip()
            log.warning("failed", extra={**said, "node_id": event.node, "reason": error})

    def _count_report(self, state: State, event: Report) -> None:
        job = state.jobs.get(event.job_id)
        match event:
            case JobStarted() if job is not None and job.placed_p90_s > 0:
                self._forecasts[event.job_id] = (job.placed_p50_s, job.placed_p90_s)
                while len(self._forecasts) > JOBS_REMEMBERED_MAX:
                    del self._forecasts[next(iter(self._forecasts))]
            case JobCompleted():
                self._metrics.ended.labels("completed").inc()
                p50_s, p90_s = self._forecasts.pop(event.job_id, (0.0, 0.0))
                if p90_s > 0:
                    within = "p50" if event.run_s <= p50_s else "p90" if event.run_s <= p90_s else "beyond"
                    self._metrics.forecast_durations.labels(within).inc()
            case JobFailed() | JobStopped():
                self._forecasts.pop(event.job_id, None)
                outcome = "failed" if isinstance(event, JobFailed) else f"stopped_{event.cause.value}"
                self._metrics.ended.labels(outcome).inc()

    def _measure(self, owner: ClusterOwner, decided: Decided, batch: Batch, traceparent: str) -> None:
        metrics = self._metrics
        metrics.decision_s.labels("fast").observe(owner.decide_s, exemplar(traceparent))
        for item, record in zip(batch.inputs, batch.records, strict=False):  # full mode's answer comes without a record
            metrics.events.labels(record.topic).inc()
            self._reported(owner.state, item, record)
            if item.type == "job.started.v1":
                _observe_start(owner.state, record.key, metrics)
        now_s = time.monotonic()
        if now_s - self._counted_at_s >= QUEUE_PERIOD_S:
            self._counted_at_s = now_s
            self._count_queue(owner.state)
            self._grid.update(owner.state, owner.policy, list(zip(decided.posed, decided.plans, strict=True)))

    def _measure_placed(self, state: State, record: DecisionMade) -> None:
        for effect in record.effects:
            job = state.jobs.get(effect.job_id) if isinstance(effect, Placed) else None
            if job is not None and job.attempt > 1:
                self._metrics.restarts.labels(size_class(job.gpus)).inc()
            elif job is not None:
                waited_s = max(0, record.now_ms - job.submitted_ms) / 1000
                label = self._metrics.submit_to_placed_s.labels(size_class(job.gpus))
                label.observe(waited_s, exemplar(job.traceparent))

    def _count_queue(self, state: State) -> None:
        counts = Counter(job.reason or "none" for job in state.jobs.values() if job.state is JobState.QUEUED)
        self._reasons |= {(state.cluster, reason) for reason in counts}
        for cluster, reason in self._reasons:
            if cluster == state.cluster:
                self._metrics.queue_length.labels(cluster, reason).set(counts.get(reason, 0))


def _outcome(effect: Placed | StopOrdered | Waits) -> str:
    if isinstance(effect, Placed):
        return "placed"
    return effect.reason if isinstance(effect, Waits) else f"stop: {effect.cause.value}"


def _observe_start(state: State, key: bytes | None, metrics: Metrics) -> None:
    job = state.jobs.get((key or b"").decode("utf-8", "replace"))
    if job is None or job.state is not JobState.RUNNING or job.started_ms is None:
        return
    label, trace = size_class(job.gpus), exemplar(job.traceparent)
    metrics.placed_to_running_s.labels(label).observe(max(0, job.started_ms - job.placed_ms) / 1000, trace)
    if job.attempt == 1:
        metrics.submit_to_running_s.labels(label).observe(max(0, job.started_ms - job.submitted_ms) / 1000, trace)

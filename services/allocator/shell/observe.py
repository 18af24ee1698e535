"""What people see of each decision: spans in the traces of the jobs it touched, metrics. Reads, never changes anything."""

from __future__ import annotations

import time
from collections import Counter

from schemas.decisions import Placed, StopOrdered, Waits
from schemas.status import JobState
from services.allocator.core.decide import Decided
from services.allocator.core.state import State
from services.allocator.shell.intake_batch import Batch
from services.allocator.shell.owner import ClusterOwner
from services.runtime.metrics import Metrics
from services.runtime.tracing import LINKS_MAX, Attributes, Spans

QUEUE_PERIOD_S = 1.0
"""Counting the queue walks over it: often enough for a gauge, rare enough for 10,000 jobs."""


class DecisionObserver:
    """The allocator's `observe`: one span per decision that links to its jobs, one span per job in the job's own trace."""

    def __init__(self, spans: Spans, metrics: Metrics) -> None:
        self._spans = spans
        self._metrics = metrics
        self._counted_at_s = 0.0
        self._reasons: set[tuple[str, str]] = set()

    def __call__(self, owner: ClusterOwner, decided: Decided, batch: Batch, elapsed_s: float) -> None:
        record = decided.record
        end_ns = time.time_ns()
        start_ns = end_ns - int(elapsed_s * 1e9)
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
        self._job_spans(record.traces, decided, start_ns)
        self._measure(owner, batch)

    def count_answer(self, outcome: str, wall_s: float) -> None:
        """An answer of full mode, and how long it took to come."""
        self._metrics.full_mode_answers.labels(outcome).inc()
        self._metrics.decision_s.labels("full").observe(wall_s)

    def _job_spans(self, traces: dict[str, str], decided: Decided, start_ns: int) -> None:
        outcomes = {
            effect.job_id: _outcome(effect)
            for effect in decided.record.effects
            if isinstance(effect, Placed | StopOrdered | Waits)
        }
        for job_id in list(outcomes)[:LINKS_MAX]:
            traceparent = traces.get(job_id)
            if traceparent:
                attributes: Attributes = {
                    "gpugrid.job.id": job_id,
                    "gpugrid.decision.sequence": decided.record.sequence,
                    "gpugrid.decision.outcome": outcomes[job_id],
                }
                self._spans.begin("decide", traceparent, attributes, start_ns=start_ns).end()

    def _measure(self, owner: ClusterOwner, batch: Batch) -> None:
        metrics = self._metrics
        metrics.decision_s.labels("fast").observe(owner.decide_s)
        for item, record in zip(batch.inputs, batch.records, strict=False):  # full mode's answer comes without a record
            metrics.events.labels(record.topic).inc()
            if item.type == "job.started.v1":
                _observe_start(owner.state, record.key, metrics)
        now_s = time.monotonic()
        if now_s - self._counted_at_s >= QUEUE_PERIOD_S:
            self._counted_at_s = now_s
            self._count_queue(owner.state)

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
    if job is not None and job.state is JobState.RUNNING and job.started_ms is not None:
        size_class = "1" if job.gpus == 1 else "2-4" if job.gpus <= 4 else "8" if job.gpus <= 8 else ">8"
        waited_s = max(0, job.started_ms - job.submitted_ms) / 1000
        metrics.submit_to_running_s.labels(size_class).observe(waited_s)

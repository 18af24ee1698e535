"""What one node does with its runs, as spans in the jobs' traces: `apply`, `start`, `checkpoint`, `end`.

Owns: their names, attributes, and since when each counts. `apply`: from the placement that first asked for it until it is journalled
and under way, so a start that waits for GPUs shows that; `end`: from the wish to stop until the report is journalled, of a run that
ends by itself only the latter. All of it is wall time, and none is open for longer than what it is about. Refuses to decide or to
report anything. Read next: `node.py`, `saving.py`, `starting.py`.
"""

from __future__ import annotations

import time

from schemas.base import Event as Payload
from schemas.executions import JobCompleted, JobFailed, JobStopped
from schemas.placements import Assignment, NodePlaced
from services.executor.core.journal import LocalRun, RunKey, run_key
from services.executor.core.reconcile import Action, RequestCheckpoint, Rescale, Start, Stop, Withdraw
from services.executor.shell.drivers.port import Answer
from services.runtime.tracing import Span, Spans

ACTIONS: dict[type[Action], str] = {
    Start: "start",
    Withdraw: "withdraw",
    RequestCheckpoint: "checkpoint",
    Stop: "stop",
    Rescale: "rescale",
}
ACTED_ON = 0


class RunSpans:
    """One node's."""

    def __init__(self, node: str, spans: Spans) -> None:
        self._node = node
        self._spans = spans
        self._received_ns = 0
        self._asked_ns: dict[RunKey, int] = {}
        self._stopping_ns: dict[RunKey, int] = {}

    def received(self, placed: NodePlaced) -> None:
        """A placement has come; what it repeats was asked for before."""
        self._received_ns = time.time_ns()
        keys = [run_key(assignment.job_id, assignment.attempt) for assignment in placed.assignments]
        self._asked_ns = {key: self._asked_ns.get(key, self._received_ns) for key in keys}

    def apply(self, action: Action, run: LocalRun | None) -> Span:
        """Begins now at the latest; the caller ends it once the action is journalled. `run`: the one it is about, if there is one."""
        if isinstance(action, Start | Withdraw):
            assignment, traceparent = action.assignment, action.assignment.traceparent
        else:
            assert run is not None, "only a run can be stopped, saved or scaled"
            assignment, traceparent = run.assignment, run.traceparent
        begun_ns: int | None = self._received_ns
        if isinstance(action, Start):
            key = run_key(assignment.job_id, assignment.attempt)
            # An application that comes back by itself was not asked for again.
            begun_ns = self._asked_ns.get(key) or None
            self._asked_ns[key] = ACTED_ON
        attributes = {**self._attributes(assignment), "gpugrid.action": ACTIONS[type(action)]}
        return self._spans.begin("apply", traceparent, attributes, start_ns=begun_ns)

    def start(self, assignment: Assignment) -> Span:
        return self._spans.begin("start", assignment.traceparent, self._attributes(assignment))

    def checkpoint(self, run: LocalRun, *, before_stop: bool) -> Span:
        """From the request to the answer; end it by `answered`."""
        span = self._spans.begin("checkpoint", run.traceparent, self._attributes(run.assignment))
        span.set("gpugrid.checkpoint.asked_for", "stop" if before_stop else "save")
        return span

    def answered(self, span: Span, answer: Answer | None, *, ended: bool, wait_s: float) -> None:
        """`ended`: the run is gone, which needs no answer any more."""
        if answer is not None:
            span.set("gpugrid.checkpoint.fraction", answer.fraction)
        span.end(f"no answer within {wait_s:g} s" if answer is None and not ended else None)

    def saved(self, run: LocalRun, answer: Answer) -> None:
        """A run has saved without being asked: a moment."""
        attributes = {**self._attributes(run.assignment), "gpugrid.checkpoint.fraction": answer.fraction}
        self._spans.begin("checkpoint", run.traceparent, attributes).end()

    def stopping(self, key: RunKey) -> None:
        """From now on it is being stopped."""
        self._stopping_ns.setdefault(key, time.time_ns())

    def end(self, run: LocalRun, event: Payload) -> Span:
        """`event`: what will be reported. The caller ends it by `ended` once that is journalled."""
        begun_ns = self._stopping_ns.pop(run.key, None)
        attributes = self._attributes(run.assignment)
        if isinstance(event, JobCompleted | JobFailed | JobStopped):
            outcome = "completed"
            if not isinstance(event, JobCompleted):
                outcome = f"{'failed' if isinstance(event, JobFailed) else 'stopped'}: {event.cause.value}"
            attributes = {**attributes, "gpugrid.outcome": outcome, "gpugrid.run_s": event.run_s}
        return self._spans.begin("end", run.traceparent, attributes, start_ns=begun_ns)

    def ended(self, span: Span, event: Payload) -> None:
        """A failure is an error of the trace; a stop is not."""
        span.end(f"{event.cause.value} {event.detail}".strip() if isinstance(event, JobFailed) else None)

    def _attributes(self, assignment: Assignment) -> dict[str, str | int | float | bool]:
        return {
            "gpugrid.job.id": assignment.job_id,
            "gpugrid.node": self._node,
            "gpugrid.attempt": assignment.attempt,
        }

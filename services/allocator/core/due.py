"""When the allocator has to decide again although nothing arrived: limits, deadlines, back-off, forecasts overdue, moving demand."""

from __future__ import annotations

from services.allocator.core.commit import limit_ms
from services.allocator.core.config import Policy
from services.allocator.core.index import index_of
from services.allocator.core.silence import serving_due_wall_ms, start_due_wall_ms
from services.allocator.core.state import State


def due_domain_ms(state: State, policy: Policy) -> int:
    """Domain time of the next decision that time alone demands; at the latest `replan_s` after the last one."""
    due = state.now_ms + policy.replan_s * 1000
    index = index_of(state)
    for job in index.placed.values():
        if job.holds_gpus and not job.stop_cause and job.started_ms is not None:
            due = min(due, limit_ms(job))
    for job in index.delayed.values():
        if job.not_before_ms > state.now_ms:
            due = min(due, job.not_before_ms)
    for node in state.nodes.values():
        if node.draining and node.drain_deadline_ms > state.now_ms:
            due = min(due, node.drain_deadline_ms)
    for order in state.repartitions.values():
        if order.deadline_ms > state.now_ms:
            due = min(due, order.deadline_ms)
    return due


def due_wall_ms(state: State, policy: Policy) -> int | None:
    """Wall time at which the first job stops waiting for its forecast, or for a word of its executor; or None."""
    index = index_of(state)
    waiting = [job.seen_wall_ms + policy.forecast_wait_ms for job in index.awaiting.values() if not job.forecast]
    for job in index.placed.values():
        if (due_ms := start_due_wall_ms(job)) is not None:
            waiting.append(due_ms)
    waiting += [due_ms for app in state.apps.values() if (due_ms := serving_due_wall_ms(app)) is not None]
    return min(waiting) if waiting else None

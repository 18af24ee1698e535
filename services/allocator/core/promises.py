"""Planned starts of big jobs as books: what a promise is, why it may move later, when it is forgotten, and its sentence.

Needs no planner; `planned_starts.py` makes promises and keeps them.
"""

from __future__ import annotations

from enum import Enum

from schemas.decisions import Promised
from services.allocator.core.state import Promise, State

BY_NAMED_MAX = 3
"""Names in a sentence; the decision has all of them."""


class Cause(Enum):
    """Why a planned start moved later. `UNEXPLAINED` would be a bug: the independent checks refuse it."""

    OVERRUN = "overrun"
    NODE_WITHDRAWN = "node_withdrawn"
    RESERVED = "reserved"
    HIGHER_PRIORITY = "higher_priority"
    RULES = "rules"
    APPLICATIONS = "applications"
    UNEXPLAINED = "unexplained"


CAUSE_SENTENCES: dict[Cause, str] = {
    Cause.OVERRUN: "work that comes before it, or the job itself, takes longer than expected",
    Cause.NODE_WITHDRAWN: "nodes of its block were lost, drained or changed",
    Cause.RESERVED: "its block is reserved or being cleared for somebody else",
    Cause.HIGHER_PRIORITY: "jobs of higher priority would have had to wait for it",
    Cause.RULES: "the rules, or what its team may hold, have changed",
    Cause.APPLICATIONS: "real-time applications need its block",
    Cause.UNEXPLAINED: "for no known reason",
}


def promise_of(state: State, effect: Promised) -> Promise:
    """The promise as of this effect. Why it had moved is remembered until the job has its old start back."""
    known = state.promises.get(effect.job_id)
    cause, by, before_ms = effect.cause, list(effect.by), 0
    if known is not None:
        if cause:
            before_ms = known.start_ms or known.before_ms
        elif known.cause and (effect.start_ms is None or effect.start_ms > known.before_ms):
            cause, by, before_ms = known.cause, known.by, known.before_ms
    return Promise(
        pool=effect.pool,
        start_ms=effect.start_ms,
        placed=list(effect.placed),
        rules=state.rules.version,
        cause=cause,
        by=by,
        before_ms=before_ms,
    )


def forget_promises(state: State) -> None:
    """Promises of jobs that wait no more, or that no rule asks for."""
    ruled = state.rules.planned_starts.nodes_min > 0
    for job_id in [job_id for job_id in state.promises if not ruled or _waits_no_more(state, job_id)]:
        del state.promises[job_id]


def _waits_no_more(state: State, job_id: str) -> bool:
    job = state.jobs.get(job_id)
    return job is None or bool(job.parts)


def promise_sentence(promise: Promise | None) -> str:
    """What a person should know of a waiting job's promise; empty: it has none."""
    if promise is None:
        return ""
    if not promise.cause:
        return " Its planned start can only move earlier."
    why = CAUSE_SENTENCES[Cause(promise.cause)]
    named = ", ".join(promise.by[:BY_NAMED_MAX]) + (" and others" if len(promise.by) > BY_NAMED_MAX else "")
    who = f" ({named})" if named else ""
    if promise.start_ms is None:
        return f" It lost its planned start: {why}{who}."
    later = minutes_text((promise.start_ms - promise.before_ms) // 60_000)
    return f" Its planned start moved {later} later: {why}{who}. It can only move earlier from there."


def minutes_text(minutes: int) -> str:
    """`35 min`, `2 h 5 min`."""
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"

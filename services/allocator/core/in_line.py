"""A waiting job's place in the order in which its pool is planned: what `Position` means to people. Pure, needs no planner.

Overdue jobs come first and then those inside their team's guarantee, each by submission; all others by their whole priority, then by
arrival. Those that take part in planning come before those that don't. A job that accepts several pools stands in one line: of the
pool it is planned in, or else prefers. Owns nothing of the order itself: `precedence.py`, docs/policy.md, "The order, as a formula".
"""

from __future__ import annotations

from services.allocator.core.config import Policy
from services.allocator.core.index import Index
from services.allocator.core.precedence import planned_max_of, precedence_of
from services.allocator.core.quotas import factors_of
from services.allocator.core.shares import ONE
from services.allocator.core.standing import Standing, standing_of
from services.allocator.core.state import Job, State

Key = tuple[int, int, int]


def line_of(job: Job) -> str:
    """The pool in whose line the job stands; empty: in none."""
    return job.planned_pool or (job.pools[0] if job.pools else "")


def position_in(state: State, index: Index, gpus: int, job: Job, policy: Policy, now_ms: int) -> int:
    """1 is next. `gpus`: of the job's pool."""
    pool = line_of(job)
    waiting = [other for other in state.jobs.values() if not other.parts and pool in other.pools]
    elsewhere = frozenset(other.job_id for other in waiting if line_of(other) != pool)
    planned = precedence_of(state, index, pool, planned_max_of(gpus), frozenset(), policy, now_ms, elsewhere)
    keys = {other.job_id: _key(other, planned.standings[other.job_id]) for other in planned.queued}
    if job.job_id in keys:
        return 1 + sum(key < keys[job.job_id] for key in keys.values())
    factors, aging = factors_of(state, index.holders(), index.teams_waiting(), now_ms), state.rules.aging
    behind = {
        other.job_id: _key(other, standing_of(other, aging, now_ms, factors.get(other.spec.team, ONE)))
        for other in waiting
        if other.job_id not in keys and other.job_id not in elsewhere
    }
    return 1 + len(keys) + sum(key < behind[job.job_id] for key in behind.values())


def _key(job: Job, standing: Standing) -> Key:
    """Smaller comes first."""
    if standing.overdue or standing.guaranteed:
        return (0 if standing.overdue else 1, job.submitted_ms, job.arrival)
    return (2, -standing.priority, job.arrival)

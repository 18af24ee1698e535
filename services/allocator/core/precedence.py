"""Who is planned for, in which order, under which caps: the rules applied to one pool's queue at one moment.

The standing of each job (`standing.py`), the shares of the teams (`shares.py`) and what the quotas admit (`quotas.py`) meet here,
and nowhere else; `pose.py` turns the result into a planning problem, `gpugrid why` and `gpugrid policy check` into sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.rules import Rules
from services.allocator.core.config import Policy
from services.allocator.core.groups import Group, maximum_of
from services.allocator.core.index import Index, TeamOrder
from services.allocator.core.quotas import Admission, admit, factors_of, guarantees_left, held_by, limited
from services.allocator.core.reasons import Reason
from services.allocator.core.shares import ONE
from services.allocator.core.speeds import expected_s
from services.allocator.core.standing import GUARANTEED_PRIORITY, OVERDUE_PRIORITY, Standing, standing_of
from services.allocator.core.state import Job, State

PLANNED_JOBS_PER_GPU = 8
PLANNED_JOBS_MIN = 256
"""A pool plans so many queued jobs at once, the best by aged priority and arrival: more than its window could ever hold.
The others wait behind them and say so; they are looked at again with every decision."""
CAPPED_JOBS_PER_GPU = 8
CAPPED_JOBS_MIN = 32
"""Of a team that may hold so few GPUs no more jobs are planned at once than could ever use them, so it can't crowd others out."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Waiting jobs that nobody else may be planned in the way of (`claims.py`): overdue ones, and those inside their team's guarantee.
    `room`: by team, GPUs of its guarantee in the pool that it doesn't hold."""

    overdue: frozenset[str] = frozenset()
    inside: frozenset[str] = frozenset()
    room: Mapping[str, int] = field(default_factory=dict)

    @property
    def tiers(self) -> dict[str, int]:
        """By job, 2 if it is overdue, 1 if it is inside a guarantee."""
        return dict.fromkeys(self.inside, 1) | dict.fromkeys(self.overdue, 2)


@dataclass(frozen=True, slots=True)
class Precedence:
    """`queued`: jobs to plan, as the planner gets them. `priorities` in thousandths by job id. `more`: others wait behind.

    `tier_max`: what guarantees and overdue jobs add at most here; applications keep their place above batch work by it.
    """

    queued: list[Job]
    more: bool
    standings: dict[str, Standing]
    priorities: dict[str, int]
    admission: Admission
    claims: Claims
    tier_max: int


def precedence_of(
    state: State,
    index: Index,
    pool: str,
    planned_max: int,
    placed_elsewhere: frozenset[str],
    policy: Policy,
    now_ms: int,
    planned_elsewhere: frozenset[str] = frozenset(),
) -> Precedence:
    """`placed_elsewhere`: jobs that already got a block in another pool of this decision; `planned_elsewhere`: that wait for one."""
    rules, holders = state.rules, index.holders()
    factors = factors_of(state, holders, index.teams_waiting(), now_ms)
    order, holding, is_limited = TeamOrder(factors, {}, {}), list[Job](), limited(rules)
    if is_limited:
        holding = [job for job in holders if job.holds_gpus]
        holding += [state.jobs[job_id] for job_id in sorted(placed_elsewhere)]
        most = _most_planned(rules, pool, index.teams_waiting())
        order = TeamOrder(factors, most, guarantees_left(rules, pool, held_by(holding)))
    elsewhere = placed_elsewhere | planned_elsewhere
    queued, more = index.first_waiting(pool, planned_max, elsewhere, rules.aging, now_ms, order)
    standings = {job.job_id: _standing(job, pool, rules, factors, policy, now_ms, False) for job in queued}
    admission = Admission()
    if is_limited:
        best_first = sorted(queued, key=lambda job: (-standings[job.job_id].priority, job.arrival))
        admission = admit(rules, pool, best_first, holding)
        for job in queued:
            if job.job_id in admission.guaranteed:
                standings[job.job_id] = _standing(job, pool, rules, factors, policy, now_ms, True)
    admission.refusals.update((job_id, Reason.TAKES_A_PLACE) for job_id in state.preemptions)
    return Precedence(
        queued=queued,
        more=more,
        standings=standings,
        priorities={job_id: standing.priority for job_id, standing in standings.items()},
        admission=admission,
        claims=Claims(
            frozenset(job_id for job_id, standing in standings.items() if standing.overdue),
            frozenset(admission.guaranteed),
            admission.room,
        ),
        tier_max=max((_tier(standing) for standing in standings.values()), default=0),
    )


def planned_max_of(gpus: int) -> int:
    """How many waiting jobs take part in planning a pool of so many GPUs."""
    return max(PLANNED_JOBS_MIN, PLANNED_JOBS_PER_GPU * gpus)


def standing_in(state: State, index: Index, pool: str, gpus: int, job: Job, policy: Policy, now_ms: int) -> Standing:
    """One waiting job's standing as the next decision in the pool, which has `gpus`, would have it. A job behind those that take
    part in planning is inside no guarantee: they come first."""
    planned = precedence_of(state, index, pool, planned_max_of(gpus), frozenset(), policy, now_ms)
    known = planned.standings.get(job.job_id)
    if known is not None:
        return known
    factors = factors_of(state, index.holders(), index.teams_waiting(), now_ms)
    return _standing(job, pool, state.rules, factors, policy, now_ms, False)


def takes_at_most_s(job: Job, pool: str, policy: Policy) -> float:
    """P90 of the work that is left on its largest size: a deadline less this is one for its start."""
    return expected_s(job, max(job.spec.sizes), policy, pool)[1] * (1.0 - job.fraction)


def _standing(
    job: Job, pool: str, rules: Rules, factors: dict[str, int], policy: Policy, now_ms: int, guaranteed: bool
) -> Standing:
    takes_s = 0.0 if job.spec.deadline_ms is None else takes_at_most_s(job, pool, policy)
    factor = factors.get(job.spec.team, ONE)
    return standing_of(job, rules.aging, now_ms, factor, guaranteed=guaranteed, takes_s=takes_s)


def _tier(standing: Standing) -> int:
    return GUARANTEED_PRIORITY * standing.guaranteed + OVERDUE_PRIORITY * standing.overdue


def _most_planned(rules: Rules, pool: str, teams: list[str]) -> dict[str, int]:
    """How many jobs of each capped team are planned at once."""
    most = {}
    for team in teams:
        cap = maximum_of(rules, Group("team", team), pool)
        if cap is not None:
            most[team] = max(CAPPED_JOBS_MIN, CAPPED_JOBS_PER_GPU * cap)
    return most

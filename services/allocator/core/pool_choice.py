"""Which pool waits for which job: of jobs that accept several, the pool and (by that pool's plan) the size are chosen together.

Each such job is planned in exactly one pool, so no two grids ever keep a place for it; which one is found anew with every decision until
it starts. Pools are compared in one currency: what a plan says a job is worth there, times its least work in any of its pools ÷ its least
work there. A slow pool takes more GPU-steps for the same work, and must not seem the more valuable for it.

The search: all of them are posed everywhere; each, best first, goes where it is worth most; those that found no place try again beside
the others. Then single jobs change pools while that gains. Last, the result is compared with every job in the pool it prefers, both
planned with the budget of a decision: the choice is never worth less. Pure, bounded, the same for the same state. `commit.py` takes over
the plans made here where nothing has changed since. Read next: `better_pool.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from schemas.records import Now
from services.allocator.core.config import Policy
from services.allocator.core.heuristic import decision_iterations, plan_compared, with_reasons
from services.allocator.core.index import index_of
from services.allocator.core.kernels.rows import options_of
from services.allocator.core.layout import pools_of
from services.allocator.core.plan import Plan
from services.allocator.core.pose import Posed, pose
from services.allocator.core.problem import WEIGHT_ONE_MAX, Problem
from services.allocator.core.quotas import limited
from services.allocator.core.replanning import plan_or_last
from services.allocator.core.state import State
from services.allocator.core.value import job_gains

ROUNDS_MAX = 3
"""Tries of jobs that found no place; those that still have none wait in the pool they prefer."""
MOVES_MAX, MOVES_MIN = 6, 2
MOVED_JOBS = 600
"""Changes that are tried per decision; each costs the first grids of two pools, so with many waiting jobs fewer are."""
ROUND_PART = 4
"""A round gets this part of a decision's budget: it decides between pools, not between places."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`pool_of`: by job that accepts several pools. `planned`: pools whose final problem and plan are known already."""

    pool_of: dict[str, str]
    planned: dict[str, tuple[Posed, Plan]] = field(default_factory=dict)
    posed: dict[str, Posed] = field(default_factory=dict)

    def planned_in(
        self, state: State, pool: str, memory_mib: int, placed: frozenset[str], policy: Policy, now: Now
    ) -> tuple[Posed, Plan]:
        """Problem and fast mode's plan of a pool. `placed`: jobs that this decision has started in other pools."""
        known = self.planned.get(pool)
        if known is not None:
            return known
        posed = pose(state, pool, memory_mib, policy, now, placed, self.elsewhere(pool))
        budget = decision_iterations(posed.problem, policy.iterations)
        return posed, plan_or_last(index_of(state), pool, posed.problem, budget, policy.seed)

    def elsewhere(self, pool: str) -> frozenset[str]:
        """Jobs that don't wait for this pool, though they would accept it."""
        return frozenset(job_id for job_id, chosen in self.pool_of.items() if chosen != pool)


NO_CHOICE = Choice({})


def choose_pools(state: State, memory_mib: Mapping[str, int], policy: Policy, now: Now) -> Choice:
    """The pool of every waiting job that could be planned in more than one. Without such jobs it costs a look at their kinds."""
    there = set(pools_of(state))
    found = {pool for pools, _ in index_of(state).waiting if len(there.intersection(pools)) > 1 for pool in pools}
    if not found:
        return NO_CHOICE
    pools = sorted(there & found)
    posed = {pool: pose(state, pool, memory_mib.get(pool, 0), policy, now, frozenset()) for pool in pools}
    table = _Table(state, posed)
    if not table.jobs:
        return Choice(table.fixed, posed=posed)
    search = _Search(table, policy)
    chosen, plans = search.best()
    planned = {}
    if not limited(state.rules):
        planned = {pool: found for pool, found in plans.items() if not posed[pool].more}
    return Choice(table.fixed | chosen, planned, posed)


class _Table:
    """Who may go where, from the problems of all pools with everybody in them. `jobs`: best first, with their pools as preferred.

    `fixed`: jobs that accept several pools and have no choice now. `rows`, `work`: by job and pool.
    """

    def __init__(self, state: State, posed: dict[str, Posed]) -> None:
        self.posed = posed
        self.rows: dict[str, dict[str, int]] = {}
        self.work: dict[str, dict[str, int]] = {}
        self.fixed: dict[str, str] = {}
        self.jobs: dict[str, list[str]] = {}
        priority: dict[str, int] = {}
        for pool, one in posed.items():
            least = _least_work(one.problem)
            for row, job in enumerate(one.queued):
                if len(job.pools) > 1:
                    self.rows.setdefault(job.job_id, {})[pool] = row
                    self.work.setdefault(job.job_id, {})[pool] = least[row]
                    priority[job.job_id] = max(priority.get(job.job_id, 0), int(one.problem.job_priority[row]))
        for job_id in sorted(self.rows, key=lambda name: (-priority[name], state.jobs[name].arrival)):
            accepted = [pool for pool in state.jobs[job_id].pools if pool in self.rows[job_id]]
            bound = _bound_to(state, job_id) or self._claimed_in(state, job_id)
            possible = [pool for pool in accepted if self._is_possible(job_id, pool)]
            if bound in accepted or len(possible) < 2:
                self.fixed[job_id] = bound if bound in accepted else (possible or accepted)[0]
            else:
                self.jobs[job_id] = possible

    def _claimed_in(self, state: State, job_id: str) -> str:
        """An overdue job stays where it was planned last as long as it has a place there: only there is one kept for it."""
        pool = state.jobs[job_id].planned_pool
        rows = self.rows[job_id]
        return (
            pool
            if pool in rows and job_id in self.posed[pool].claims.overdue and self._is_possible(job_id, pool)
            else ""
        )

    def _is_possible(self, job_id: str, pool: str) -> bool:
        return self.work[job_id][pool] > 0 and not self.posed[pool].problem.job_refusal[self.rows[job_id][pool]]


def _bound_to(state: State, job_id: str) -> str:
    """The pool that holds GPUs for the job; empty if none does."""
    held, promised = state.preemptions.get(job_id), state.promises.get(job_id)
    if held is not None:
        return held.pool
    return promised.pool if promised is not None and promised.start_ms is not None else ""


def _least_work(problem: Problem) -> list[int]:
    """Least GPU-steps per queued job over the sizes that the pool can form; 0 where it can form none."""
    least = np.zeros(problem.jobs, np.int64)
    job_of = np.repeat(np.arange(problem.jobs), np.diff(problem.option_ptr))
    formable = problem.option_class >= 0
    work = (problem.option_gpus * problem.option_steps)[formable]
    most = np.iinfo(np.int64).max
    least[:] = most
    np.minimum.at(least, job_of[formable], work)
    found: list[int] = np.where(least == most, 0, least).tolist()
    return found


def without_queued(posed: Posed, dropped: frozenset[str]) -> Posed:
    """The problem without these waiting jobs; everything else, and the value of everybody else, stays as it is."""
    problem = posed.problem
    kept = [row for row, name in enumerate(problem.job_ids) if name not in dropped]
    if len(kept) == problem.jobs:
        return posed
    numbers = np.array(kept, dtype=np.int64)
    pointers, rows = options_of(problem.option_ptr, numbers)
    smaller = replace(
        problem,
        job_ids=tuple(problem.job_ids[row] for row in kept),
        job_table=problem.job_table[numbers],
        option_ptr=pointers,
        option_table=problem.option_table[rows],
        job_caps=problem.job_caps[numbers],
    )
    return replace(posed, problem=smaller, queued=tuple(posed.queued[row] for row in kept))


class _Search:
    """Plans are remembered by pool, who is in it, and budget: most steps of the search change two pools at most."""

    def __init__(self, table: _Table, policy: Policy) -> None:
        self._table = table
        self._policy = policy
        self._least = {name: min(table.work[name][pool] for pool in pools) for name, pools in table.jobs.items()}
        self._bound = {pool: [job_id for job_id, bound in table.fixed.items() if bound != pool] for pool in table.posed}
        self._known: dict[tuple[str, frozenset[str], int], tuple[Posed, Plan, int, dict[str, int]]] = {}

    def best(self) -> tuple[dict[str, str], dict[str, tuple[Posed, Plan]]]:
        """The best choice found, and the plans under it."""
        preferred = {job_id: pools[0] for job_id, pools in self._table.jobs.items()}
        spread = self._spread()
        chosen = self._improved(spread if self._worth(spread, 0) > self._worth(preferred, 0) else preferred)
        if chosen != preferred and self._worth(chosen, 1) <= self._worth(preferred, 1):
            chosen = preferred
        plans = {}
        for pool in self._table.posed:
            posed, plan, *_ = self._planned(pool, self._others(chosen, pool), 1)
            plans[pool] = (posed, with_reasons(posed.problem, plan))
        return chosen, plans

    def _spread(self) -> dict[str, str]:
        """Each job where it is worth most while all that are undecided are planned everywhere."""
        chosen: dict[str, str] = {}
        for _ in range(ROUNDS_MAX):
            gains = {pool: self._planned(pool, self._others(chosen, pool), ROUND_PART)[3] for pool in self._table.posed}
            found = {}
            for job_id, pools in self._table.jobs.items():
                if job_id in chosen:
                    continue
                best = max(pools, key=lambda pool: gains[pool].get(job_id, 0))
                if gains[best].get(job_id, 0) > 0:
                    found[job_id] = best
            if not found:
                break
            chosen |= found
        return {job_id: chosen.get(job_id, pools[0]) for job_id, pools in self._table.jobs.items()}

    def _improved(self, chosen: dict[str, str]) -> dict[str, str]:
        """Jobs change pools, alone or two for two, where that gains."""
        tried, jobs = 0, sum(posed.problem.jobs for posed in self._table.posed.values())
        tries = min(MOVES_MAX, max(MOVES_MIN, MOVED_JOBS // max(1, jobs)))
        for moved in self._moves(chosen):
            other = chosen | moved
            touched = tuple(sorted({*moved.values(), *(chosen[job_id] for job_id in moved)}))
            if other == chosen or not touched:
                continue
            if self._worth(other, 0, touched) > self._worth(chosen, 0, touched):
                chosen = other
            tried += 1
            if tried == tries:
                break
        return chosen

    def _moves(self, chosen: dict[str, str]) -> Iterator[dict[str, str]]:
        """Jobs without a place first, then those that wait, then the others; the best of each first. Last, pairs that change places."""
        starts: dict[str, int] = {}
        for pool in self._table.posed:
            posed, plan, *_ = self._planned(pool, self._others(chosen, pool), 0)
            starts |= {job.job_id: int(plan.start[row]) for row, job in enumerate(posed.queued)}
        order = sorted(self._table.jobs, key=lambda name: (starts[name] >= 0) + (starts[name] == 0))
        for job_id in order:
            yield from ({job_id: pool} for pool in self._table.jobs[job_id] if pool != chosen[job_id])
        for first, second in combinations(order, 2):
            here, there = chosen[first], chosen[second]
            if here != there and there in self._table.jobs[first] and here in self._table.jobs[second]:
                yield {first: there, second: here}

    def _others(self, chosen: Mapping[str, str], pool: str) -> frozenset[str]:
        return frozenset([job_id for job_id, found in chosen.items() if found != pool] + self._bound[pool])

    def _worth(self, chosen: Mapping[str, str], part: int, pools: tuple[str, ...] = ()) -> int:
        """Of these pools' plans together (all pools, if none are named)."""
        return sum(self._planned(pool, self._others(chosen, pool), part)[2] for pool in pools or self._table.posed)

    def _planned(self, pool: str, others: frozenset[str], part: int) -> tuple[Posed, Plan, int, dict[str, int]]:
        """Problem, plan, worth in the common currency, and that of each job with a choice. `part` 0: the first legal grid."""
        key = (pool, others, part)
        if key not in self._known:
            posed = without_queued(self._table.posed[pool], others)
            budget = decision_iterations(posed.problem, self._policy.iterations) // part if part else 0
            plan = plan_compared(posed.problem, budget, self._policy.seed)
            self._known[key] = (posed, plan, *self._valued(pool, posed, plan))
        return self._known[key]

    def _valued(self, pool: str, posed: Posed, plan: Plan) -> tuple[int, dict[str, int]]:
        problem = posed.problem
        unit = WEIGHT_ONE_MAX // problem.weight_one
        gains = job_gains(problem, plan.start, plan.option).tolist()
        worth, of_jobs = plan.value, {}
        for name, gain in zip(problem.job_ids, gains, strict=True):
            least = self._least.get(name)
            if least is None or not gain:
                continue
            fair = gain * least // self._table.work[name][pool]
            worth += fair - gain
            of_jobs[name] = fair * unit
        return worth * unit, of_jobs

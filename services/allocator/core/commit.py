"""From a plan to the part of it that is committed now: starts at step 0, GPUs of applications in step 0, changed reasons."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from schemas.decisions import DecisionInput, Effect, Placed, Preempted, Promised, Scaled, StopOrdered, Waits
from schemas.executions import StopCause
from schemas.jobs import JobAccepted
from schemas.records import Now
from schemas.registry import TYPE_OF
from services.allocator.core.advice import better_plan
from services.allocator.core.better_pool import kept_for_better
from services.allocator.core.claims import claims_first
from services.allocator.core.config import Policy
from services.allocator.core.heuristic import decision_iterations
from services.allocator.core.holders import Holders
from services.allocator.core.index import index_of
from services.allocator.core.layout import pools_of
from services.allocator.core.leaving import while_leaving, within_peak
from services.allocator.core.plan import Plan
from services.allocator.core.planned_starts import agreed, keep_promises
from services.allocator.core.pool_choice import choose_pools
from services.allocator.core.pose import Posed
from services.allocator.core.preempt import preemptions
from services.allocator.core.problem import Ints
from services.allocator.core.reasons import Reason
from services.allocator.core.slots import is_due_to_leave
from services.allocator.core.spare import idle_gpus, with_spare
from services.allocator.core.starts import start_on
from services.allocator.core.state import Changes, Job, State

HOLDERS_JOBS_MAX = 256
"""Holders are named for so many jobs per decision: names are what makes a record large."""
HOLDERS_MAX = 4
LIMIT_GRACE_S = 900.0
"""So long after the limit, counted from the report of the start, the allocator stops a job itself. More than the clocks of two
allocators may differ by: one heard of the start, the other may be the one that stops."""
FOLLOWED_PART = 4
"""The search from full mode's answer gets this part of the budget of fast mode's own: it begins near its end."""
_ACCEPTED = TYPE_OF[JobAccepted]
_NAMES = {reason.value: reason.public_name for reason in Reason}
_LATER = Reason.PLANNED_LATER.public_name


def timed_stops(state: State, now: Now) -> list[Effect]:
    """Stops that are due because time passed: time limits and drain deadlines."""
    effects: list[Effect] = []
    for job in index_of(state).holders():
        if not job.holds_gpus or job.stop_cause:
            continue
        if job.started_ms is not None and now.domain_ms >= limit_ms(job):
            effects.append(StopOrdered(job_id=job.job_id, attempt=job.attempt, cause=StopCause.TIME_LIMIT))
        elif any(_drained(state, part.node, now) or is_due_to_leave(state, part, now.domain_ms) for part in job.parts):
            effects.append(StopOrdered(job_id=job.job_id, attempt=job.attempt, cause=StopCause.DRAIN))
    return effects


def limit_ms(job: Job) -> int:
    """Domain time at which a started job has used up its time limit whatever the clocks say. Its executor, which measures on the
    machine, stops it before; this is for one that doesn't."""
    return max(job.heard_ms, job.started_ms or 0) + int((job.spec.time_limit_s + LIMIT_GRACE_S) * 1000)


def _drained(state: State, node_id: str, now: Now) -> bool:
    node = state.nodes.get(node_id)
    return node is not None and node.draining and now.domain_ms >= node.drain_deadline_ms


def newcomers(state: State, inputs: list[DecisionInput], changes: Changes, policy: Policy) -> list[Effect] | None:
    """What to say if all that happened is that jobs arrived whose forecasts are on their way: nothing can start, so no plan is made.

    None: something else happened, or they shall not wait. The plan comes with the forecasts, or when the wait is over.
    """
    if not inputs or not state.nodes or policy.forecast_wait_ms <= 0 or any(item.type != _ACCEPTED for item in inputs):
        return None
    jobs = [state.jobs.get(job_id) for job_id in changes.jobs]
    found: list[Effect] = []
    for job in jobs:
        if job is None or job.parts or job.forecast or job.reason:
            return None
        found.append(Waits(job_id=job.job_id, reason=_NAMES[Reason.AWAITING_FORECAST.value], holders=[]))
    return found


class _Wait(NamedTuple):
    """A waiting job's row in the plan of pool number `at`; -1: in no plan. `victims`: of one for which running jobs stop now."""

    reason: int
    planned_ms: int | None
    at: int = -1
    row: int = -1
    victims: tuple[str, ...] = ()


def plan_effects(
    state: State, memory_mib: dict[str, int], policy: Policy, now: Now
) -> tuple[list[Effect], list[Posed], list[Plan]]:
    """Plan every pool and list what to commit now. Also returns the problems and plans, for the verifier and for people."""
    effects: list[Effect] = []
    posed_pools: list[Posed] = []
    plans: list[Plan] = []
    placed: set[str] = set()
    waits: dict[str, _Wait] = {}
    said: list[Promised] = []
    choice = choose_pools(state, memory_mib, policy, now)
    for pool in pools_of(state):
        posed, plan = choice.planned_in(state, pool, memory_mib.get(pool, 0), frozenset(placed), policy, now)
        budget = decision_iterations(posed.problem, policy.iterations)
        plan = better_plan(posed, state.advice.get(pool), plan, policy, now, budget // FOLLOWED_PART)
        plan = claims_first(posed, posed.problem, plan, budget, policy)
        plan, words = keep_promises(state, posed, plan, budget, policy, now)
        said.extend(words)
        effects.extend(_scalings(posed, plan, policy, now))
        for effect in _starts(state, posed, plan, policy):
            placed.add(effect.job_id)
            effects.append(effect)
        effects.extend(preemptions(state, posed, plan, _given(posed, effects), effects, policy, now))
        _gather_waits(posed, plan, len(plans), policy, now, waits)
        posed_pools.append(posed)
        plans.append(plan)
    waits |= _unplanned(state, posed_pools)
    promised = [effect for effect in agreed(state, said) if effect.job_id not in placed]
    _keep_word(state, promised, waits)
    effects.extend(promised)
    for job_id in kept_for_better(choice, posed_pools, plans):
        waits[job_id] = waits[job_id]._replace(reason=Reason.WAITS_FOR_BETTER_POOL.value)
    for taken in [effect for effect in effects if isinstance(effect, Preempted)]:
        # it is told so now, not when the next plan finds its block held
        waits[taken.job_id] = waits[taken.job_id]._replace(
            reason=Reason.TAKES_A_PLACE.value, planned_ms=None, victims=tuple(taken.victims)
        )
    changed = _Changed(posed_pools, plans, policy, now)
    effects.extend(changed.waits(state, waits, placed))
    return effects, posed_pools, plans


def _given(posed: Posed, effects: list[Effect]) -> Ints:
    """Grid numbers of the pool that this decision gives to somebody, or leaves to an application."""
    return np.array(
        [
            number
            for effect in effects
            if isinstance(effect, Placed | Scaled) and effect.pool == posed.pool
            for part in effect.placed
            for number in posed.layout.numbers(part.node, part.gpus)
        ],
        dtype=np.int64,
    )


def _starts(state: State, posed: Posed, plan: Plan, policy: Policy) -> list[Placed]:
    effects = []
    for row in plan.starts_now().tolist():
        job = posed.queued[row]
        first, gpus = int(plan.first_gpu[row]), int(posed.problem.option_gpus[plan.option[row]])
        effects.append(start_on(state, job, posed.pool, posed.layout.local(list(range(first, first + gpus))), policy))
    return effects


def _scalings(posed: Posed, plan: Plan, policy: Policy, now: Now) -> list[Scaled]:
    """Applications whose GPUs change now. Losses come before gains, so that a GPU handed over is never held twice."""
    changed: list[tuple[int, Scaled]] = []
    idle = idle_gpus(posed.problem, plan)
    taken = reserved_now(posed)  # a reservation takes what it takes: no choice, so no switch
    for row, app in sorted(enumerate(posed.apps), key=lambda item: (-item[1].spec.priority, item[1].app_id)):
        held = sorted(
            number
            for part in app.parts
            if part.node in posed.layout.first
            for number in posed.layout.numbers(part.node, part.gpus)
        )
        used = app.switched if app.bucket == now.domain_ms // policy.step_ms else 0
        wanted = while_leaving(posed, row, plan.app_gpus(row, 0), held, taken, idle, used)
        wanted = with_spare(posed, row, wanted, held, idle, policy, used)
        wanted = within_peak(app, posed.layout, wanted, held)
        if wanted == held:
            continue
        switched = len((set(wanted) ^ set(held)) - (taken - set(wanted))) if held else 0
        effect = Scaled(app_id=app.app_id, pool=posed.pool, placed=posed.layout.local(wanted), switched=switched)
        changed.append((len(wanted) - len(held), effect))
    return [effect for _, effect in sorted(changed, key=lambda item: (item[0], item[1].app_id))]


def reserved_now(posed: Posed) -> set[int]:
    """Grid numbers that a reservation takes in step 0."""
    rows = posed.problem.reservations.tolist()
    return {gpu for first, size, start, end in rows if start <= 0 < end for gpu in range(first, first + size)}


def withheld(state: State, planned: list[Effect]) -> list[Effect]:
    """Of a plan that the check refuses: what it says to those who wait. Whoever would have started waits, too, and is told so."""
    found: list[Effect] = []
    taking = {effect.job_id for effect in planned if isinstance(effect, Preempted)}
    for effect in planned:
        if isinstance(effect, Waits):  # nobody is stopped for those who were to take a place
            later = effect.job_id in taking
            found.append(msgspec.structs.replace(effect, reason=_LATER, holders=[]) if later else effect)
    for effect in planned:
        if isinstance(effect, Placed) and not state.jobs[effect.job_id].reason:
            found.append(Waits(job_id=effect.job_id, reason=_LATER, holders=[]))
    return found


def _gather_waits(posed: Posed, plan: Plan, at: int, policy: Policy, now: Now, waits: dict[str, _Wait]) -> None:
    """Who waits in this pool, each in one: those that accept several were given one before (`pool_choice.py`)."""
    now_ms, step_ms = now.domain_ms, policy.step_ms
    rows = zip(posed.queued, plan.start.tolist(), plan.reason.tolist(), strict=True)
    for row, (job, start, reason) in enumerate(rows):
        if start == 0 or not reason:
            continue
        waits[job.job_id] = _Wait(reason, now_ms + start * step_ms if start > 0 else None, at, row)


def _keep_word(state: State, promised: list[Promised], waits: dict[str, _Wait]) -> None:
    """A promised start is what is said, though steps from now end a little later."""
    starts = {job_id: promise.start_ms for job_id, promise in state.promises.items()}
    starts |= {effect.job_id: effect.start_ms for effect in promised}
    for job_id, start_ms in starts.items():
        wait = waits.get(job_id)
        if wait is not None and start_ms is not None and wait.planned_ms is not None and wait.planned_ms > start_ms:
            waits[job_id] = wait._replace(planned_ms=start_ms)


def _unplanned(state: State, posed_pools: list[Posed]) -> dict[str, _Wait]:
    """Queued jobs that no pool's plan had room for wait behind the others; those none of whose pools has a node wait for one.

    Only jobs that say something else so far are listed.
    """
    index = index_of(state)
    pools = {posed.pool for posed in posed_pools}
    found: dict[str, _Wait] = {}
    if any(posed.more for posed in posed_pools):
        planned = {job.job_id for posed in posed_pools for job in posed.queued}
        behind = _Wait(Reason.BEHIND_PRIORITY.value, None)
        for job in index.in_order(index.unsettled.values()):
            if job.job_id not in planned and not pools.isdisjoint(job.pools):
                found[job.job_id] = behind
    nowhere = [group for (names, _), group in index.waiting.items() if pools.isdisjoint(names)]
    for job in index.in_order(job for group in nowhere for job in group.jobs()):
        found[job.job_id] = _Wait(Reason.NO_CAPACITY.value, None)
    return found


class _Changed:
    """What to say about waiting jobs that differs from what was said. Holders and the pessimistic start are worked out for
    these alone; for all jobs they would cost more than the plan."""

    def __init__(self, posed_pools: list[Posed], plans: list[Plan], policy: Policy, now: Now) -> None:
        self._posed = posed_pools
        self._plans = plans
        self._policy = policy
        self._now_ms = now.domain_ms
        self._holders = [
            Holders(posed.problem, plan, HOLDERS_MAX) for posed, plan in zip(posed_pools, plans, strict=True)
        ]

    def waits(self, state: State, waits: dict[str, _Wait], placed: set[str]) -> list[Waits]:
        """Another reason, or a planned start that moved by at least a step. Bounded per decision."""
        changed: list[Waits] = []
        jobs, step_ms = state.jobs, self._policy.step_ms
        for job_id, wait in waits.items():
            job = jobs[job_id]
            stays = (_NAMES[wait.reason], self._pool_of(job, wait) or "") == (job.reason, job.planned_pool)
            if stays and not _moved(job.planned_start_p50_ms, wait.planned_ms, step_ms):
                continue
            if job_id in placed:
                continue
            changed.append(self._said(job, wait, len(changed) < HOLDERS_JOBS_MAX))
            if len(changed) == self._policy.waits_max:
                break
        return changed

    def _pool_of(self, job: Job, wait: _Wait) -> str | None:
        """Where it waits, if it accepts several pools."""
        return self._posed[wait.at].pool if wait.at >= 0 and len(job.pools) > 1 else None

    def _said(self, job: Job, wait: _Wait, name_holders: bool) -> Waits:
        planned = wait.at >= 0
        late_ms: int | None = None
        if planned and wait.planned_ms is not None:
            late_ms = self._now_ms + self._pessimistic_step(wait) * self._policy.step_ms
        return Waits(
            job_id=job.job_id,
            reason=_NAMES[wait.reason],
            holders=list(wait.victims[:HOLDERS_MAX]) or self._named(wait, name_holders),
            planned_start_p50_ms=wait.planned_ms,
            planned_start_p90_ms=late_ms,
            pool=self._pool_of(job, wait),
        )

    def _named(self, wait: _Wait, name_holders: bool) -> list[str]:
        return self._holders[wait.at].of(wait.row) if wait.at >= 0 and name_holders else []

    def _pessimistic_step(self, wait: _Wait) -> int:
        """The step at which the planned block is free if everyone on it now takes as long as their P90 says."""
        problem, plan = self._posed[wait.at].problem, self._plans[wait.at]
        first = int(plan.first_gpu[wait.row])
        end = first + int(problem.option_gpus[plan.option[wait.row]])
        overlaps = (problem.running_first < end) & (problem.running_first + problem.running_gpus > first)
        latest = int(problem.running_hold[overlaps].max()) if overlaps.any() else 0
        return max(int(plan.start[wait.row]), latest)


def _moved(before_ms: int | None, after_ms: int | None, step_ms: int) -> bool:
    if before_ms is None or after_ms is None:
        return before_ms is not after_ms
    return abs(after_ms - before_ms) >= step_ms

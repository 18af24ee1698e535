"""From a plan to the part of it that is committed now: starts at step 0, GPUs of applications in step 0, changed reasons."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.decisions import Effect, Placed, Scaled, StopOrdered, Waits
from schemas.executions import StopCause
from schemas.records import Now
from services.allocator.core.config import Policy
from services.allocator.core.heuristic import plan_fast
from services.allocator.core.holders import Holders
from services.allocator.core.index import index_of
from services.allocator.core.layout import pools_of
from services.allocator.core.plan import Plan
from services.allocator.core.pose import Posed, expected_s, pose
from services.allocator.core.reasons import Reason
from services.allocator.core.state import Job, State

HOLDERS_MAX = 4


def timed_stops(state: State, now: Now) -> list[Effect]:
    """Stops that are due because time passed: time limits and drain deadlines."""
    effects: list[Effect] = []
    for job in index_of(state).holders():
        if not job.holds_gpus or job.stop_cause:
            continue
        if job.started_ms is not None and now.domain_ms >= limit_ms(job):
            effects.append(StopOrdered(job_id=job.job_id, attempt=job.attempt, cause=StopCause.TIME_LIMIT))
        elif any(_drained(state, part.node, now) for part in job.parts):
            effects.append(StopOrdered(job_id=job.job_id, attempt=job.attempt, cause=StopCause.DRAIN))
    return effects


def limit_ms(job: Job) -> int:
    """Domain time at which a started job has used up its time limit."""
    return (job.started_ms or 0) + int(job.spec.time_limit_s * 1000)


def _drained(state: State, node_id: str, now: Now) -> bool:
    node = state.nodes.get(node_id)
    return node is not None and node.draining and now.domain_ms >= node.drain_deadline_ms


@dataclass(frozen=True, slots=True)
class _Wait:
    """A waiting job's row in the plan of the pool that would start it first; no plan: no pool has a node for it."""

    reason: Reason
    planned_ms: int | None
    posed: Posed | None = None
    plan: Plan | None = None
    row: int = -1


def plan_effects(
    state: State, memory_mib: dict[str, int], policy: Policy, now: Now
) -> tuple[list[Effect], list[Posed], list[Plan]]:
    """Plan every pool and list what to commit now. Also returns the problems and plans, for the verifier and for people."""
    effects: list[Effect] = []
    posed_pools: list[Posed] = []
    plans: list[Plan] = []
    placed: set[str] = set()
    waits: dict[str, _Wait] = {}
    for pool in pools_of(state):
        posed = pose(state, pool, memory_mib.get(pool, 0), policy, now, frozenset(placed))
        plan = plan_fast(posed.problem, policy.iterations, policy.seed)
        effects.extend(_scalings(posed, plan))
        for effect in _starts(posed, plan, policy):
            placed.add(effect.job_id)
            effects.append(effect)
        _gather_waits(posed, plan, policy, now, waits)
        posed_pools.append(posed)
        plans.append(plan)
    waits |= _unplanned(state, posed_pools)
    effects.extend(_changed_waits(state, waits, placed, policy, now))
    return effects, posed_pools, plans


def _starts(posed: Posed, plan: Plan, policy: Policy) -> list[Placed]:
    effects = []
    for row in plan.starts_now().tolist():
        job = posed.queued[row]
        first, gpus = int(plan.first_gpu[row]), int(posed.problem.option_gpus[plan.option[row]])
        p50, p90 = expected_s(job, gpus, policy)
        left = 1.0 - job.fraction
        effects.append(
            Placed(
                job_id=job.job_id,
                attempt=job.attempt + 1,
                pool=posed.pool,
                gpus=gpus,
                placed=posed.layout.local(list(range(first, first + gpus))),
                p50_s=p50 * left,
                p90_s=p90 * left,
            )
        )
    return effects


def _scalings(posed: Posed, plan: Plan) -> list[Scaled]:
    """Applications whose GPUs change now. Losses come before gains, so that a GPU handed over is never held twice."""
    changed: list[tuple[int, Scaled]] = []
    for row, app in enumerate(posed.apps):
        wanted = plan.app_gpus(row, 0)
        held = sorted(
            number
            for part in app.parts
            if part.node in posed.layout.first
            for number in posed.layout.numbers(part.node, part.gpus)
        )
        if wanted == held:
            continue
        switched = len(set(wanted) ^ set(held)) if held else 0
        effect = Scaled(app_id=app.app_id, pool=posed.pool, placed=posed.layout.local(wanted), switched=switched)
        changed.append((len(wanted) - len(held), effect))
    return [effect for _, effect in sorted(changed, key=lambda item: (item[0], item[1].app_id))]


def _gather_waits(posed: Posed, plan: Plan, policy: Policy, now: Now, waits: dict[str, _Wait]) -> None:
    """Who waits in this pool; of several pools the one with the earliest planned start speaks."""
    starts, reasons = plan.start.tolist(), plan.reason.tolist()
    for row, job in enumerate(posed.queued):
        if starts[row] == 0 or not reasons[row]:
            continue
        planned = now.domain_ms + starts[row] * policy.step_ms if starts[row] > 0 else None
        known = waits.get(job.job_id)
        if known is None or (planned is not None and (known.planned_ms is None or planned < known.planned_ms)):
            waits[job.job_id] = _Wait(Reason(reasons[row]), planned, posed, plan, row)


def _unplanned(state: State, posed_pools: list[Posed]) -> dict[str, _Wait]:
    """Queued jobs that no pool's plan had room for wait behind the others; those none of whose pools has a node wait for one.

    Only jobs that say something else so far are listed.
    """
    index = index_of(state)
    pools = {posed.pool for posed in posed_pools}
    found: dict[str, _Wait] = {}
    if any(posed.more for posed in posed_pools):
        planned = {job.job_id for posed in posed_pools for job in posed.queued}
        behind = _Wait(Reason.BEHIND_PRIORITY, None)
        for job in index.in_order(index.unsettled.values()):
            if job.job_id not in planned and not pools.isdisjoint(job.pools):
                found[job.job_id] = behind
    nowhere = [group for names, group in index.waiting.items() if pools.isdisjoint(names)]
    for job in index.in_order(job for group in nowhere for job in group.jobs()):
        found[job.job_id] = _Wait(Reason.NO_CAPACITY, None)
    return found


def _changed_waits(state: State, waits: dict[str, _Wait], placed: set[str], policy: Policy, now: Now) -> list[Waits]:
    """Only what changed: another reason, or a planned start that moved by at least a step. Bounded per decision.

    Holders and the pessimistic start are worked out for these alone; they cost more than the plan itself.
    """
    changed: list[Waits] = []
    holders: dict[str, Holders] = {}
    for job_id, wait in waits.items():
        job = state.jobs[job_id]
        if job_id in placed or (
            wait.reason.public_name == job.reason
            and not _moved(job.planned_start_p50_ms, wait.planned_ms, policy.step_ms)
        ):
            continue
        changed.append(_waits(job_id, wait, holders, policy, now))
        if len(changed) == policy.waits_max:
            break
    return changed


def _waits(job_id: str, wait: _Wait, holders: dict[str, Holders], policy: Policy, now: Now) -> Waits:
    named: list[str] = []
    late: int | None = None
    if wait.posed is not None and wait.plan is not None:
        pool = wait.posed.pool
        if pool not in holders:
            holders[pool] = Holders(wait.posed.problem, wait.plan, HOLDERS_MAX)
        named = holders[pool].of(wait.row)
        if wait.planned_ms is not None:
            late = now.domain_ms + _pessimistic_step(wait.posed, wait.plan, wait.row) * policy.step_ms
    return Waits(
        job_id=job_id,
        reason=wait.reason.public_name,
        holders=named,
        planned_start_p50_ms=wait.planned_ms,
        planned_start_p90_ms=late,
    )


def _pessimistic_step(posed: Posed, plan: Plan, row: int) -> int:
    """The step at which the planned block is free if everyone on it now takes as long as their P90 says."""
    problem = posed.problem
    first, gpus = int(plan.first_gpu[row]), int(problem.option_gpus[plan.option[row]])
    overlaps = (problem.running_first < first + gpus) & (problem.running_first + problem.running_gpus > first)
    latest = int(problem.running_hold[overlaps].max()) if overlaps.any() else 0
    return max(int(plan.start[row]), latest)


def _moved(before_ms: int | None, after_ms: int | None, step_ms: int) -> bool:
    if before_ms is None or after_ms is None:
        return before_ms is not after_ms
    return abs(after_ms - before_ms) >= step_ms

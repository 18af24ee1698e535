"""From a plan to the part of it that is committed now: starts at step 0, GPUs of applications in step 0, changed reasons."""

from __future__ import annotations

from schemas.decisions import Effect, Placed, Scaled, StopOrdered, Waits
from schemas.executions import StopCause
from schemas.records import Now
from schemas.status import JobState
from services.allocator.core.config import Policy
from services.allocator.core.heuristic import plan_fast
from services.allocator.core.layout import pools_of
from services.allocator.core.plan import Plan
from services.allocator.core.pose import Posed, expected_s, pose
from services.allocator.core.reasons import Reason
from services.allocator.core.state import Job, State
from services.allocator.core.waiting import blockers_of

HOLDERS_JOBS_MAX = 64
"""Holders are named for the first jobs of the queue only: naming them for thousands costs more than anyone reads."""
HOLDERS_MAX = 4


def timed_stops(state: State, now: Now) -> list[Effect]:
    """Stops that are due because time passed: time limits and drain deadlines."""
    effects: list[Effect] = []
    for job in state.jobs.values():
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


def plan_effects(
    state: State, memory_mib: dict[str, int], policy: Policy, now: Now
) -> tuple[list[Effect], list[Posed], list[Plan]]:
    """Plan every pool and list what to commit now. Also returns the problems and plans, for the verifier and for people."""
    effects: list[Effect] = []
    posed_pools: list[Posed] = []
    plans: list[Plan] = []
    placed: set[str] = set()
    waits: dict[str, Waits] = {}
    for pool in pools_of(state):
        posed = pose(state, pool, memory_mib.get(pool, 0), policy, now, frozenset(placed))
        plan = plan_fast(posed.problem, policy.iterations, policy.seed)
        effects.extend(_scalings(posed, plan))
        for effect in _starts(posed, plan, policy):
            placed.add(effect.job_id)
            effects.append(effect)
        for wait in _waiting(posed, plan, policy, now):
            known = waits.get(wait.job_id)
            if known is None or (wait.planned_start_p50_ms or now.domain_ms * 2) < (
                known.planned_start_p50_ms or now.domain_ms * 2
            ):
                waits[wait.job_id] = wait
        posed_pools.append(posed)
        plans.append(plan)
    waits.update(_without_pool(state, {posed.pool for posed in posed_pools}))
    effects.extend(_changed_waits(state, waits, placed, policy))
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


def _waiting(posed: Posed, plan: Plan, policy: Policy, now: Now) -> list[Waits]:
    waits = []
    order = sorted(
        range(len(posed.queued)), key=lambda row: (-int(posed.problem.job_priority[row]), posed.queued[row].arrival)
    )
    named = 0
    for row in order:
        reason = plan.reason_of(row)
        if plan.start[row] == 0 or reason is Reason.NONE:
            continue
        job = posed.queued[row]
        planned = now.domain_ms + int(plan.start[row]) * policy.step_ms if plan.start[row] > 0 else None
        holders: list[str] = []
        if named < HOLDERS_JOBS_MAX and job.state is JobState.QUEUED:
            holders = [blocker.id for blocker in blockers_of(posed.problem, plan, row, HOLDERS_MAX)]
            named += 1
        late = None if planned is None else now.domain_ms + _pessimistic_step(posed, plan, row) * policy.step_ms
        waits.append(
            Waits(
                job_id=job.job_id,
                reason=reason.public_name,
                holders=holders,
                planned_start_p50_ms=planned,
                planned_start_p90_ms=late,
            )
        )
    return waits


def _without_pool(state: State, pools: set[str]) -> dict[str, Waits]:
    """Queued jobs none of whose pools has a node yet: they wait for capacity, and say so."""
    return {
        job.job_id: Waits(job_id=job.job_id, reason=Reason.NO_CAPACITY.public_name)
        for job in state.jobs.values()
        if not job.parts and not pools.intersection(job.pools)
    }


def _pessimistic_step(posed: Posed, plan: Plan, row: int) -> int:
    """The step at which the planned block is free if everyone on it now takes as long as their P90 says."""
    problem = posed.problem
    first, gpus = int(plan.first_gpu[row]), int(problem.option_gpus[plan.option[row]])
    overlaps = (problem.running_first < first + gpus) & (problem.running_first + problem.running_gpus > first)
    latest = int(problem.running_hold[overlaps].max()) if overlaps.any() else 0
    return max(int(plan.start[row]), latest)


def _changed_waits(state: State, waits: dict[str, Waits], placed: set[str], policy: Policy) -> list[Waits]:
    """Only what changed: another reason, or a planned start that moved by at least a step. Bounded per decision."""
    changed = []
    for job_id, wait in waits.items():
        if job_id in placed:
            continue
        job = state.jobs[job_id]
        if wait.reason != job.reason or _moved(job.planned_start_p50_ms, wait.planned_start_p50_ms, policy.step_ms):
            changed.append(wait)
            if len(changed) == policy.waits_max:
                break
    return changed


def _moved(before_ms: int | None, after_ms: int | None, step_ms: int) -> bool:
    if before_ms is None or after_ms is None:
        return before_ms is not after_ms
    return abs(after_ms - before_ms) >= step_ms

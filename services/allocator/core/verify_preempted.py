"""The independent check of one place taken by rule: `verify_commit` for the effect `preempted`. Shares no code with planning.

Owns: who may take it from whom, how often a job may lose its place, and that the taker's waiting outweighs what saving costs.
Read next: docs/policy.md, "Taking a place".
"""

from __future__ import annotations

from math import ceil

from schemas.decisions import Effect, Preempted
from schemas.jobs import CheckpointMode
from schemas.records import Now
from services.allocator.core.config import Policy
from services.allocator.core.groups import team_rules
from services.allocator.core.state import Job, State


def check_preempted(state: State, effect: Preempted, effects: list[Effect], policy: Policy, now: Now) -> list[str]:
    """A place is taken by rule only: from whom, by whom, how often, not again from the same one, and for more than it costs."""
    job = state.jobs.get(effect.job_id)
    mine = None if job is None else state.rules.queues.get(job.spec.queue)
    if job is None or job.parts or mine is None or not mine.preempts:
        return [f"{effect.job_id} may not take a place"]
    found = []
    leaving = _leaving(state, job, effects)
    if leaving + len(effect.victims) > mine.victims_max:
        beside = f" beside {leaving}" if leaving else ""
        found.append(f"{effect.job_id} takes {len(effect.victims)} places{beside}, {mine.victims_max} allowed")
    most, cards = (
        _priority_most(state, job, effect.pool, now),
        {(at.node, gpu) for at in effect.placed for gpu in at.gpus},
    )
    lost_gpu_s = lost = 0.0
    for name in effect.victims:
        victim = state.jobs.get(name)
        theirs = None if victim is None else state.rules.queues.get(victim.spec.queue)
        if victim is None or theirs is None or not theirs.preemptible or victim.started_ms is None:
            found.append(f"{name} may not lose its place to {effect.job_id}")
            continue
        if victim.spec.checkpoint.mode is CheckpointMode.NONE or effect.job_id in victim.preempted_by:
            found.append(f"{name} can't save its work, or lost its place to {effect.job_id} before")
        if victim.took_place:
            found.append(f"{name} took its place by rule itself")
        if sum(now.domain_ms - at_ms < theirs.preempted_window_s * 1000 for at_ms in victim.preempted_ms) >= (
            theirs.preempted_max
        ):
            found.append(f"{name} has lost its place {theirs.preempted_max} times in {theirs.preempted_window_s:g} s")
        if victim.spec.priority * 1000 >= most:
            found.append(f"{name} is not of lower priority than {effect.job_id}")
        if now.domain_ms - victim.started_ms < mine.runtime_min_s * 1000:
            found.append(f"{name} has not run for {mine.runtime_min_s:g} s yet")
        if not any((part.node, gpu) in cards for part in victim.parts for gpu in part.gpus):
            found.append(f"{name} holds nothing of the block taken for {effect.job_id}")
        unsaved_s = (now.domain_ms - max(victim.started_ms, victim.saved_ms)) / 1000
        stake = victim.gpus * (unsaved_s + victim.spec.checkpoint.cost_s)
        lost_gpu_s += stake
        lost += victim.spec.priority * 1000 * victim.gpus * victim.spec.checkpoint.cost_s
    if effect.wait_saved_s > policy.steps * policy.step_s:
        found.append(f"{effect.job_id} can't save {effect.wait_saved_s:g} s of waiting, nobody plans that far")
    if effect.at_stake_gpu_s < lost_gpu_s - len(effect.victims):
        found.append(f"{effect.job_id} tells {effect.at_stake_gpu_s:g} GPU-seconds at stake instead of {lost_gpu_s:g}")
    if most * len(cards) * effect.wait_saved_s <= lost:
        found.append(f"{effect.job_id} takes a place for less waiting than saving the work costs")
    return found


def _leaving(state: State, job: Job, effects: list[Effect]) -> int:
    """Jobs that are on their way out for others of the same queue, by earlier decisions and this one."""
    leaving = [
        (other, name)
        for other, held in state.preemptions.items()
        for name in held.victims
        if name in state.jobs and state.jobs[name].parts and state.jobs[name].stop_cause
    ]
    leaving += [(other.job_id, name) for other in effects if isinstance(other, Preempted) for name in other.victims]
    return sum(
        other != job.job_id and other in state.jobs and state.jobs[other].spec.queue == job.spec.queue
        for other, _ in leaving
    )


def _priority_most(state: State, job: Job, pool: str, now: Now) -> int:
    """In thousandths, the highest priority that the job's spec, its waiting and the rules can give it. What other jobs have a part in
    (shares, guarantees) and forecasts (deadlines) counts as far as it could go."""
    rules, waited_s = state.rules, (now.domain_ms - job.submitted_ms) / 1000
    aging = min(rules.aging.priority_max, max(0.0, waited_s - rules.aging.after_s) / 3600 * rules.aging.per_hour)
    most = job.spec.priority + aging + (0 if job.spec.deadline_ms is None else 4)
    if rules.fair_share > 0:
        most *= 1.001 + rules.fair_share / 2  # factors are whole thousandths
    if team_rules(rules, job.spec.team).guaranteed.get(pool, 0) >= min(job.spec.sizes):
        most += 200
    if job.restores or (rules.aging.overdue_s is not None and waited_s >= rules.aging.overdue_s):
        most += 400
    return ceil(most * 1000)

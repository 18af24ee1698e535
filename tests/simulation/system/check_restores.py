"""Judges whether a gang that lost a node comes back before fresh jobs get the slots it could have had.

The question is put to the planner without the fresh jobs: had nobody but the gang waited, would it start now? Then it must not wait while
one of them starts. Owns: when that question has one answer. Refuses: cases in which others than the gang and fresh jobs have a say (a
promised start, a place taken by rule, a second overdue job, a choice between pools). Read next: `check_log.py` (who asks), docs/policy.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schemas.decisions import Effect, Placed
from schemas.records import Now
from services.allocator.core.config import Policy
from services.allocator.core.heuristic import plan_compared
from services.allocator.core.pose import pose
from services.allocator.core.state import Job, State, forget_index


def passed_over(
    state: State, effects: Sequence[Effect], memory_mib: Mapping[str, int], policy: Policy, now: Now
) -> list[str]:
    """Sentences about one decision. `state`: with its inputs, before its effects; its index is forgotten afterwards."""
    placed = {effect.job_id: effect for effect in effects if isinstance(effect, Placed)}
    restoring = [job for job in state.jobs.values() if job.restores and not job.parts]
    if not placed or len(restoring) != 1 or restoring[0].job_id in placed or state.promises or state.preemptions:
        return []
    gang = restoring[0]
    fresh = sorted(job_id for job_id, effect in placed.items() if [effect.pool] == gang.pools)
    if not fresh or not _starts_alone(state, gang, memory_mib.get(gang.pools[0], 0), policy, now):
        return []
    return [f"{', '.join(fresh)} start while {gang.job_id}, which lost a node, could have started in their stead"]


def _starts_alone(state: State, gang: Job, memory_mib: int, policy: Policy, now: Now) -> bool:
    overdue_s = state.rules.aging.overdue_s
    others = [job for job in state.jobs.values() if not job.parts and job is not gang]
    if overdue_s is not None and any(now.domain_ms - job.submitted_ms >= overdue_s * 1000 for job in others):
        return False
    forget_index(state)
    elsewhere = frozenset(job.job_id for job in others)
    posed = pose(state, gang.pools[0], memory_mib, policy, now, frozenset(), elsewhere)
    forget_index(state)
    return bool((plan_compared(posed.problem, 0, policy.seed).start == 0).any())

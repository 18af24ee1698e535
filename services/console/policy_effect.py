"""What rules do to a cluster as it stands: use per group against its limits, and the queue planned under two sets of rules. Pure.

The plan is the allocator's own, made on a copy of its state, so the answer is the decision that would follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from schemas.decisions import Placed, Waits
from schemas.records import Now
from schemas.rules import Rules, TeamRules
from services.allocator.core.config import Policy
from services.allocator.core.groups import Group, groups_of, limits_of, maximum_of
from services.allocator.core.index import index_of
from services.allocator.core.layout import layout_of, pools_of
from services.allocator.core.quotas import factors_of, held_by, used_by_team
from services.allocator.core.state import State, forget_index
from services.allocator.core.verify_commit import verify_commit

HOUR_MS = 3_600_000
STARTS_NOW = "starts now"


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One group in one pool. None: no limit. `used_h`: GPU-hours of a team, faded with age; `factor` on its priorities."""

    group: Group
    pool: str
    gpus: int
    maximum: int | None
    guaranteed: int
    running: int
    running_max: int | None
    waiting: int
    used_h: float | None = None
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class JobEffect:
    """What a job's next decision says before and after: a reason code, or that it starts; planned starts in domain time."""

    job_id: str
    before: str
    after: str
    planned_before_ms: int | None
    planned_after_ms: int | None


def pool_sizes(state: State) -> dict[str, int]:
    """GPUs per pool, as far as nodes have reported."""
    return {pool: layout_of(state, pool).gpus for pool in pools_of(state)}


def group_uses(state: State, now_ms: int) -> list[GroupUse]:
    """Every group with jobs or limits of its own, per pool, widest groups first."""
    index = index_of(state)
    holders = [job for job in index.holders() if job.holds_gpus]
    waiting = [job for job in state.jobs.values() if not job.parts]
    groups = {group for job in [*holders, *waiting] for group in groups_of(job.spec)}
    groups |= {Group("team", name) for name in state.rules.teams} | {
        Group("queue", name) for name in state.rules.queues
    }
    use = used_by_team(state, holders, now_ms)
    factors = factors_of(state, holders, index.teams_waiting(), now_ms)
    held = held_by(holders)
    queued = Counter(group for job in waiting for group in groups_of(job.spec))
    rank = {"organisation": 0, "team": 1, "user": 2, "queue": 3}
    rows = []
    for pool in pools_of(state) or sorted({job.pool for job in holders}):
        for group in sorted(groups, key=lambda group: (rank[group.kind], group.name)):
            limits = limits_of(state.rules, group)
            is_team = group.kind == "team"
            rows.append(
                GroupUse(
                    group=group,
                    pool=pool,
                    gpus=held.gpus.get((group, pool), 0),
                    maximum=maximum_of(state.rules, group, pool),
                    guaranteed=limits.guaranteed.get(pool, 0) if isinstance(limits, TeamRules) else 0,
                    running=held.jobs.get(group, 0),
                    running_max=limits.running_max,
                    waiting=queued[group],
                    used_h=use.get(group.name, 0) / HOUR_MS if is_team else None,
                    factor=factors.get(group.name, 1000) / 1000 if is_team else None,
                )
            )
    return rows


def dry_run(
    state: State, rules: Rules, memory_mib: Mapping[str, int], policy: Policy, now: Now
) -> tuple[list[JobEffect], list[str]]:
    """Waiting jobs whose next decision differs under `rules`, and what the independent check found (nothing, or a fault)."""
    before, _ = _said(state, state.rules, memory_mib, policy, now)
    after, violations = _said(state, rules, memory_mib, policy, now)
    changed = []
    for job_id in state.jobs:
        was, will = before.get(job_id), after.get(job_id)
        if was is not None and will is not None and was != will:
            changed.append(JobEffect(job_id, was[0], will[0], was[1], will[1]))
    return changed, violations


def _said(
    state: State, rules: Rules, memory_mib: Mapping[str, int], policy: Policy, now: Now
) -> tuple[dict[str, tuple[str, int | None]], list[str]]:
    """Per waiting job (reason or start, planned start) of the decision that would be next, on a copy of the state."""
    from services.allocator.core.commit import plan_effects

    copy = msgspec.json.decode(msgspec.json.encode(state), type=State)
    copy.rules = rules
    for job in copy.jobs.values():
        job.reason, job.planned_start_p50_ms = "", None  # so that every job says where it stands, not only changes
    forget_index(copy)
    everything = msgspec.structs.replace(policy, waits_max=len(copy.jobs) + 1)
    effects, _, _ = plan_effects(copy, dict(memory_mib), everything, now)
    said: dict[str, tuple[str, int | None]] = {}
    for effect in effects:
        if isinstance(effect, Placed):
            said[effect.job_id] = (STARTS_NOW, now.domain_ms)
        elif isinstance(effect, Waits):
            said[effect.job_id] = (effect.reason, effect.planned_start_p50_ms)
    return said, verify_commit(copy, effects, policy, now)

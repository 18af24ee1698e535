"""What rules do to a cluster as it stands: use per group against its limits, and the queue planned under two sets of rules. Pure.

The decision is the allocator's own, made on a copy of its state, so the answer is the one that would follow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from schemas.codec import encode_payload
from schemas.commands import ChangeRules
from schemas.decisions import DecisionInput, DecisionMade, Effect, Placed, Preempted
from schemas.records import Now
from schemas.registry import TYPE_OF, topic_of
from schemas.rules import Rules, TeamRules
from services.allocator.core.groups import Group, groups_of, limits_of, maximum_of
from services.allocator.core.index import index_of
from services.allocator.core.layout import layout_of, pools_of
from services.allocator.core.quotas import factors_of, held_by, used_by_team
from services.allocator.core.state import State

if TYPE_CHECKING:  # what only shows use doesn't load the planner's compiler
    from services.allocator.core.decide import Settings

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
class Outcome:
    """What a decision makes of a job or application: a reason code, or that it starts, runs, stops, holds so many GPUs."""

    words: str
    planned_ms: int | None


@dataclass(frozen=True, slots=True)
class JobEffect:
    """What the next decision makes of a job without the rules and with them (`Outcome`); planned starts in domain time."""

    job_id: str
    before: str
    after: str
    planned_before_ms: int | None
    planned_after_ms: int | None


@dataclass(frozen=True, slots=True)
class Foreseen:
    """`jobs`: those for which it makes a difference. `effects`: all of the decision that puts the rules in force. `violations`: what its
    independent check found, nothing or a fault."""

    jobs: list[JobEffect]
    effects: list[Effect]
    violations: list[str]


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


def foreseen(state: State, rules: Rules, settings: Settings, now: Now) -> Foreseen:
    """The decision that would put `rules` in force at `now`, beside the one that would be made then without them.

    Both are made by the allocator's own `decide` on copies of the state, the rules as the order that `gpugrid policy apply` sends.
    What that decision says of a job that waits, runs or is served is all there is to tell; no rule of thumb in between.
    """
    from services.allocator.core.decide import decide

    applied = msgspec.structs.replace(rules, version=max(rules.version, state.rules.version + 1))
    order = ChangeRules(cluster=state.cluster, rules=applied, ordered_ms=now.domain_ms)
    without, with_rules = _copy(state), _copy(state)
    everything = msgspec.structs.replace(
        settings, policy=msgspec.structs.replace(settings.policy, waits_max=len(state.jobs) + 1)
    )
    plain = decide(without, [], [], now, everything)
    decided = decide(with_rules, [_input(order)], [], now, everything)
    before, after = outcomes(without, plain.record), outcomes(with_rules, decided.record)
    changed = [
        JobEffect(name, before[name].words, outcome.words, before[name].planned_ms, outcome.planned_ms)
        for name, outcome in after.items()
        if name in before and before[name] != outcome
    ]
    return Foreseen(changed, decided.record.effects, decided.violations)


def outcomes(state: State, record: DecisionMade) -> dict[str, Outcome]:
    """Of every job and application, as of a decision that has just been made."""
    started = {effect.job_id for effect in record.effects if isinstance(effect, Placed)}
    takers = {
        victim: effect.job_id for effect in record.effects if isinstance(effect, Preempted) for victim in effect.victims
    }
    found = {}
    for job in state.jobs.values():
        if job.job_id in started:
            found[job.job_id] = Outcome(STARTS_NOW, record.now_ms)
        elif job.job_id in takers:
            found[job.job_id] = Outcome(f"stops for {takers[job.job_id]}", None)
        elif job.parts:
            found[job.job_id] = Outcome(f"stops ({job.stop_cause})" if job.stop_cause else "runs", None)
        else:
            found[job.job_id] = Outcome(job.reason, job.planned_start_p50_ms)
    for app in state.apps.values():
        gpus = sum(len(part.gpus) for part in app.parts)
        found[app.app_id] = Outcome(f"holds {gpus} GPU{'' if gpus == 1 else 's'}", None)
    return found


def _copy(state: State) -> State:
    return msgspec.json.decode(msgspec.json.encode(state), type=State)


def _input(order: ChangeRules) -> DecisionInput:
    return DecisionInput(
        topic=topic_of(order),
        partition=0,
        offset=0,
        type=TYPE_OF[ChangeRules],
        id=f"{order.cluster}/rules/{order.rules.version}/foreseen",
        payload=msgspec.Raw(encode_payload(order)),
    )

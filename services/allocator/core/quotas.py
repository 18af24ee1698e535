"""What the rules mean for one pool's planning problem: caps on groups, jobs that may not start at all, who is inside a guarantee.

A maximum of GPUs becomes a cap of the grid (`caps.py`), kept in every step of the window. Limits on numbers of jobs are no matter
of the grid: jobs above them are handed in with a refusal. Pure bookkeeping over the jobs that hold GPUs and those that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from schemas.rules import Rules
from services.allocator.core.caps import Cap
from services.allocator.core.groups import Group, groups_of, limits_of, maximum_of
from services.allocator.core.index import index_of
from services.allocator.core.reasons import Reason
from services.allocator.core.shares import Use, charged, faded, share_factors
from services.allocator.core.state import Job, State

NO_RULES = Rules()
_RULE_REASONS = frozenset(
    reason.public_name for reason in (Reason.QUOTA_EXCEEDED, Reason.RUNNING_LIMIT, Reason.QUEUE_LIMIT)
)


@dataclass(slots=True)
class Admission:
    """`caps_of`, `refusals` by job id; `guaranteed`: waiting jobs inside their team's guarantee; `room`: by team, GPUs of its guarantee
    that it doesn't hold."""

    caps: list[Cap] = field(default_factory=list)
    caps_of: dict[str, tuple[int, ...]] = field(default_factory=dict)
    refusals: dict[str, Reason] = field(default_factory=dict)
    guaranteed: set[str] = field(default_factory=set)
    room: dict[str, int] = field(default_factory=dict)


def limited(rules: Rules) -> bool:
    """Whether the rules limit anything; most clusters begin without."""
    return (rules.organisation, rules.teams, rules.each_team, rules.queues) != (
        NO_RULES.organisation,
        NO_RULES.teams,
        NO_RULES.each_team,
        NO_RULES.queues,
    )


def used_by_team(state: State, holders: Sequence[Job], now_ms: int) -> dict[str, int]:
    """GPU milliseconds per team, faded with age: of ended jobs, and of those that hold GPUs until now."""
    used = {team: faded(use, now_ms, state.rules.half_life_s) for team, use in sorted(state.use.items())}
    for job in holders:
        if job.holds_gpus:
            gpu_ms = job.gpus * max(0, now_ms - job.placed_ms) // _slots_per_card(state, job)
            used[job.spec.team] = used.get(job.spec.team, 0) + gpu_ms
    return used


def factors_of(state: State, holders: Sequence[Job], teams_waiting: Sequence[str], now_ms: int) -> dict[str, int]:
    """Share factor per team with work now, in thousandths."""
    if state.rules.fair_share <= 0:
        return {}
    teams = {*teams_waiting, *(job.spec.team for job in holders if job.holds_gpus)}
    return share_factors(state.rules, used_by_team(state, holders, now_ms), teams)


def charge(state: State, job: Job, until_ms: int) -> None:
    """An attempt ended: its GPU time counts as its team's use."""
    from_ms = min(job.placed_ms, until_ms)
    use = state.use.get(job.spec.team, Use(0, from_ms))
    half_life_s = state.rules.half_life_s
    state.use[job.spec.team] = charged(use, job.gpus, from_ms, until_ms, half_life_s, _slots_per_card(state, job))


def _slots_per_card(state: State, job: Job) -> int:
    """Of the pool it runs in: fair share counts whole cards."""
    node = state.nodes.get(job.parts[0].node) if job.parts else None
    return 1 if node is None else node.slots_per_card


@dataclass(frozen=True, slots=True)
class Held:
    """What groups hold: GPUs by group and pool, jobs by group."""

    gpus: dict[tuple[Group, str], int]
    jobs: dict[Group, int]


def held_by(jobs: Iterable[Job]) -> Held:
    """Counted once for every group of these jobs, all of which hold GPUs."""
    held = Held({}, {})
    for job in jobs:
        for group in groups_of(job.spec):
            held.gpus[group, job.pool] = held.gpus.get((group, job.pool), 0) + job.gpus
            held.jobs[group] = held.jobs.get(group, 0) + 1
    return held


class Holdings:
    """What every group holds now, counted once, when first asked."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._held: Held | None = None

    def full_groups(self, job: Job) -> str:
        """For a job that a rule keeps waiting: which group is full, and of what, as a sentence. Empty for any other reason."""
        if job.reason not in _RULE_REASONS:
            return ""
        if self._held is None:
            self._held = held_by(other for other in index_of(self._state).holders() if other.holds_gpus)
        rules, found = self._state.rules, []
        for group in groups_of(job.spec):
            for pool in job.pools:
                most, held = maximum_of(rules, group, pool), self._held.gpus.get((group, pool), 0)
                if most is not None and held + min(job.spec.sizes) > most:
                    found.append(f"{group.words} holds {held} of {most} GPUs of {pool}")
            count, running = limits_of(rules, group).running_max, self._held.jobs.get(group, 0)
            if count is not None and running >= count:
                found.append(f"{group.words} runs {running} of {count} jobs")
        return f" Now {'; '.join(found)}." if found else ""


def admit(rules: Rules, pool: str, queued: Sequence[Job], holding: Sequence[Job]) -> Admission:
    """`queued`: best first. Jobs in `holding` have GPUs, of any pool, or get them with this decision in another one."""
    found = Admission()
    numbers: dict[Group, int] = {}
    for job in [*holding, *queued]:
        found.caps_of[job.job_id] = tuple(
            _number(numbers, found, rules, group, pool)
            for group in groups_of(job.spec)
            if maximum_of(rules, group, pool) is not None
        )
    held = held_by(holding)
    _refuse_beyond_counts(rules, queued, held, found)
    _mark_guaranteed(rules, pool, queued, held, found)
    return found


def _number(numbers: dict[Group, int], found: Admission, rules: Rules, group: Group, pool: str) -> int:
    if group not in numbers:
        numbers[group] = len(found.caps)
        found.caps.append(Cap(group.words, maximum_of(rules, group, pool) or 0))
    return numbers[group]


def _refuse_beyond_counts(rules: Rules, queued: Sequence[Job], held: Held, found: Admission) -> None:
    """Jobs above a group's `running_max` (those that hold GPUs counted first) or, by arrival, above its `queued_max`."""
    running = dict(held.jobs)
    waiting: dict[Group, int] = {}
    for job in sorted(queued, key=lambda job: job.arrival):
        groups = groups_of(job.spec)
        if any(_full(waiting, group, limits_of(rules, group).queued_max) for group in groups):
            found.refusals[job.job_id] = Reason.QUEUE_LIMIT
            continue
        for group in groups:
            waiting[group] = waiting.get(group, 0) + 1
    for job in queued:
        if job.job_id in found.refusals:
            continue
        groups = groups_of(job.spec)
        if any(_full(running, group, limits_of(rules, group).running_max) for group in groups):
            found.refusals[job.job_id] = Reason.RUNNING_LIMIT
            continue
        for group in groups:
            running[group] = running.get(group, 0) + 1


def _full(counts: dict[Group, int], group: Group, most: int | None) -> bool:
    return most is not None and counts.get(group, 0) >= most


def _mark_guaranteed(rules: Rules, pool: str, queued: Sequence[Job], held: Held, found: Admission) -> None:
    """Best first, as long as the team's GPUs and those of its jobs marked before stay inside what is guaranteed."""
    found.room = guarantees_left(rules, pool, held)
    left = dict(found.room)
    for job in queued:
        team, least = job.spec.team, min(job.spec.sizes)
        if job.job_id not in found.refusals and least <= left.get(team, 0):
            left[team] -= least
            found.guaranteed.add(job.job_id)


def guarantees_left(rules: Rules, pool: str, held: Held) -> dict[str, int]:
    """By team, GPUs of the pool that it is guaranteed and doesn't hold; teams with none are left out."""
    found = {}
    for team, limits in rules.teams.items():
        left = limits.guaranteed.get(pool, 0) - held.gpus.get((Group("team", team), pool), 0)
        if left > 0:
            found[team] = left
    return found

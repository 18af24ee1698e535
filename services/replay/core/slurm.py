"""Slurm's multifactor priority with EASY backfill, after its documentation, for comparison.

priority = age + fair-share + job size + partition + QOS, each a factor 0…1 times a weight. The weights are those of the example in
"Multifactor Priority Plugin", and QOS weighs as much as age, because jobs here declare priorities. Age grows for `age_max_s`; size is
the share of the pool; one partition; QOS is the declared priority over the highest one; fair-share is Fair Tree (the default): teams
ranked by shares ÷ usage, inside each its users, the place in that order ÷ number of users. Usage halves every `half_life_s`.
Backfill is EASY: only the first blocked job is promised a start; Slurm's own plugin plans one for every job it looks at.
Durations are what the watch says: the declared limit, as in Slurm, or better. Read next: `baselines.py`, docs/policy.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from services.replay.core.baselines import Scene, easy_in_order
from services.replay.core.day import DayJob

T = TypeVar("T")

DAY_S = 86_400.0
User = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the five factors, and what bounds them."""

    age: float = 1000
    fair_share: float = 10_000
    size: float = 1000
    partition: float = 1000
    qos: float = 1000
    age_max_s: float = 14 * DAY_S
    half_life_s: float = 14 * DAY_S
    priority_max: int = 5


@dataclass(slots=True)
class Multifactor:
    """One run: what everybody has used so far. `shares` by team, its users alike; teams without one have a share of 1.

    `users`: all that ever submit; Fair Tree ranks them whether they are active or not.
    """

    shares: Mapping[str, float]
    users: Sequence[User]
    weights: Weights = field(default_factory=Weights)
    usage: dict[User, float] = field(default_factory=dict)
    _holding: list[tuple[User, int]] = field(default_factory=list)
    _at_ms: int | None = None

    def __call__(self, scene: Scene) -> Iterator[tuple[DayJob, int]]:
        self._charge(scene.now_ms)
        factors = fair_tree(self.shares, self.users, self.usage)
        order = sorted(scene.queue, key=lambda job: -self.priority(job, scene.now_ms, scene.free.gpus, factors))
        yield from easy_in_order(scene, order)
        self._holding = [(_user(job), job.requested) for job, _, _ in scene.running.values()]

    def priority(self, job: DayJob, now_ms: int, gpus: int, factors: Mapping[User, float]) -> float:
        """The weighted sum. `gpus` of the whole pool."""
        weights = self.weights
        return (
            weights.age * min((now_ms - job.arrival_ms) / 1000 / weights.age_max_s, 1.0)
            + weights.fair_share * factors[_user(job)]
            + weights.size * job.requested / gpus
            + weights.partition
            + weights.qos * min(job.spec.priority / weights.priority_max, 1.0)
        )

    def _charge(self, now_ms: int) -> None:
        """GPU-seconds since the last look, after what was before has faded."""
        passed_s = 0.0 if self._at_ms is None else (now_ms - self._at_ms) / 1000
        self._at_ms = now_ms
        for user in self.usage:
            self.usage[user] *= 2 ** (-passed_s / self.weights.half_life_s)
        for user, gpus in self._holding:
            self.usage[user] = self.usage.get(user, 0.0) + gpus * passed_s


def fair_tree(shares: Mapping[str, float], users: Sequence[User], usage: Mapping[User, float]) -> dict[User, float]:
    """Fair-share factor of each user: its place, from the best served last, over the number of users. Equals share a place."""
    by_team: dict[str, list[User]] = {}
    for user in users:
        by_team.setdefault(user[0], []).append(user)
    teams = [(team, shares.get(team, 1.0), sum(usage.get(user, 0.0) for user in by_team[team])) for team in by_team]
    found: dict[User, float] = {}
    rank = len(users)
    for equal in _ranked(_level_fs(teams)):
        members = [_level_fs([(user, 1.0, usage.get(user, 0.0)) for user in by_team[team]]) for team in equal]
        for group in _ranked([entry for team in members for entry in team]):
            for user in group:
                found[user] = rank / len(users)
            rank -= len(group)
    return found


def _level_fs(siblings: Sequence[tuple[T, float, float]]) -> list[tuple[float, T]]:
    """(who, shares, usage) → (level fair-share, who): part of the siblings' shares ÷ part of their usage."""
    shares, usage = sum(one[1] for one in siblings), sum(one[2] for one in siblings)
    return [(share / shares * usage / used if used > 0 else math.inf, who) for who, share, used in siblings]


def _ranked(levels: Sequence[tuple[float, T]]) -> list[list[T]]:
    """The least served first; equals side by side, in their order."""
    ordered = sorted(levels, key=lambda entry: -entry[0])
    return [[who for _, who in equal] for _, equal in itertools.groupby(ordered, key=lambda entry: entry[0])]


def _user(job: DayJob) -> User:
    return (job.spec.team, job.spec.user)

"""Random histories under `running_max` and `queued_max`: who starts and who is refused for which of them is what a naive count says.

GPUs are never short in here, so nothing but these limits keeps a job waiting. The oracle reads the document by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from schemas.commands import ChangeRules
from schemas.decisions import Placed
from schemas.jobs import JobRevoked
from schemas.rules import Aging, Limits, QueueRules, Rules, TeamRules
from schemas.status import JobState
from tests import build
from tests.allocator_driver import Driver

TEAMS, USERS, QUEUES = "ab", "xyz", ("day", "night")
NO_AGING = Aging(per_hour=0.0)
GIVEN_BACK = Rules(aging=NO_AGING)


@dataclass
class Naive:
    """`waiting`: by arrival; both by job id."""

    rules: Rules = GIVEN_BACK
    waiting: dict[str, tuple[str, str, str, int]] = field(default_factory=dict)
    running: dict[str, tuple[str, str, str, int]] = field(default_factory=dict)

    def limits(self, team: str, user: str, queue: str) -> Iterator[tuple[str, Limits]]:
        of_team = self.rules.teams.get(team, self.rules.each_team)
        yield "all", self.rules.organisation
        yield f"team {team}", of_team
        yield f"user {team} {user}", of_team.users.get(user, of_team.each_user)
        yield f"queue {queue}", self.rules.queues.get(queue, QueueRules())

    def expected(self) -> dict[str, str]:
        """What becomes of each waiting job now: "starts", or why not."""
        found: dict[str, str] = {}
        planned: Counter[str] = Counter()
        for job_id, (*names, _) in self.waiting.items():
            groups = dict(self.limits(*names))
            if any(one.queued_max is not None and planned[name] >= one.queued_max for name, one in groups.items()):
                found[job_id] = "queue_limit"
            else:
                planned.update(groups.keys())
        holds: Counter[str] = Counter()
        for *names, _ in self.running.values():
            holds.update(dict(self.limits(*names)).keys())
        order = {job_id: at for at, job_id in enumerate(self.waiting)}
        for job_id in sorted(
            self.waiting.keys() - found.keys(), key=lambda name: (-self.waiting[name][3], order[name])
        ):
            groups = dict(self.limits(*self.waiting[job_id][:3]))
            if any(one.running_max is not None and holds[name] >= one.running_max for name, one in groups.items()):
                found[job_id] = "running_limit"
            else:
                found[job_id] = "starts"
                holds.update(groups.keys())
        return found


@dataclass
class World:
    """A pool with room for everybody, and the count beside it."""

    naive: Naive = field(default_factory=Naive)
    driver: Driver = field(default_factory=lambda: Driver().give(*[build.node(f"n{at}", order=at) for at in range(12)]))
    seen: Counter[str] = field(default_factory=Counter)
    version: int = 0

    def decide(self, *events) -> None:
        """One decision over the events, and more as long as somebody starts: a start makes room in the queue."""
        while True:
            wanted = self.naive.expected()
            self.driver.give(*events)
            started = [effect.job_id for effect in self.driver.decided.record.effects if isinstance(effect, Placed)]
            assert set(started) == {job_id for job_id, what in wanted.items() if what == "starts"}
            for job_id in started:
                self.naive.running[job_id] = self.naive.waiting.pop(job_id)
            for job_id in self.naive.waiting:
                reason = self.driver.job(job_id).reason
                assert reason == wanted[job_id], f"{job_id} waits for {reason}, the count says {wanted[job_id]}"
                assert self.driver.status(job_id).detail, "a refusal comes with a sentence"
                self.seen[reason] += 1
            if not started:
                break
            nodes = [self.driver.job(job_id).parts[0].node for job_id in started]
            now_ms = self.driver.now_ms
            events = tuple(build.started(job_id, node, now_ms) for job_id, node in zip(started, nodes, strict=True))
        self.driver.pass_ms(60_000)

    def submit(self, job_id: str, dice: Random) -> None:
        team, user, queue = dice.choice(TEAMS), dice.choice(USERS), dice.choice(QUEUES)
        priority = dice.randint(1, 5)
        self.naive.waiting[job_id] = (team, user, queue, priority)
        job = build.accepted(job_id, 1, at_ms=self.driver.now_ms, team=team, user=user, queue=queue, priority=priority)
        self.decide(job, build.forecast(job_id, {1: 36_000}))

    def end(self, job_id: str) -> None:
        del self.naive.running[job_id]
        self.decide(build.completed(job_id, self.driver.job(job_id).parts[0].node, self.driver.now_ms))

    def cancel(self, job_id: str) -> None:
        del self.naive.waiting[job_id]
        self.decide(JobRevoked(job_id=job_id, cluster=build.CLUSTER, revoked_ms=self.driver.now_ms))

    def rule(self, rules: Rules) -> None:
        self.version += 1
        self.naive.rules = rules
        told = Rules(
            version=self.version,
            organisation=rules.organisation,
            teams=rules.teams,
            each_team=rules.each_team,
            queues=rules.queues,
            aging=rules.aging,
        )
        self.decide(ChangeRules(cluster=build.CLUSTER, rules=told, ordered_ms=self.driver.now_ms))


def document(dice: Random) -> Rules:
    def limits(chance: float) -> dict[str, int]:
        return {name: dice.randrange(6) for name in ("running_max", "queued_max") if dice.random() < chance}

    ann = {dice.choice(USERS): Limits(**limits(0.5))}
    return Rules(
        organisation=Limits(running_max=dice.choice([None, 8]), queued_max=dice.choice([None, 10])),
        teams={"a": TeamRules(**limits(0.4), each_user=Limits(**limits(0.3)), users=ann)},
        each_team=TeamRules(**limits(0.3)),
        queues={"night": QueueRules(**limits(0.4))},
        aging=NO_AGING,
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_count_says_who_starts_who_is_refused_and_why_and_nobody_is_lost(seed: int) -> None:
    dice, world, cancelled = Random(seed), World(), set[str]()
    world.rule(document(dice))
    for number in range(60):
        action = dice.random()
        if action < 0.5 or not world.naive.running:
            world.submit(f"j{number:02d}", dice)
        elif action < 0.85:
            world.end(dice.choice(sorted(world.naive.running)))
        elif action < 0.93 and world.naive.waiting:
            job_id = dice.choice(sorted(world.naive.waiting))
            cancelled.add(job_id)
            world.cancel(job_id)
        else:
            world.rule(document(dice))
    world.rule(GIVEN_BACK)
    assert world.naive.waiting == {}, "without limits everybody starts with the next decision"
    for job_id in list(world.naive.running):
        world.end(job_id)
    finished = world.driver.state.finished
    assert not world.driver.state.jobs
    assert {name for name, job in finished.items() if job.state is JobState.CANCELLED} == cancelled
    assert {job.state for name, job in finished.items() if name not in cancelled} == {JobState.COMPLETED}


def test_the_histories_above_meet_both_limits_often() -> None:
    seen: Counter[str] = Counter()
    for seed in (10, 11):
        dice, world = Random(seed), World()
        world.rule(document(dice))
        for number in range(40):
            world.submit(f"j{number:02d}", dice)
        seen += world.seen
    assert min(seen["queue_limit"], seen["running_limit"]) > 50, seen

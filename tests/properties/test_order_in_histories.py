"""Random histories of equal jobs: whenever GPUs come free, the next is the one whose priority is highest by the formula of docs/policy.md.

The oracle reads the document and knows nothing of the allocator: its own books of who used what, floating point, the true power of
two. Equal jobs of one size that takes a whole node: then the order is all that a plan can choose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import ChangeRules
from schemas.decisions import Placed
from schemas.rules import Aging, Rules, TeamRules
from services.allocator.core.shares import Use, charged, faded
from services.allocator.core.standing import ranked_priorities, standing_of
from services.allocator.core.state import Job
from tests import build
from tests.allocator_driver import Driver

GPUS = 4
HOUR_MS = 3_600_000
RUN_S, P90_S = 3600, 5400
"""Expected of every job; how long each really runs is the history's."""
STRAIGHT_LINES = 0.07
"""docs/policy.md: powers are drawn with straight lines, which lie at most so much of them above."""
TEAMS = "abc"


@dataclass
class Waiter:
    """What the oracle knows of a waiting job."""

    team: str
    priority: int
    at_ms: int
    deadline_ms: int | None


@dataclass
class Books:
    """The formula, from its text. `used`: (team, from, until) of every run, until None while it lasts."""

    rules: Rules
    waiting: dict[str, Waiter] = field(default_factory=dict)
    used: dict[str, tuple[str, int, int | None]] = field(default_factory=dict)

    def factor(self, team: str, now_ms: int) -> float:
        part_used = dict.fromkeys(TEAMS, 0.0)
        working = {waiter.team for waiter in self.waiting.values()}
        for of, from_ms, until_ms in self.used.values():
            if until_ms is None:
                working.add(of)
            age = 0.0 if until_ms is None else (now_ms - until_ms) / 1000 / self.rules.half_life_s
            part_used[of] += ((until_ms or now_ms) - from_ms) * 2.0**-age
        whole = sum(part_used[name] for name in working)
        weights = {name: self.rules.teams[name].weight for name in working}
        if not whole or not self.rules.fair_share:
            return 1.0
        part_due = weights[team] / sum(weights.values())
        return 1 + self.rules.fair_share * (2.0 ** -(part_used[team] / whole / part_due) - 0.5)

    def parts(self, job_id: str, now_ms: int) -> float:
        """Declared, aging and deadline."""
        waiter, aging = self.waiting[job_id], self.rules.aging
        beyond_h = max(0.0, (now_ms - waiter.at_ms) / HOUR_MS - aging.after_s / 3600)
        urgent = 0.0
        if waiter.deadline_ms is not None:
            slack_h = (waiter.deadline_ms - now_ms) / HOUR_MS - P90_S / 3600
            urgent = 4 * min(1.0, max(0.0, 1 - slack_h / 24))
        return waiter.priority + min(aging.priority_max, beyond_h * aging.per_hour) + urgent

    def priority(self, job_id: str, now_ms: int) -> float:
        return self.parts(job_id, now_ms) * self.factor(self.waiting[job_id].team, now_ms)


class World:
    """Nodes that one job fills each, beside their books."""

    def __init__(self, rules: Rules, nodes: int, tolerance: float) -> None:
        self.books, self.tolerance, self.compared = Books(rules), tolerance, 0
        order = ChangeRules(cluster=build.CLUSTER, rules=rules, ordered_ms=build.START_MS)
        self.driver = Driver().give(*[build.node(f"n{at}", gpus=GPUS, order=at) for at in range(nodes)], order)

    def submit(self, job_id: str, team: str, priority: int, deadline_h: float | None) -> None:
        at_ms = self.driver.now_ms
        deadline_ms = None if deadline_h is None else at_ms + round(deadline_h * HOUR_MS)
        self.books.waiting[job_id] = Waiter(team, priority, at_ms, deadline_ms)
        said = {} if deadline_ms is None else {"deadline_ms": deadline_ms}
        job = build.accepted(job_id, GPUS, at_ms=at_ms, team=team, priority=priority, **said)
        self.decide(job, build.forecast(job_id, {GPUS: RUN_S}, stretch=P90_S / RUN_S))

    def end(self, which: int) -> None:
        running = [name for name, (_, _, until_ms) in self.books.used.items() if until_ms is None]
        if running:
            job_id, now_ms = running[which % len(running)], self.driver.now_ms
            team, from_ms, _ = self.books.used[job_id]
            self.books.used[job_id] = (team, from_ms, now_ms)
            self.decide(build.completed(job_id, self.driver.job(job_id).parts[0].node, now_ms))

    def decide(self, *events) -> None:
        now_ms = self.driver.now_ms
        self.driver.give(*events)
        started = [effect.job_id for effect in self.driver.decided.record.effects if isinstance(effect, Placed)]
        left = self.books.waiting.keys() - set(started)
        for job_id in started if left else ():
            mine = self.books.priority(job_id, now_ms)
            best = max(self.books.priority(name, now_ms) for name in left)
            assert mine >= best * (1 - self.tolerance) - 0.005, (
                f"{job_id} at {mine:.3f} starts before one at {best:.3f}"
            )
            self.compared += 1
        for job_id in started:
            self.books.used[job_id] = (self.books.waiting.pop(job_id).team, now_ms, None)
            self.driver.give(build.started(job_id, self.driver.job(job_id).parts[0].node, now_ms))
        assert len(self.driver.state.jobs) == len(self.books.waiting) + len(started) + self._running(started)

    def _running(self, fresh: list[str]) -> int:
        return sum(until_ms is None for name, (_, _, until_ms) in self.books.used.items() if name not in fresh)


def history(seed: int, rules: Rules, *, tolerance: float, priorities: tuple[int, ...], deadlines: bool) -> World:
    """Submissions, ends and time in random order, always with a queue; then everything runs to its end."""
    dice, count = Random(seed), 0
    world = World(rules, nodes=dice.choice([1, 2]), tolerance=tolerance)
    for _ in range(70):
        world.driver.pass_ms(round(dice.expovariate(1) * 0.7 * HOUR_MS))
        if len(world.books.waiting) < 3 or dice.random() < 0.5:
            wanted_h = dice.uniform(0, 40) if deadlines and dice.random() < 0.5 else None
            world.submit(f"j{count:03d}", dice.choice(TEAMS), dice.choice(priorities), wanted_h)
            count += 1
        else:
            world.end(dice.randrange(8))
    while world.driver.state.jobs:
        world.driver.pass_ms(HOUR_MS // 2)
        world.end(dice.randrange(8))
    assert len(world.books.used) == count, "every job ran once"
    return world


def weights(*of: float) -> dict[str, TeamRules]:
    return {name: TeamRules(weight=weight) for name, weight in zip(TEAMS, of, strict=True)}


NO_AGING = Aging(per_hour=0.0)


@pytest.mark.parametrize("seed", range(4))
def test_among_equal_jobs_the_team_that_used_least_of_what_it_is_due_goes_first(seed: int) -> None:
    """No job ends in here that a later fade would have to fade again by much: half-lives are long. Shorter ones are below."""
    rules = Rules(version=1, fair_share=1.0, half_life_s=3e7, teams=weights(3, 1, 0.5), aging=NO_AGING)
    found = history(seed, rules, tolerance=STRAIGHT_LINES, priorities=(50,), deadlines=False)
    assert found.compared > 20


@pytest.mark.parametrize("seed", range(4))
def test_priority_aging_and_deadlines_make_the_order(seed: int) -> None:
    """Priorities so near each other that half an hour of waiting or a deadline can turn them round."""
    rules = Rules(version=1, teams=weights(1, 1, 1), aging=Aging(after_s=1200, per_hour=0.9, priority_max=3.0))
    found = history(seed, rules, tolerance=0.0, priorities=(3, 4, 5), deadlines=True)
    assert found.compared > 20


@pytest.mark.parametrize("seed", range(4))
def test_all_parts_of_the_formula_at_once(seed: int) -> None:
    rules = Rules(version=1, fair_share=0.5, half_life_s=3e7, teams=weights(1, 2, 4), aging=Aging(per_hour=0.5))
    found = history(seed, rules, tolerance=STRAIGHT_LINES / 2, priorities=(3, 4), deadlines=True)
    assert found.compared > 20


def test_a_gpu_hour_counts_half_after_a_half_life_however_many_jobs_ended_since() -> None:
    week_ms = 7 * 24 * HOUR_MS
    use = charged(Use(), GPUS, 0, 10 * HOUR_MS, week_ms / 1000, 1)
    ended_ms = use.as_of_ms
    for number in range(1, 101):
        at_ms = ended_ms + week_ms * number // 101
        use = charged(use, 1, at_ms - 1, at_ms, week_ms / 1000, 1)
    assert faded(use, ended_ms + week_ms, week_ms / 1000) == pytest.approx(GPUS * 5 * HOUR_MS, rel=0.01)


AGINGS = st.builds(
    Aging,
    after_s=st.floats(0, 1e6),
    per_hour=st.floats(0, 100),
    priority_max=st.floats(0, 100),
    overdue_s=st.none() | st.floats(0, 1e6),
)
SPANS_S = st.floats(0, 1e7)


def aged(aging: Aging, waited_s: float, deadline_s: float | None = None) -> Job:
    at_ms = build.START_MS - round(waited_s * 1000)
    spec = build.spec(4, deadline_ms=None if deadline_s is None else build.START_MS + round(deadline_s * 1000))
    return Job(
        job_id="j", pools=[build.POOL], submitted_ms=at_ms, accepted_ms=at_ms, spec=spec, arrival=0, seen_wall_ms=0
    )


@settings(max_examples=200, deadline=None)
@given(AGINGS, SPANS_S, SPANS_S)
def test_aging_only_rises_never_beyond_its_most_and_is_what_is_documented(
    aging: Aging, one: float, more: float
) -> None:
    found = [standing_of(aged(aging, s), aging, build.START_MS) for s in (one, one + more)]
    assert 0 <= found[0].aging <= found[1].aging <= aging.priority_max * 1000
    assert found[0].overdue <= found[1].overdue
    waited_s = round(one * 1000) / 1000
    by_hand = min(aging.priority_max, max(0.0, waited_s - aging.after_s) * aging.per_hour / 3600)
    assert found[0].aging == pytest.approx(by_hand * 1000, abs=1.001)
    assert found[0].overdue == (aging.overdue_s is not None and waited_s >= aging.overdue_s)


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_nearer_deadline_or_a_longer_run_never_counts_less_and_four_is_the_most(
    deadline_s: float, nearer_s: float, takes_s: float
) -> None:
    far, near = (aged(Aging(), 0.0, deadline_s=s) for s in (deadline_s, deadline_s - nearer_s))
    long = standing_of(far, Aging(), build.START_MS, takes_s=takes_s).deadline
    assert 0 <= standing_of(far, Aging(), build.START_MS).deadline <= long <= 4000
    assert long <= standing_of(near, Aging(), build.START_MS, takes_s=takes_s).deadline <= 4000


@settings(max_examples=100, deadline=None)
@given(
    AGINGS, st.lists(st.tuples(st.integers(1, 100), SPANS_S, st.none() | st.floats(-1e5, 1e6)), min_size=1), st.data()
)
def test_many_jobs_at_once_are_ranked_as_one_by_one(aging: Aging, jobs: list, data: st.DataObject) -> None:
    """`deadline_ms` 0 means none, as no deadline lies in 1970."""
    factor = data.draw(st.integers(500, 1500))
    ones = []
    for priority, waited_s, deadline_s in jobs:
        job = aged(aging, waited_s, deadline_s)
        job.spec = build.spec(4, priority=priority, deadline_ms=job.spec.deadline_ms)
        ones.append(job)
    columns = [[job.spec.priority, job.submitted_ms, job.spec.deadline_ms or 0, 0] for job in ones]
    declared, submitted, deadline, restores = np.array(columns, np.int64).T
    many = ranked_priorities(declared, submitted, deadline, restores, aging, build.START_MS, factor)
    assert many.tolist() == [standing_of(job, aging, build.START_MS, factor).priority for job in ones]

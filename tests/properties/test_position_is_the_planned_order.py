"""`Position N` of a waiting job is its place in the order in which its pool is planned, whatever rules made it: random queues under random
rules against an order that is worked out from the planning problem itself."""

from __future__ import annotations

from random import Random

import pytest

from schemas.commands import ChangeRules
from schemas.rules import Aging, Rules, TeamRules
from services.allocator.core import in_line
from services.allocator.core.in_line import position_in
from services.allocator.core.index import index_of
from services.allocator.core.layout import layout_of
from services.allocator.core.pose import pose
from services.allocator.core.precedence import precedence_of
from services.allocator.core.standing import GUARANTEED_PRIORITY, OVERDUE_PRIORITY
from services.allocator.core.state import State
from tests import build
from tests.allocator_driver import POLICY, Driver

HOUR_MS = 3_600_000


def queue(dice: Random, jobs: int) -> Driver:
    """One full node, and jobs of several teams that came at different times."""
    teams = {name: TeamRules(weight=dice.choice([1, 3])) for name in ("red", "blue")}
    if dice.random() < 0.7:
        teams["red"] = TeamRules(guaranteed={build.POOL: dice.choice([1, 4, 8])})
    rules = Rules(
        version=1,
        fair_share=dice.choice([0.0, 1.0]),
        teams=teams,
        aging=Aging(per_hour=dice.choice([0.0, 2.0]), overdue_s=dice.choice([None, 6 * 3600.0])),
    )
    driver = Driver().give(build.node("n0"))
    driver.give(build.accepted("full", 8), build.forecast("full", {8: 90 * 3600}))
    driver.give(build.started("full", "n0", at_ms=driver.now_ms))
    driver.give(ChangeRules(cluster=build.CLUSTER, rules=rules, ordered_ms=driver.now_ms))
    for number in range(jobs):
        deadline_ms = driver.now_ms + 12 * HOUR_MS if dice.random() < 0.2 else None
        driver.pass_ms(dice.randrange(HOUR_MS)).give(
            build.accepted(
                f"j{number:02d}",
                dice.choice([1, 2, 4, 8]),
                at_ms=driver.now_ms - dice.randrange(HOUR_MS),
                team=dice.choice(["red", "blue"]),
                priority=dice.choice([1, 3, 3, 9]),
                deadline_ms=deadline_ms,
            )
        )
    return driver


def positions(state: State, now_ms: int) -> dict[str, int]:
    index, gpus = index_of(state), layout_of(state, build.POOL).gpus
    waiting = [job for job in state.jobs.values() if not job.parts]
    return {job.job_id: position_in(state, index, gpus, job, POLICY, now_ms) for job in waiting}


def planned_order(driver: Driver) -> list[str]:
    """By the priorities that the planner gets: overdue ones by submission, then those inside a guarantee, then by value and arrival."""
    state, now = driver.state, driver._now()
    posed = pose(state, build.POOL, 0, POLICY, now, frozenset())
    rows = zip(posed.queued, posed.problem.job_priority.tolist(), strict=True)

    def key(row: tuple) -> tuple:
        job, priority = row
        if priority >= GUARANTEED_PRIORITY:
            return (priority < OVERDUE_PRIORITY, job.submitted_ms, job.arrival)
        return (2, -priority, job.arrival)

    return [job.job_id for job, _ in sorted(rows, key=key)]


@pytest.mark.parametrize("seed", range(8))
def test_positions_follow_the_planning_problem(seed: int) -> None:
    driver = queue(Random(seed), 14)
    found = positions(driver.state, driver.now_ms)
    assert sorted(found, key=lambda name: found[name]) == planned_order(driver)
    assert sorted(found.values()) == list(range(1, 15))


def test_those_behind_the_planned_ones_are_numbered_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """More wait than take part in planning: these come first, and no number is missing or there twice."""
    driver = queue(Random(1), 20)
    state, now_ms = driver.state, driver.now_ms
    monkeypatch.setattr(in_line, "planned_max_of", lambda _: 6)
    found = positions(state, now_ms)
    planned = precedence_of(state, index_of(state), build.POOL, 6, frozenset(), POLICY, now_ms)
    assert sorted(found.values()) == list(range(1, 21))
    assert {name for name, place in found.items() if place <= 6} == {job.job_id for job in planned.queued}

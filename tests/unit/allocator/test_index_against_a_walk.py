"""The index says what a walk over all jobs would, after any history; holders are those that `blockers_of` names."""

from __future__ import annotations

from random import Random

import pytest

from schemas.commands import DrainNode, ReserveBlock
from schemas.executions import StopCause
from schemas.jobs import JobAmended, JobRevoked, RestartMode, RestartPolicy
from schemas.records import Now
from services.allocator.core.commit import HOLDERS_MAX
from services.allocator.core.config import Policy
from services.allocator.core.heuristic import plan_fast
from services.allocator.core.holders import Holders
from services.allocator.core.index import ROWS_MIN, Index, TeamOrder, index_of
from services.allocator.core.pose import pose
from services.allocator.core.standing import GUARANTEED_PRIORITY, standing_of
from services.allocator.core.state import Job
from services.allocator.core.waiting import blockers_of
from tests import build
from tests.allocator_driver import SETTINGS, Driver

HOUR_MS = 3_600_000


def contents(index: Index, jobs: list[Job]) -> list[object]:
    kinds = (index.placed, index.awaiting, index.delayed, index.unsettled)
    return [*(sorted(kind) for kind in kinds), index.count_waiting(), [index.position(job) for job in jobs]]


def check(driver: Driver, policy: Policy) -> None:
    state, index = driver.state, index_of(driver.state)
    aging, order = state.rules.aging, TeamOrder({"blue": 700, "red": 1400}, {}, {"blue": 2, "green": 1})
    jobs = list(state.jobs.values())
    assert contents(index, jobs) == contents(Index(state), jobs)
    waiting = [job for job in jobs if not job.parts]
    queue = sorted(waiting, key=lambda job: (-job.spec.priority, job.arrival))
    assert [index.position(job) for job in queue] == list(range(1, len(queue) + 1))
    assert index.holders() == [job for job in jobs if job.parts]
    excluded = frozenset(job.job_id for job in waiting[::5])
    for count in (1, 7, len(waiting), len(waiting) + 10):
        rest = [job for job in waiting if job.job_id not in excluded]
        if len(rest) > count:
            ranks = {
                job.job_id: standing_of(job, aging, driver.now_ms, order.factors.get(job.spec.team, 1000)).priority
                for job in rest
            }
            rest.sort(key=lambda job: (-ranks[job.job_id], job.arrival))
            for team, first in order.inside.items():
                inside = [job for job in rest if job.spec.team == team][:first]
                ranks |= {job.job_id: ranks[job.job_id] + GUARANTEED_PRIORITY for job in inside}
            rest.sort(key=lambda job: (-ranks[job.job_id], job.arrival))
        found, more = index.first_waiting(build.POOL, count, excluded, aging, driver.now_ms, order)
        assert found == rest[:count]
        assert more == (len(rest) > count)
    assert index.first_waiting("elsewhere", 5, frozenset(), aging, driver.now_ms, order) == ([], False)
    few = TeamOrder({}, {"blue": 3, "red": 0}, {})
    found, more = index.first_waiting(build.POOL, 1000, frozenset(), aging, driver.now_ms, few)
    teams = [job.spec.team for job in waiting]
    assert [job.spec.team for job in found].count("blue") == min(3, teams.count("blue"))
    assert "red" not in [job.spec.team for job in found]
    assert more == (teams.count("blue") > 3 or teams.count("red") > 0)


def step(driver: Driver, dice: Random, number: int) -> None:
    driver.pass_ms(dice.randrange(HOUR_MS))
    jobs = list(driver.state.jobs.values())
    running = [job for job in jobs if job.parts]
    what = dice.randrange(8)
    if what < 3 or not jobs:
        for extra in range(dice.randrange(1, 6)):
            job_id, size = f"j{number}-{extra}", dice.choice([1, 2, 4, 8])
            changed = {
                "priority": dice.randrange(1, 6),
                "team": dice.choice(["blue", "red", "green"]),
                "deadline_ms": dice.choice([None, driver.now_ms + dice.randrange(40 * HOUR_MS)]),
                "restart": RestartPolicy(mode=RestartMode.ON_FAILURE, attempts_max=3, backoff_s=600.0),
            }
            events = [build.accepted(job_id, size, at_ms=driver.now_ms - dice.randrange(HOUR_MS), **changed)]
            if dice.random() < 0.6:
                events.append(build.forecast(job_id, {size: dice.randrange(600, 20_000)}))
            driver.give(*events)
    elif what == 3:
        job = dice.choice(jobs)
        driver.give(
            JobAmended(
                job_id=job.job_id, cluster=build.CLUSTER, amended_ms=driver.now_ms, priority=dice.randrange(1, 6)
            )
        )
    elif what == 4:
        driver.give(JobRevoked(job_id=dice.choice(jobs).job_id, cluster=build.CLUSTER, revoked_ms=driver.now_ms))
    elif what == 5 and running:
        driver.give(build.failed(running[0].job_id, running[0].parts[0].node, driver.now_ms, running[0].attempt))
    elif what == 6 and running:
        job = dice.choice(running)
        driver.give(build.stopped(job.job_id, job.parts[0].node, driver.now_ms, StopCause.DRAIN, job.attempt))
    elif running:
        job = dice.choice(running)
        driver.give(build.completed(job.job_id, job.parts[0].node, driver.now_ms, job.attempt))


@pytest.mark.parametrize("seed", range(6))
def test_the_index_agrees_with_a_walk_after_any_history(seed: int) -> None:
    dice, driver = Random(seed), Driver()
    driver.give(build.node("n00"), build.node("n01", order=1))
    for number in range(60):
        step(driver, dice, number)
        check(driver, SETTINGS.policy)


def test_rows_of_jobs_that_left_are_swept_out() -> None:
    driver = Driver()
    driver.give(*[build.accepted(f"j{number:03}", 1, priority=1 + number % 3) for number in range(4 * ROWS_MIN)])
    for number in range(0, 4 * ROWS_MIN, 4):
        gone = [f"j{number + offset:03}" for offset in range(3)]
        driver.give(*[JobRevoked(job_id=job_id, cluster=build.CLUSTER, revoked_ms=driver.now_ms) for job_id in gone])
    check(driver, SETTINGS.policy)


@pytest.mark.parametrize("seed", range(3))
def test_holders_are_the_blockers_in_short(seed: int) -> None:
    dice, driver = Random(seed), Driver()
    driver.give(build.node("n00"), build.node("n01", order=1))
    driver.give(build.application("app", floor=2, peak=4))
    for number in range(40):
        step(driver, dice, number)
    driver.give(DrainNode(node="n01", cluster=build.CLUSTER, ordered_ms=driver.now_ms, deadline_s=86_400.0))
    posed = pose(driver.state, build.POOL, 0, SETTINGS.policy, Now(driver.now_ms, driver.wall_ms), frozenset())
    plan = plan_fast(posed.problem, SETTINGS.policy.iterations)
    holders = Holders(posed.problem, plan, HOLDERS_MAX)
    waiting = [row for row, start in enumerate(plan.start.tolist()) if start != 0]
    assert waiting
    for row in waiting:
        assert holders.of(row) == [blocker.id for blocker in blockers_of(posed.problem, plan, row, HOLDERS_MAX)]


def test_a_reservation_of_several_gpus_is_named_once() -> None:
    driver = Driver().give(build.node("n00"))
    reserved = ReserveBlock(
        reservation_id="demo",
        cluster=build.CLUSTER,
        node="n00",
        from_ms=driver.now_ms,
        until_ms=driver.now_ms + 3_600_000,
        ordered_ms=driver.now_ms,
        gpus=[0, 2, 5],
    )
    driver.give(reserved, build.accepted("wide", 8), build.forecast("wide", {8: 600.0}))
    assert driver.status("wide").holders == ["demo"]

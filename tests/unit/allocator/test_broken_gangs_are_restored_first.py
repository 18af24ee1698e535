"""A gang that lost a node gets a place again before fresh jobs do, whatever these are worth; what it can't use stays open to them."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from schemas.executions import StopCause
from schemas.nodes import Health
from schemas.status import JobState
from services.allocator.core.index import index_of
from services.allocator.core.precedence import precedence_of
from services.allocator.core.standing import OVERDUE_PRIORITY
from tests import build
from tests.allocator_driver import POLICY, Driver


def cluster(nodes: int) -> Driver:
    return Driver().give(*(build.node(f"n{i:02}", order=i) for i in range(nodes)))


def submit(driver: Driver, job_id: str, gpus: int, seconds: float = 7200, **changed) -> None:
    driver.give(build.accepted(job_id, gpus, at_ms=driver.now_ms, **changed), build.forecast(job_id, {gpus: seconds}))


def start(driver: Driver, job_id: str) -> None:
    job = driver.job(job_id)
    driver.give(*(build.started(job_id, part.node, driver.now_ms, job.attempt) for part in job.parts))


def lose(driver: Driver, node: str, order: int) -> None:
    driver.pass_ms(60_000)
    driver.give(replace(build.node(node, order=order, health=Health.LOST), time_ms=driver.now_ms))


def broken(driver: Driver, fresh: list[tuple[int, int]]) -> None:
    """A gang on n00 and n01 loses n01 while `fresh` (GPUs, priority) jobs wait; then its other part has stopped."""
    submit(driver, "gang", 16)
    start(driver, "gang")
    submit(driver, "holder", 16)
    start(driver, "holder")
    for number, (gpus, priority) in enumerate(fresh):
        submit(driver, f"f{number}", gpus, priority=priority)
    lose(driver, "n01", 1)
    driver.give(build.stopped("gang", "n00", driver.now_ms, StopCause.GANG_BROKEN))


@pytest.mark.parametrize(("gpus", "priority"), list(product([1, 4, 8, 16], [1, 5, 100])))
def test_the_slots_that_come_free_are_its_own_whatever_fresh_jobs_are_worth(gpus: int, priority: int) -> None:
    driver = cluster(4)
    broken(driver, [(gpus, priority)] * 6)
    driver.pass_ms(600_000)
    driver.give(*(build.completed("holder", part.node, driver.now_ms) for part in driver.job("holder").parts))
    assert driver.job("gang").state is JobState.STARTING
    assert driver.job("gang").attempt == 2
    assert not driver.job("gang").restores, "placed again it is a job like others"


def test_half_of_its_place_is_not_filled_for_long_while_the_other_half_is_awaited() -> None:
    driver = cluster(3)
    submit(driver, "gang", 16)
    start(driver, "gang")
    submit(driver, "holder", 8)
    start(driver, "holder")
    assert [part.node for part in driver.job("gang").parts] == ["n00", "n01"]
    for number in range(4):
        submit(driver, f"long{number}", 4, seconds=86_400, priority=100)
    lose(driver, "n00", 0)
    driver.give(build.stopped("gang", "n01", driver.now_ms, StopCause.GANG_BROKEN))
    assert [job.job_id for job in driver.state.jobs.values() if job.parts] == ["holder"]
    driver.give(build.completed("holder", "n02", driver.now_ms))
    assert [part.node for part in driver.job("gang").parts] == ["n01", "n02"]


def test_where_it_can_have_no_place_nobody_waits_for_it() -> None:
    driver = cluster(2)
    submit(driver, "gang", 16)
    start(driver, "gang")
    lose(driver, "n01", 1)
    driver.give(build.stopped("gang", "n00", driver.now_ms, StopCause.GANG_BROKEN))
    submit(driver, "small", 4)
    assert driver.job("small").parts


@pytest.mark.parametrize("nodes", [1, 2])
def test_only_gangs_that_lost_a_node_go_first(nodes: int) -> None:
    driver = cluster(2)
    submit(driver, "j", 8 * nodes)
    start(driver, "j")
    if nodes == 1:
        lose(driver, driver.job("j").parts[0].node, 0)
    else:
        driver.give(*(build.stopped("j", part.node, driver.now_ms, StopCause.DRAIN) for part in driver.job("j").parts))
    assert not driver.job("j").restores


def test_it_is_chosen_for_planning_among_any_number_of_jobs() -> None:
    driver = cluster(4)
    broken(driver, [(1, 100)] * 12)
    found = precedence_of(driver.state, index_of(driver.state), build.POOL, 3, frozenset(), POLICY, driver.now_ms)
    assert found.more
    assert "gang" in [job.job_id for job in found.queued]
    assert found.priorities["gang"] >= OVERDUE_PRIORITY

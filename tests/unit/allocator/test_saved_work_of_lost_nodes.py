"""What a job saved before its node was lost is its own, in whatever order the two are heard: topics are read side by side."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec.structs import replace

from schemas.base import Event
from schemas.executions import JobCheckpointed, StopCause
from schemas.nodes import Health
from schemas.status import JobState
from tests import build
from tests.allocator_driver import Driver

PLACE = "/data/j/4000"


def saved(node: str, fraction: float, *, attempt: int = 1, place: str = PLACE) -> JobCheckpointed:
    return JobCheckpointed(
        job_id="j",
        attempt=attempt,
        node=node,
        cluster=build.CLUSTER,
        time_ms=build.START_MS + 30_000,
        fraction=fraction,
        location=place,
    )


def lost(driver: Driver, node: str) -> Event:
    return replace(build.node(node, order=int(node[1:]), health=Health.LOST), time_ms=driver.now_ms)


def empty(driver: Driver, node: str) -> Event:
    return build.reported(node, driver.now_ms, applied=10_000, epoch=9, boot_id="b/2")


def running(gpus: int, nodes: int) -> Driver:
    driver = Driver().give(*(build.node(f"n{i:02}", order=i) for i in range(nodes)))
    driver.give(build.accepted("j", gpus), build.forecast("j", {gpus: 3600}))
    driver.give(*(build.started("j", part.node, driver.now_ms) for part in driver.job("j").parts))
    return driver.pass_ms(60_000)


@pytest.mark.parametrize("how", [lost, empty])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("gpus", "nodes"), [(8, 1), (8, 2), (16, 2), (16, 3), (16, 4)])
def test_a_job_goes_on_from_what_it_saved_whenever_that_is_heard(gpus: int, nodes: int, at_once: bool, how) -> None:
    resumed = []
    for order in permutations(range(3)):
        driver = running(gpus, nodes)
        node = driver.job("j").parts[-1].node
        words = [saved(node, 0.2, place="/data/j/2000"), saved(node, 0.4), how(driver, node)]
        said = [words[number] for number in order]
        for events in [said] if at_once else [[event] for event in said]:
            driver.give(*events)
        for part in [part for part in driver.job("j").parts if driver.job("j").stop_cause]:
            driver.give(build.stopped("j", part.node, driver.now_ms, StopCause.GANG_BROKEN))
        job = driver.job("j")
        if job.attempt == 1:
            resumed.append((job.fraction, job.location))
            assert job.state is JobState.QUEUED
        elif order[2] == 2 or at_once:  # else it had begun anew before this was heard
            resumed.append((job.fraction_at_start, driver.placement(job.parts[0].node).assignments[0].resume_location))
    assert set(resumed) == {(0.4, PLACE)}


def test_what_an_attempt_saved_is_of_the_past_once_the_next_has_begun() -> None:
    driver = running(8, 2)
    before = driver.job("j").parts[0].node
    driver.give(lost(driver, before))
    assert driver.job("j").attempt == 2
    driver.give(saved(before, 0.9))
    assert (driver.job("j").fraction, driver.job("j").location) == (0.0, "")


def test_of_several_words_that_come_late_the_furthest_counts() -> None:
    driver = running(8, 1)
    driver.give(lost(driver, "n00"))
    driver.give(saved("n00", 0.4)).give(saved("n00", 0.2, place="/data/j/2000")).give(saved("n01", 0.9))
    assert (driver.job("j").fraction, driver.job("j").location) == (0.4, PLACE)
    assert driver.job("j").state is JobState.QUEUED

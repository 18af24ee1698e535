"""A node is taken for lost, and what became of its jobs is heard later, or elsewhere: ends count, interruptions are no failures."""

from __future__ import annotations

from itertools import permutations

import pytest

from schemas.base import Event
from schemas.commands import DrainNode
from schemas.executions import StopCause
from schemas.jobs import JobRevoked, RestartMode, RestartPolicy
from schemas.nodes import Health
from schemas.status import JobState
from services.allocator.core.phases import Phase
from services.allocator.core.state import PART_FAILED, PART_LOST
from tests import build
from tests.allocator_driver import Driver
from tests.shared_cards import CARDS, HALVES, half_job, shaped, shared

RETRIES = RestartPolicy(mode=RestartMode.ON_FAILURE, attempts_max=3, backoff_s=60.0)


def running(size: int, nodes: int = 1, **changed) -> Driver:
    """A cluster of 8-GPU nodes on which job `j` has run for a minute; it never restarts after a failure unless told otherwise."""
    driver = Driver()
    driver.give(*[build.node(f"n{i:02}", order=i) for i in range(nodes)])
    driver.give(build.accepted("j", size, **changed), build.forecast("j", {size: 3600}))
    for part in list(driver.job("j").parts):
        driver.give(build.started("j", part.node, driver.now_ms))
    assert driver.job("j").state is JobState.RUNNING
    return driver.pass_ms(60_000)


def lost(name: str) -> Event:
    return build.node(name, order=int(name[1:]), health=Health.LOST)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("order", list(permutations(range(2))))
def test_a_failure_is_one_whether_its_node_is_lost_before_or_after(order: tuple[int, ...], at_once: bool) -> None:
    driver = running(8)
    words = [build.failed("j", "n00", driver.now_ms, detail="exit code 3"), lost("n00")]
    said = [words[number] for number in order]
    for events in [said] if at_once else [[event] for event in said]:
        driver.give(*events)
    assert driver.state.finished["j"].state is JobState.FAILED
    assert driver.status("j").detail == "exit code 3"
    driver.give(build.node("n00"))
    assert "j" not in driver.state.jobs


def test_a_failure_heard_late_waits_for_the_back_off_that_began_with_it() -> None:
    driver = running(8, restart=RETRIES)
    failed_ms = driver.now_ms
    driver.give(lost("n00")).pass_ms(20_000).give(build.failed("j", "n00", failed_ms))
    job = driver.job("j")
    assert (job.phase, job.failures, job.not_before_ms) == (Phase.QUEUED, 1, failed_ms + 60_000)
    assert job.reason == "requeue_backoff"
    driver.give(build.node("n00"))
    assert driver.job("j").attempt == 1
    driver.pass_ms(40_000).give()
    assert driver.job("j").attempt == 2


def test_a_failure_heard_again_counts_once() -> None:
    driver = running(8, restart=RETRIES)
    word = build.failed("j", "n00", driver.now_ms)
    driver.give(lost("n00")).give(word).give(word)
    assert driver.job("j").failures == 1


def test_a_planned_job_gives_up_its_plan_with_its_late_failure() -> None:
    driver = Driver()
    driver.give(build.node("n00"), build.node("n01", order=1))
    driver.give(build.accepted("first", 8), build.forecast("first", {8: 3600}))
    driver.give(build.accepted("j", 8, restart=RETRIES), build.forecast("j", {8: 3600}))
    here = driver.job("j").parts[0].node
    driver.give(build.started("j", here, driver.now_ms)).give(lost(here))
    assert driver.job("j").phase is Phase.PLANNED
    driver.give(build.failed("j", here, driver.now_ms))
    job = driver.job("j")
    assert (job.phase, job.planned_start_p50_ms, job.reason) == (Phase.QUEUED, None, "requeue_backoff")


def test_a_failure_heard_after_the_next_start_changes_nothing() -> None:
    driver = running(8, nodes=2)
    here = driver.job("j").parts[0].node
    driver.give(lost(here))
    assert driver.job("j").attempt == 2
    driver.give(build.failed("j", here, driver.now_ms))
    assert (driver.job("j").state, driver.job("j").failures) == (JobState.STARTING, 0)


def test_what_broke_with_its_card_did_not_fail() -> None:
    driver = shared(halves=2).give(half_job("h", 1), build.forecast("h", {1: 600}))
    driver.give(build.started("h", HALVES, driver.now_ms))
    driver.give(shaped([build.POOL] * CARDS, 2))  # its machine was restarted and its slot is gone
    assert driver.job("h").earlier[1][0].status == PART_LOST
    driver.give(build.failed("h", HALVES, driver.now_ms))
    assert (driver.job("h").state, driver.job("h").failures) == (JobState.QUEUED, 0)


@pytest.mark.parametrize("order", list(permutations(range(2))))
def test_a_limit_is_reached_whether_its_node_is_lost_before_or_after(order: tuple[int, ...]) -> None:
    driver = running(8, time_limit_s=7200.0)
    driver.pass_ms(7_140_000)
    words = [build.stopped("j", "n00", driver.now_ms, StopCause.TIME_LIMIT), lost("n00")]
    for number in order:
        driver.give(words[number])
    assert driver.state.finished["j"].state is JobState.TIMED_OUT


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_gangs_limit_is_reached_wherever_it_is_heard(order: tuple[int, ...]) -> None:
    driver = running(16, nodes=2, time_limit_s=7200.0)
    driver.pass_ms(7_140_000)
    words = [
        lost("n00"),
        build.stopped("j", "n00", driver.now_ms, StopCause.TIME_LIMIT),
        build.stopped("j", "n01", driver.now_ms, StopCause.GANG_BROKEN),
    ]
    for number in order:
        driver.give(words[number])
    assert driver.state.finished["j"].state is JobState.TIMED_OUT


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("of_the_lost_one", "order"),
    [("stopped", order) for order in permutations(range(3))]
    + [("failed", order) for order in permutations(range(3)) if order.index(1) < order.index(2)],
)
def test_a_gang_that_breaks_with_its_node_did_not_fail(
    of_the_lost_one: str, order: tuple[int, ...], at_once: bool
) -> None:
    """The survivor ends with an error because its peer is gone, long before anybody takes the node for lost."""
    driver = running(16, nodes=2)
    late = {
        "failed": build.failed("j", "n01", driver.now_ms),
        "stopped": build.stopped("j", "n01", driver.now_ms, StopCause.NODE_LOST),
    }
    words = [build.failed("j", "n00", driver.now_ms), lost("n01"), late[of_the_lost_one]]
    said = [words[number] for number in order]
    for events in [said] if at_once else [[event] for event in said]:
        driver.give(*events)
    job = driver.job("j")
    assert job.failures == 0
    assert sorted(part.status for part in job.earlier[1]) == sorted((PART_FAILED, PART_LOST))
    assert job.restores or job.attempt == 2, "it goes before fresh jobs"


def test_a_gang_whose_machine_restarted_stops_its_other_parts_and_did_not_fail() -> None:
    driver = running(16, nodes=2)
    driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.NODE_LOST))
    assert driver.placement("n01").assignments[0].stop_cause is StopCause.GANG_BROKEN
    driver.give(build.failed("j", "n01", driver.now_ms))
    assert (driver.job("j").attempt, driver.job("j").failures) == (2, 0)


def test_what_a_gang_waits_for_after_a_loss_is_not_told_as_a_failure() -> None:
    driver = running(16, nodes=2)
    driver.give(build.failed("j", "n00", driver.now_ms, detail="exit code 1")).give(lost("n01"))
    assert driver.job("j").cause == StopCause.NODE_LOST.value


def test_a_gang_that_is_being_stopped_for_a_drain_does_not_fail() -> None:
    driver = running(16, nodes=2)
    driver.give(DrainNode(node="n00", cluster=build.CLUSTER, ordered_ms=driver.now_ms, deadline_s=0.0))
    assert driver.job("j").stop_cause == StopCause.DRAIN.value
    driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.DRAIN), build.failed("j", "n01", driver.now_ms))
    job = driver.job("j")
    assert (job.state, job.failures, job.cause) == (JobState.QUEUED, 0, StopCause.DRAIN.value)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_limit_reached_before_a_drains_stop_ends_the_job_unless_users_did(cancelled: bool) -> None:
    driver = running(8)
    driver.give(DrainNode(node="n00", cluster=build.CLUSTER, ordered_ms=driver.now_ms, deadline_s=0.0))
    if cancelled:
        driver.give(JobRevoked(job_id="j", cluster=build.CLUSTER, revoked_ms=driver.now_ms))
    driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.TIME_LIMIT))
    assert driver.state.finished["j"].state is (JobState.CANCELLED if cancelled else JobState.TIMED_OUT)


def test_a_single_job_that_fails_before_its_stop_has_failed() -> None:
    driver = running(8)
    driver.give(DrainNode(node="n00", cluster=build.CLUSTER, ordered_ms=driver.now_ms, deadline_s=0.0))
    assert driver.job("j").stop_cause == StopCause.DRAIN.value
    driver.give(build.failed("j", "n00", driver.now_ms))
    assert driver.state.finished["j"].state is JobState.FAILED

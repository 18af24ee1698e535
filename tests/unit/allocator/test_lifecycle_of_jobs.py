"""What reports do to jobs: ends, gangs, restarts, late completions, lost nodes. All through `decide`, as in production."""

from __future__ import annotations

from itertools import permutations

import pytest

from schemas.executions import StopCause
from schemas.jobs import JobRevoked, RestartMode, RestartPolicy
from schemas.nodes import Health
from schemas.status import JobState
from services.allocator.core.commit import LIMIT_GRACE_S
from services.allocator.core.state import PART_LOST
from tests import build
from tests.allocator_driver import SETTINGS, Driver

HOUR_MS = 3_600_000
GRACE_MS = int(LIMIT_GRACE_S * 1000)


def running(*sizes: int, nodes: int = 2, **changed) -> Driver:
    """A cluster on which job `j` runs since the start."""
    driver = Driver()
    driver.give(*[build.node(f"n{i:02}", order=i) for i in range(nodes)])
    driver.give(build.accepted("j", *sizes, **changed), build.forecast("j", dict.fromkeys(sizes, 3600)))
    assert driver.job("j").state is JobState.STARTING
    for part in list(driver.job("j").parts):
        driver.give(build.started("j", part.node, driver.now_ms))
    assert driver.job("j").state is JobState.RUNNING
    return driver


def test_a_completed_job_is_final_and_frees_its_gpus() -> None:
    driver = running(8, nodes=1)
    driver.give(build.accepted("next", 8), build.forecast("next", {8: 600}))
    assert driver.job("next").state is JobState.QUEUED
    driver.pass_ms(HOUR_MS).give(build.completed("j", "n00", driver.now_ms))
    assert driver.state.finished["j"].state is JobState.COMPLETED
    assert driver.state.finished["j"].ended_ms == driver.now_ms
    assert driver.job("next").state is JobState.STARTING


def test_a_redelivered_job_never_starts_again_after_its_end() -> None:
    driver = running(1)
    driver.give(build.completed("j", driver.job("j").parts[0].node, driver.now_ms))
    driver.give(build.accepted("j", 1))
    assert "j" not in driver.state.jobs


def test_a_gang_completes_only_with_its_last_node() -> None:
    driver = running(16)
    driver.give(build.completed("j", "n00", driver.now_ms))
    assert driver.job("j").state is JobState.RUNNING
    driver.give(build.completed("j", "n01", driver.now_ms))
    assert driver.state.finished["j"].state is JobState.COMPLETED


def test_one_failed_node_stops_the_gang_and_ends_it() -> None:
    driver = running(16)
    driver.give(build.failed("j", "n00", driver.now_ms, exit_code=3, detail="exit code 3"))
    job = driver.job("j")
    assert (job.state, job.stop_cause) == (JobState.STOPPING, StopCause.GANG_BROKEN.value)
    driver.give(build.stopped("j", "n01", driver.now_ms, StopCause.GANG_BROKEN))
    assert driver.state.finished["j"].state is JobState.FAILED
    assert driver.status("j").detail == "exit code 3"


def test_a_failure_restarts_with_back_off_until_the_policy_ends_it() -> None:
    policy = RestartPolicy(mode=RestartMode.ON_FAILURE, attempts_max=3, backoff_s=60.0)
    driver = running(1, restart=policy)
    for attempt, wait_ms in ((1, 60_000), (2, 120_000)):
        driver.give(build.failed("j", driver.job("j").parts[0].node, driver.now_ms, attempt=attempt))
        job = driver.job("j")
        assert job.state is JobState.QUEUED
        assert job.reason == "requeue_backoff"
        driver.pass_ms(wait_ms - 1).give()
        assert driver.job("j").state is JobState.QUEUED
        driver.pass_ms(1).give()
        assert driver.job("j").attempt == attempt + 1
    driver.give(build.failed("j", driver.job("j").parts[0].node, driver.now_ms, attempt=3))
    assert driver.state.finished["j"].state is JobState.FAILED


def test_always_restarts_without_limit_but_not_in_circles() -> None:
    driver = running(1, restart=RestartPolicy(mode=RestartMode.ALWAYS))
    for attempt in range(1, 9):
        driver.give(build.failed("j", driver.job("j").parts[0].node, driver.now_ms, attempt=attempt))
        assert driver.job("j").state is JobState.QUEUED
        wait_ms = 10_000 * 2 ** min(attempt - 1, 6)
        assert driver.job("j").not_before_ms == driver.now_ms + wait_ms
        driver.pass_ms(wait_ms).give()
        assert driver.job("j").attempt == attempt + 1


def test_a_lost_node_requeues_with_the_saved_work_and_is_no_failure() -> None:
    driver = running(8)
    node = driver.job("j").parts[0].node
    driver.give(build.node(node, order=int(node[1:]), health=Health.LOST))
    job = driver.job("j")
    assert job.failures == 0
    assert job.attempt == 2
    assert job.parts[0].node != node
    assert job.earlier[1][0].status == PART_LOST


def test_a_suspect_node_keeps_its_job_and_takes_nothing_new() -> None:
    driver = running(4, nodes=1)
    driver.give(build.node("n00", health=Health.SUSPECT))
    driver.give(build.accepted("new", 2), build.forecast("new", {2: 600}))
    assert driver.job("j").state is JobState.RUNNING
    assert driver.job("new").state is JobState.QUEUED
    assert driver.job("new").reason == "node_degraded"


def test_a_late_completion_wins_over_the_relaunch() -> None:
    driver = running(8)
    node = driver.job("j").parts[0].node
    driver.give(build.node(node, order=int(node[1:]), health=Health.LOST))
    other = driver.job("j").parts[0].node
    driver.give(build.completed("j", node, driver.now_ms, attempt=1))
    job = driver.job("j")
    assert (job.state, job.stop_cause) == (JobState.STOPPING, StopCause.FENCED.value)
    driver.give(build.stopped("j", other, driver.now_ms, StopCause.FENCED, attempt=2))
    assert driver.state.finished["j"].state is JobState.COMPLETED


def test_a_late_completion_of_a_queued_job_ends_it_at_once() -> None:
    driver = running(8, nodes=1)
    driver.give(build.node("n00", health=Health.LOST))
    assert driver.job("j").state is JobState.QUEUED
    driver.give(build.completed("j", "n00", driver.now_ms, attempt=1))
    assert driver.state.finished["j"].state is JobState.COMPLETED


def test_an_older_attempts_reports_change_nothing_else() -> None:
    driver = running(8)
    node = driver.job("j").parts[0].node
    driver.give(build.node(node, order=int(node[1:]), health=Health.LOST))
    before = driver.job("j").attempt
    driver.give(build.failed("j", node, driver.now_ms, attempt=1), build.started("j", node, driver.now_ms, attempt=1))
    assert driver.job("j").attempt == before
    assert driver.job("j").failures == 0


def test_cancel_queued_is_final_at_once_and_cancel_running_waits_for_the_stop() -> None:
    driver = running(8, nodes=1)
    driver.give(build.accepted("q", 8), JobRevoked(job_id="q", cluster="c0", revoked_ms=driver.now_ms))
    assert driver.state.finished["q"].state is JobState.CANCELLED
    driver.give(JobRevoked(job_id="j", cluster="c0", revoked_ms=driver.now_ms))
    assert driver.job("j").state is JobState.STOPPING
    assert driver.placement("n00").assignments[0].stop_cause is StopCause.CANCELLED
    driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.CANCELLED))
    assert driver.state.finished["j"].state is JobState.CANCELLED


def test_the_time_limit_stops_and_ends_as_timed_out() -> None:
    driver = running(1, nodes=1, time_limit_s=7200.0)
    driver.pass_ms(2 * HOUR_MS + GRACE_MS - 1).give()
    assert driver.job("j").state is JobState.RUNNING, "its executor stops it, and measures better"
    driver.pass_ms(1).give()
    assert driver.job("j").stop_cause == StopCause.TIME_LIMIT.value
    driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.TIME_LIMIT))
    assert driver.state.finished["j"].state is JobState.TIMED_OUT


def test_a_limit_that_an_executor_enforced_stops_the_whole_gang() -> None:
    driver = running(16, nodes=2, time_limit_s=7200.0)
    driver.pass_ms(2 * HOUR_MS).give(build.stopped("j", "n00", driver.now_ms, StopCause.TIME_LIMIT))
    assert driver.job("j").state is JobState.STOPPING
    assert driver.placement("n01").assignments[0].stop_cause is StopCause.TIME_LIMIT
    driver.give(build.stopped("j", "n01", driver.now_ms, StopCause.TIME_LIMIT))
    assert driver.state.finished["j"].state is JobState.TIMED_OUT


def test_a_node_that_reports_without_the_job_has_lost_it() -> None:
    driver = running(8, nodes=1)
    driver.give(build.reported("n00", driver.now_ms, applied=driver.state.sequence))
    assert driver.job("j").attempt == 2


def test_a_report_older_than_the_placement_says_nothing_about_it() -> None:
    driver = running(8, nodes=1)
    driver.give(build.reported("n00", driver.now_ms, applied=0))
    assert driver.job("j").attempt == 1


def test_an_eight_gpu_node_with_six_healthy_gpus_has_none_free_under_its_job() -> None:
    driver = running(8, nodes=1)
    driver.give(build.node("n00", unhealthy=(6, 7)))
    driver.give(build.accepted("four", 4), build.forecast("four", {4: 600}))
    assert driver.job("j").state is JobState.RUNNING
    assert driver.job("four").state is JobState.QUEUED


def test_a_job_alone_on_its_arrival_is_told_to_wait_for_its_forecast_and_planned_with_it() -> None:
    driver = Driver()
    driver.give(build.node("n00"))
    driver.give(build.accepted("j", 8))
    assert driver.job("j").reason == "awaiting_forecast"
    assert driver.log[-1].effects
    driver.give(build.accepted("k", 1), build.forecast("j", {8: 600}))
    assert driver.job("j").state is JobState.STARTING
    assert driver.job("k").reason == "awaiting_forecast"
    driver.pass_ms(SETTINGS.policy.forecast_wait_ms).give()
    assert driver.job("k").reason == "waiting_for_gpus"


def test_a_job_that_arrives_again_is_not_told_anything() -> None:
    driver = running(8, nodes=1)
    driver.give(build.accepted("j", 8))
    assert driver.log[-1].effects == []


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_a_gang_that_completed_is_complete_whenever_its_nodes_are_said_to_be_lost(
    order: tuple[int, ...], at_once: bool, nodes: int
) -> None:
    driver = running(16, nodes=nodes)
    first, second = sorted(part.node for part in driver.job("j").parts)
    driver.pass_ms(60_000)
    words = [
        build.completed("j", first, driver.now_ms),
        build.completed("j", second, driver.now_ms),
        build.node(first, order=int(first[1:]), health=Health.LOST),
        build.node(second, order=int(second[1:]), health=Health.LOST),
    ]
    said = [words[number] for number in order]
    for events in [said] if at_once else [[event] for event in said]:
        driver.give(*events)
    if "j" in driver.state.jobs:
        assert driver.job("j").attempt == 2, "nobody knew when it was started again"
        for part in list(driver.job("j").parts):
            driver.give(build.stopped("j", part.node, driver.now_ms, StopCause.FENCED, attempt=2))
    assert driver.state.finished["j"].state is JobState.COMPLETED


def test_a_gang_whose_lost_part_had_completed_still_lost_a_node() -> None:
    driver = running(16)
    driver.give(build.node("n01", order=1, health=Health.LOST), build.completed("j", "n01", driver.now_ms))
    assert driver.job("j").stop_cause == StopCause.GANG_BROKEN.value
    driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.GANG_BROKEN))
    assert (driver.job("j").state, driver.job("j").restores) == (JobState.QUEUED, True)
    assert driver.job("j").failures == 0

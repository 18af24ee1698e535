"""A machine whose clock is wrong says wrong times: limits and back-off don't follow them."""

from __future__ import annotations

import pytest

from schemas.executions import StopCause
from schemas.jobs import RestartMode, RestartPolicy
from schemas.status import JobState
from services.allocator.core.commit import LIMIT_GRACE_S
from tests import build
from tests.allocator_driver import Driver

AHEAD_MS = [-3_600_000, -400_000, 0, 400_000, 40 * 86_400_000]


def placed_job(**changed) -> Driver:
    driver = Driver()
    driver.give(build.node("n00"))
    return driver.give(build.accepted("j", 1, **changed), build.forecast("j", {1: 600}))


@pytest.mark.parametrize("ahead_ms", AHEAD_MS)
def test_a_time_limit_counts_from_the_report_of_the_start_whatever_it_says(ahead_ms: int):
    driver = placed_job(time_limit_s=100.0).pass_ms(60_000)
    driver.give(build.started("j", "n00", driver.now_ms + ahead_ms))
    driver.pass_ms(99_000 + int(LIMIT_GRACE_S * 1000)).give()
    assert driver.job("j").state is JobState.RUNNING
    driver.pass_ms(1_000).give()
    assert driver.job("j").stop_cause == StopCause.TIME_LIMIT.value


def test_a_successor_whose_clock_is_ahead_takes_nothing_from_a_job():
    """Found by a seed: one allocator heard of the start, the other, 800 s ahead, judged the limit."""
    driver = placed_job(time_limit_s=100.0).pass_ms(1_000)
    driver.give(build.started("j", "n00", driver.now_ms))
    driver.pass_ms(800_000).give()
    assert driver.job("j").state is JobState.RUNNING


@pytest.mark.parametrize("ahead_ms", AHEAD_MS)
def test_back_off_counts_from_an_end_that_can_be_true(ahead_ms: int):
    policy = RestartPolicy(mode=RestartMode.ON_FAILURE, attempts_max=3, backoff_s=60.0)
    driver = placed_job(restart=policy).pass_ms(1_000)
    driver.give(build.failed("j", "n00", driver.now_ms + ahead_ms))
    driver.pass_ms(59_000).give()
    assert driver.job("j").state is JobState.QUEUED
    driver.pass_ms(1_000).give()
    assert (driver.job("j").state, driver.job("j").attempt) == (JobState.STARTING, 2)


@pytest.mark.parametrize("ahead_ms", AHEAD_MS)
def test_a_job_ends_when_it_may_have_ended(ahead_ms: int):
    driver = placed_job().pass_ms(5_000)
    driver.give(build.completed("j", "n00", driver.now_ms + ahead_ms))
    assert build.START_MS <= driver.state.finished["j"].ended_ms <= driver.now_ms

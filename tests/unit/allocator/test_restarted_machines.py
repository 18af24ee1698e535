"""A node that was restarted lost its processes: they are requeued as interrupted, and an end from before still counts."""

from __future__ import annotations

from schemas.executions import HeldGpus, NodeReported, StopCause
from schemas.status import JobState
from tests import build
from tests.allocator_driver import Driver


def reported(driver: Driver, boot_id: str, *held: str) -> NodeReported:
    running = [HeldGpus(job_id=job_id, attempt=1, gpus=[0]) for job_id in held]
    return build.reported("n00", driver.now_ms, applied=driver.state.sequence, boot_id=boot_id, running=running)


def running() -> Driver:
    driver = Driver().give(build.node("n00"))
    driver.give(reported(driver, "one/1"))
    driver.give(build.accepted("j", 1), build.forecast("j", {1: 600})).give(build.started("j", "n00", driver.now_ms))
    assert driver.job("j").state is JobState.RUNNING
    return driver


def test_what_ran_on_a_restarted_machine_is_interrupted_and_not_failed():
    driver = running()
    driver.give(reported(driver, "two/1", "j"))
    assert (driver.job("j").attempt, driver.job("j").failures) == (2, 0)


def test_an_executor_that_came_back_alone_interrupts_nothing():
    driver = running()
    driver.give(reported(driver, "one/1", "j"))
    assert (driver.job("j").state, driver.job("j").attempt) == (JobState.RUNNING, 1)


def test_an_end_from_before_the_restart_wins_over_the_next_attempt():
    driver = running()
    driver.give(reported(driver, "two/1", "j")).give(build.completed("j", "n00", driver.now_ms))
    driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.FENCED, attempt=2))
    assert driver.state.finished["j"].state is JobState.COMPLETED


def test_the_end_of_any_earlier_attempt_wins_not_only_of_the_last_one():
    driver = running()
    for boot in ("two/1", "three/1", "four/1"):
        driver.give(reported(driver, boot))
        driver.give(build.started("j", "n00", driver.now_ms, driver.job("j").attempt))
    driver.give(build.completed("j", "n00", driver.now_ms, attempt=1))
    assert driver.job("j").stop_cause == StopCause.FENCED.value
    driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.FENCED, attempt=4))
    assert driver.state.finished["j"].state is JobState.COMPLETED

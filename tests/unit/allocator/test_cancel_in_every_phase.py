"""Jobs brought into every phase by real events: a cancellation ends each, nothing else follows, and its GPUs are free again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from schemas.commands import CheckpointJob
from schemas.executions import JobCheckpointed, StopCause
from schemas.forecasts import DurationForecast
from schemas.jobs import CheckpointMode, CheckpointPolicy, JobRevoked, RestartMode, RestartPolicy
from schemas.nodes import Health
from schemas.status import JobState
from services.allocator.core.commit import LIMIT_GRACE_S
from services.allocator.core.phases import FINAL, HOLDING, Phase
from tests import build
from tests.allocator_driver import Driver

SAVES = CheckpointPolicy(mode=CheckpointMode.SIGNAL)
RESTARTS = RestartPolicy(mode=RestartMode.ON_FAILURE, attempts_max=9, backoff_s=600.0)


def accepted() -> Driver:
    driver = Driver()
    driver.give(build.node("n00"))
    return driver.give(build.accepted("j", 8, checkpoint=SAVES, restart=RESTARTS))


def starting() -> Driver:
    return accepted().give(build.forecast("j", {8: 3600}))


def running() -> Driver:
    driver = starting()
    return driver.give(build.started("j", "n00", driver.now_ms))


def checkpointing() -> Driver:
    driver = running()
    return driver.give(CheckpointJob(job_id="j", cluster="c0", ordered_ms=driver.now_ms))


def queued() -> Driver:
    """Back in the queue after a failure; nothing is planned during its back-off."""
    driver = running()
    return driver.give(build.failed("j", "n00", driver.now_ms))


def planned() -> Driver:
    driver = Driver()
    driver.give(build.node("n00"))
    driver.give(build.accepted("first", 8), build.forecast("first", {8: 3600}))
    driver.give(build.started("first", "n00", driver.now_ms))
    return driver.give(build.accepted("j", 8, checkpoint=SAVES), build.forecast("j", {8: 3600}))


def lost() -> Driver:
    driver = running()
    return driver.give(build.node("n00", health=Health.LOST))


def stopping() -> Driver:
    driver = running()
    driver.pass_ms(int((driver.job("j").spec.time_limit_s + LIMIT_GRACE_S) * 1000)).give()
    return driver


MAKERS: dict[str, Callable[[], Driver]] = {
    "accepted": accepted,
    "queued": queued,
    "planned": planned,
    "starting": starting,
    "running": running,
    "checkpointing": checkpointing,
    "stopping": stopping,
    "lost": lost,
}


def phase_of(driver: Driver) -> Phase:
    return driver.job("j").phase


@pytest.mark.parametrize("name", MAKERS)
def test_a_cancelled_job_ends_as_cancelled_from_any_phase(name: str) -> None:
    driver = MAKERS[name]()
    before = phase_of(driver)
    held = before in HOLDING
    driver.give(JobRevoked(job_id="j", cluster="c0", revoked_ms=driver.now_ms))
    if held:
        assert phase_of(driver) is Phase.STOPPING
        assert driver.placement("n00").assignments[0].stop_cause is StopCause.CANCELLED
        driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.CANCELLED))
    assert driver.state.finished["j"].state is JobState.CANCELLED
    assert driver.status("j").state is JobState.CANCELLED
    for _ in range(2):
        driver.pass_ms(3_600_000).give(build.accepted("j", 8))
    assert "j" not in driver.state.jobs
    if name not in ("planned", "lost"):
        driver.give(build.accepted("next", 8), build.forecast("next", {8: 600}))
        assert driver.job("next").state is JobState.STARTING


def test_the_makers_cover_every_phase_that_is_not_an_end() -> None:
    found = {name: phase_of(make()) for name, make in MAKERS.items()}
    wanted = {phase.value for phase in Phase if phase not in FINAL}
    # Told to wait for its forecast in the very decision that accepted it, a job is queued: accepted lasts no longer than that.
    assert found.pop("accepted") is Phase.QUEUED
    assert {phase.value for phase in found.values()} | {"accepted", "lost"} == wanted
    assert found["lost"] in (Phase.LOST, Phase.QUEUED)


def test_a_checkpoint_that_came_lets_the_job_run_on() -> None:
    driver = checkpointing()
    assert phase_of(driver) is Phase.CHECKPOINTING
    assert driver.status("j").state is JobState.RUNNING
    saved = JobCheckpointed(job_id="j", attempt=1, node="n00", cluster="c0", time_ms=driver.now_ms, fraction=0.5)
    driver.give(saved)
    assert phase_of(driver) is Phase.RUNNING


def test_a_job_cancelled_while_it_times_out_is_cancelled() -> None:
    driver = stopping()
    assert driver.job("j").stop_cause == StopCause.TIME_LIMIT.value
    driver.give(JobRevoked(job_id="j", cluster="c0", revoked_ms=driver.now_ms))
    driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.TIME_LIMIT))
    assert driver.state.finished["j"].state is JobState.CANCELLED


def test_overtime_changes_nothing_but_the_forecast_until_the_limit() -> None:
    driver = running()
    driver.pass_ms(2 * 3_600_000).give()
    assert phase_of(driver) is Phase.RUNNING
    later = DurationForecast(
        job_id="j",
        cluster="c0",
        made_ms=driver.now_ms,
        model="test",
        sizes=build.forecast("j", {8: 4 * 3600}).sizes,
        attempt=1,
        elapsed_s=7200.0,
    )
    driver.give(later)
    assert driver.job("j").placed_p50_s == 4 * 3600
    assert phase_of(driver) is Phase.RUNNING
    assert (driver.status("j").state, driver.status("j").reason) == (JobState.RUNNING, "overtime")
    limit_ms = int(driver.job("j").spec.time_limit_s * 1000)
    driver.pass_ms(limit_ms + int(LIMIT_GRACE_S * 1000)).give()
    assert phase_of(driver) is Phase.STOPPING
    driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.TIME_LIMIT))
    assert driver.state.finished["j"].state is JobState.TIMED_OUT

"""What executors say about applications that serve and GPUs that are not free, and what follows for status and grid."""

from __future__ import annotations

from schemas.executions import FailureCause, JobFailed, JobPrepared, JobReady, NodeReported
from schemas.jobs import ApplicationAccepted, ApplicationSpec, ProbeKind, Readiness
from schemas.status import JobState
from tests import build
from tests.allocator_driver import Driver

PROBE = Readiness(kind=ProbeKind.TCP)


def serving(readiness: Readiness | None) -> Driver:
    spec = ApplicationSpec(
        team="t", user="u", priority=50, floor_gpus=2, peak_gpus=2, switch_max=2, template="serve", readiness=readiness
    )
    app = ApplicationAccepted(
        app_id="chat", cluster="c0", pool=build.POOL, accepted_ms=build.START_MS, digest="d", spec=spec
    )
    return Driver().give(build.node("n00")).give(app)


def ready(driver: Driver, serves: bool) -> JobReady:
    return JobReady(job_id="chat", attempt=1, node="n00", cluster="c0", time_ms=driver.now_ms, ready=serves)


def reported(driver: Driver, *gpus: int) -> NodeReported:
    return build.reported("n00", driver.now_ms, applied=driver.state.sequence, quarantined=gpus)


def test_an_application_counts_as_running_once_it_serves() -> None:
    driver = serving(PROBE)
    assert driver.status("chat").state is JobState.STARTING
    (wanted,) = driver.placement("n00").assignments
    assert wanted.readiness == PROBE
    driver.give(ready(driver, True))
    assert driver.status("chat").state is JobState.RUNNING
    driver.give(ready(driver, False))
    assert driver.status("chat").state is JobState.STARTING


def test_an_application_whose_process_ended_serves_no_longer() -> None:
    driver = serving(PROBE)
    driver.give(ready(driver, True))
    ended = JobFailed(
        job_id="chat", attempt=1, node="n00", cluster="c0", time_ms=driver.now_ms, cause=FailureCause.EXIT_CODE
    )
    driver.give(ended)
    assert driver.status("chat").state is JobState.STARTING
    assert driver.state.apps["chat"].parts


def test_without_a_probe_it_runs_as_soon_as_it_is_placed() -> None:
    assert serving(None).status("chat").state is JobState.RUNNING


def test_a_gpu_in_quarantine_takes_nothing_new_until_the_node_says_it_is_free() -> None:
    driver = Driver().give(build.node("n00"))
    driver.give(reported(driver, 0))
    driver.give(build.accepted("j", 8), build.forecast("j", {8: 600}))
    assert driver.job("j").state is JobState.QUEUED
    driver.give(reported(driver))
    assert driver.job("j").state is JobState.STARTING


def test_what_nodes_of_a_gang_tell_each_other_is_read_and_changes_nothing() -> None:
    driver = Driver().give(build.node("n00"))
    driver.give(JobPrepared(job_id="j", attempt=1, node="n00", cluster="c0", time_ms=0))
    assert driver.log[-1].effects == []

"""A placement whose executor says nothing does not wait for ever: the start is given up, the job goes elsewhere, the node is avoided."""

from __future__ import annotations

from schemas.executions import HeldGpus, JobPrepared, NodeReported, StopCause
from schemas.jobs import JobRevoked
from schemas.status import JobState
from services.allocator.core.due import due_wall_ms
from services.allocator.core.silence import START_TIMEOUT, START_WALL_MS_MAX
from services.allocator.core.state import SILENT_MS
from tests import build
from tests.allocator_driver import POLICY, Driver


def placed(gpus: int, nodes: int) -> Driver:
    driver = Driver().give(*[build.node(f"n{number:02}", order=number) for number in range(nodes)])
    return driver.give(build.accepted("j", gpus), build.forecast("j", {gpus: 7200}))


def where(driver: Driver) -> list[str]:
    return sorted(part.node for part in driver.job("j").parts)


def report(driver: Driver, node: str, *running: HeldGpus) -> NodeReported:
    return build.reported(node, driver.now_ms, applied=99, running=running)


def test_it_waits_for_the_stated_time_and_is_woken_for_it() -> None:
    driver = placed(8, 2)
    (first,) = where(driver)
    assert due_wall_ms(driver.state, POLICY) == driver.wall_ms + START_WALL_MS_MAX
    driver.pass_ms(START_WALL_MS_MAX - 1).give()
    assert (driver.job("j").attempt, where(driver)) == (1, [first])
    driver.pass_ms(1).give()
    (second,) = where(driver)
    assert (driver.job("j").attempt, driver.job("j").failures) == (2, 0)
    assert second != first
    assert not driver.state.nodes[first].takes_new
    assert driver.placement(first).assignments == [], "should it start after all, it is stopped there"


def test_without_another_place_it_waits_with_the_cause_until_the_executor_speaks_or_for_a_while() -> None:
    for speaks in (True, False):
        driver = placed(8, 1).pass_ms(START_WALL_MS_MAX)
        driver.give()
        job = driver.job("j")
        assert (job.state, job.parts, job.cause, job.reason) == (JobState.QUEUED, [], START_TIMEOUT, "node_degraded")
        if speaks:
            driver.give(report(driver, "n00"))
        else:
            driver.pass_ms(SILENT_MS).give()
        assert (driver.job("j").attempt, where(driver)) == (2, ["n00"])


def test_a_start_that_is_reported_as_under_way_may_take_as_long_as_it_likes() -> None:
    driver = placed(8, 2)
    (node,) = where(driver)
    driver.give(report(driver, node, HeldGpus(job_id="j", attempt=1, gpus=list(range(8)))))
    assert due_wall_ms(driver.state, POLICY) is None
    driver.pass_ms(10 * START_WALL_MS_MAX).give()
    assert (driver.job("j").attempt, where(driver)) == (1, [node])


def test_a_report_without_the_job_is_no_word_about_it() -> None:
    driver = placed(8, 1)
    driver.give(report(driver, "n00")).pass_ms(START_WALL_MS_MAX)
    driver.give()
    assert driver.job("j").cause == START_TIMEOUT


def test_what_runs_is_never_given_up() -> None:
    driver = placed(8, 1)
    driver.give(build.started("j", "n00", driver.now_ms)).pass_ms(5 * START_WALL_MS_MAX)
    driver.give()
    assert (driver.job("j").state, driver.job("j").attempt) == (JobState.RUNNING, 1)


def test_a_gang_of_silent_nodes_is_given_up_as_a_whole_and_one_with_a_silent_node_is_stopped() -> None:
    driver = placed(16, 2).pass_ms(START_WALL_MS_MAX)
    driver.give()
    assert (driver.job("j").parts, driver.job("j").cause) == ([], START_TIMEOUT)
    driver = placed(16, 2)
    spoke = JobPrepared(job_id="j", attempt=1, node="n00", cluster=build.CLUSTER, time_ms=driver.now_ms)
    driver.give(spoke).pass_ms(START_WALL_MS_MAX)
    driver.give()
    assert driver.placement("n00").assignments[0].stop_cause is StopCause.GANG_BROKEN
    driver.give(build.stopped("j", "n00", driver.now_ms, StopCause.GANG_BROKEN))
    assert driver.job("j").parts == []
    assert [name for name, node in driver.state.nodes.items() if not node.takes_new] == ["n01"]


def test_a_job_that_was_cancelled_meanwhile_ends_as_cancelled() -> None:
    driver = placed(8, 1)
    driver.give(JobRevoked(job_id="j", cluster=build.CLUSTER, revoked_ms=driver.now_ms))
    assert driver.job("j").state is JobState.STOPPING
    driver.pass_ms(START_WALL_MS_MAX).give()
    assert driver.state.finished["j"].state is JobState.CANCELLED


def test_a_late_completion_of_what_was_given_up_wins() -> None:
    driver = placed(8, 2)
    (first,) = where(driver)
    driver.pass_ms(START_WALL_MS_MAX).give()
    (second,) = where(driver)
    driver.give(build.completed("j", first, driver.now_ms))
    assert driver.placement(second).assignments[0].stop_cause is StopCause.FENCED

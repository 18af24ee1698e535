"""A gang whose nodes don't all get prepared: those that gave up waiting are believed, the silent one gets nothing until it speaks."""

from __future__ import annotations

from schemas.executions import JobPrepared, StopCause
from services.allocator.core.state import SILENT_MS
from tests import build
from tests.allocator_driver import Driver


def prepared(driver: Driver, node: str) -> JobPrepared:
    return JobPrepared(job_id="j", attempt=1, node=node, cluster=build.CLUSTER, time_ms=driver.now_ms)


def gave_up(driver: Driver, node: str):
    return build.stopped("j", node, driver.now_ms, StopCause.GANG_BROKEN)


def gang(gpus: int, nodes: int) -> Driver:
    driver = Driver().give(*[build.node(f"n{number:02}", order=number) for number in range(nodes)])
    return driver.give(build.accepted("j", gpus), build.forecast("j", {gpus: 600}))


def where(driver: Driver) -> set[str]:
    return {part.node for part in driver.job("j").parts}


def test_the_gang_is_placed_anew_away_from_the_node_that_was_silent() -> None:
    driver = gang(16, 4)
    first, silent = sorted(where(driver))
    driver.give(prepared(driver, first)).pass_ms(600_000)
    driver.give(gave_up(driver, first))
    assert driver.job("j").attempt == 2
    assert where(driver)
    assert silent not in where(driver)
    assert driver.placement(silent).assignments == []
    assert driver.job("j").failures == 0, "an interruption is no failure"


def test_who_was_prepared_is_stopped_first_and_not_avoided() -> None:
    driver = gang(32, 4)
    driver.give(*[prepared(driver, node) for node in ("n00", "n01", "n03")]).pass_ms(600_000)
    driver.give(gave_up(driver, "n00"))
    assert driver.placement("n01").assignments[0].stop_cause is StopCause.GANG_BROKEN
    driver.give(gave_up(driver, "n01"), gave_up(driver, "n03"))
    assert (driver.job("j").parts, driver.job("j").attempt) == ([], 1)
    assert {name for name, node in driver.state.nodes.items() if not node.takes_new} == {"n02"}


def test_a_silent_node_is_used_again_once_its_executor_speaks_or_after_a_while() -> None:
    for speaks in (True, False):
        driver = gang(16, 2)
        driver.give(prepared(driver, "n00")).pass_ms(600_000)
        driver.give(gave_up(driver, "n00"))
        assert (driver.job("j").parts, driver.job("j").reason) == ([], "node_degraded")
        if speaks:
            driver.give(build.reported("n01", driver.now_ms, applied=1))
        else:
            driver.pass_ms(SILENT_MS - 1).give()
            assert driver.job("j").parts == []
            driver.pass_ms(1).give()
        assert where(driver) == {"n00", "n01"}


def test_a_stop_that_was_ordered_makes_nobody_silent() -> None:
    driver = gang(16, 2)
    driver.give(build.failed("j", "n00", driver.now_ms))
    driver.give(gave_up(driver, "n01"))
    assert all(node.takes_new for node in driver.state.nodes.values())

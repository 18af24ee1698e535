"""A big job's planned start, one cause after the other: kept against equals, earlier where it can be, later only with a reason said."""

from __future__ import annotations

from schemas.commands import ChangeRules
from schemas.decisions import Promised, Waits
from schemas.nodes import Health
from schemas.records import Now
from schemas.rules import PlannedStarts, Rules
from services.allocator.core.verify_commit import verify_commit
from tests import build
from tests.allocator_driver import POLICY, Driver

HOUR_MS = 3_600_000


def planned_starts(version: int = 1, **changed) -> ChangeRules:
    rule = PlannedStarts(**({"nodes_min": 1} | changed))
    return ChangeRules(
        cluster=build.CLUSTER, rules=Rules(version=version, planned_starts=rule), ordered_ms=build.START_MS
    )


def submit(driver: Driver, job_id: str, size: int, hours: float, **changed) -> None:
    driver.give(
        build.accepted(job_id, size, at_ms=driver.now_ms, **changed), build.forecast(job_id, {size: hours * 3600})
    )


def start_all(driver: Driver) -> None:
    for job in list(driver.state.jobs.values()):
        for part in job.parts:
            if part.status == "placed":
                driver.give(build.started(job.job_id, part.node, driver.now_ms, job.attempt))


def waiting_for_a_node() -> Driver:
    """One node of 8 GPUs: `first` runs on half of it for four hours, `big` needs all of it."""
    driver = Driver().give(build.node("n0"), planned_starts())
    submit(driver, "first", 4, 4)
    start_all(driver)
    submit(driver, "big", 8, 2)
    return driver


def in_hours(driver: Driver, job_id: str = "big") -> float | None:
    start_ms = driver.state.promises[job_id].start_ms
    return None if start_ms is None else (start_ms - build.START_MS) / HOUR_MS


def test_without_the_rule_nobody_is_promised_anything() -> None:
    driver = Driver().give(build.node("n0"))
    submit(driver, "first", 4, 4)
    submit(driver, "big", 8, 2)
    assert driver.job("big").planned_start_p50_ms is not None
    assert driver.state.promises == {}


def test_small_jobs_of_equal_priority_fill_the_hole_but_not_beyond_the_planned_start() -> None:
    driver = waiting_for_a_node()
    assert in_hours(driver) == 4
    submit(driver, "short", 4, 2)
    assert driver.job("short").holds_gpus
    for number in range(4):
        submit(driver, f"long{number}", 4, 6)
    assert in_hours(driver) == 4
    assert not any(driver.job(f"long{number}").holds_gpus for number in range(4))
    assert "Its planned start can only move earlier." in driver.status("big").detail


def test_who_could_start_but_for_it_is_told_so() -> None:
    driver = waiting_for_a_node()
    driver.pass_ms(HOUR_MS)
    for number in range(3):
        submit(driver, f"long{number}", 4, 6, priority=3)
    reasons = {driver.job(f"long{number}").reason for number in range(3)}
    assert reasons <= {"promised", "planned_later", "behind_priority"}
    assert driver.job("big").planned_start_p50_ms == build.START_MS + 4 * HOUR_MS


def test_it_moves_earlier_when_work_before_it_ends_early() -> None:
    driver = waiting_for_a_node()
    submit(driver, "short", 4, 2)
    start_all(driver)
    driver.pass_ms(HOUR_MS).give(build.completed("first", "n0", driver.now_ms))
    assert in_hours(driver) == 2
    driver.pass_ms(HOUR_MS).give(build.completed("short", "n0", driver.now_ms))
    assert driver.job("big").holds_gpus
    assert driver.state.promises == {}


def test_an_overrun_moves_it_and_is_named() -> None:
    driver = waiting_for_a_node()
    driver.pass_ms(4 * HOUR_MS + 60_000).give()
    promise = driver.state.promises["big"]
    assert (promise.cause, promise.by) == ("overrun", ["first"])
    assert in_hours(driver) > 4
    assert "later: work that comes before it, or the job itself, takes longer than expected (first)" in (
        driver.status("big").detail
    )


def test_a_lost_node_takes_it_away_and_its_return_gives_a_new_one() -> None:
    driver = waiting_for_a_node()
    driver.give(build.node("n0", health=Health.SUSPECT))
    assert driver.state.promises["big"].start_ms is None
    assert driver.state.promises["big"].cause == "node_withdrawn"
    assert "It lost its planned start" in driver.status("big").detail
    driver.give(build.node("n0"))
    assert in_hours(driver) == 4
    assert driver.state.promises["big"].cause == ""


def test_higher_priority_may_move_it_and_is_named() -> None:
    driver = waiting_for_a_node()
    submit(driver, "urgent", 8, 3, priority=90)
    assert driver.state.promises["big"].by == ["urgent"]
    assert driver.state.promises["big"].cause == "higher_priority"
    assert in_hours(driver) >= 7
    assert in_hours(driver, "urgent") == 4


def test_a_job_is_big_from_so_many_whole_nodes_on_and_only_so_many_are_promised() -> None:
    driver = Driver().give(build.node("n0"), build.node("n1", order=1), planned_starts(nodes_min=2, jobs_max=1))
    submit(driver, "first", 16, 2)
    submit(driver, "one-node", 8, 1)
    submit(driver, "all", 16, 1)
    submit(driver, "all-again", 16, 1)
    assert set(driver.state.promises) == {"all"}


def test_lifting_the_rule_forgets_all_promises() -> None:
    driver = waiting_for_a_node()
    driver.give(ChangeRules(cluster=build.CLUSTER, rules=Rules(version=2), ordered_ms=driver.now_ms))
    assert driver.state.promises == {}


def test_the_independent_check_refuses_a_later_start_without_a_cause() -> None:
    driver = waiting_for_a_node()
    later_ms = driver.state.promises["big"].start_ms + 1
    now = Now(driver.now_ms, driver.wall_ms)
    silent = Promised(job_id="big", pool=build.POOL, start_ms=later_ms)
    assert "no cause" in verify_commit(driver.state, [silent], POLICY, now)[0]
    unexplained = Promised(job_id="big", pool=build.POOL, cause="unexplained")
    assert "unexplained" in verify_commit(driver.state, [unexplained], POLICY, now)[0]
    told = Waits(job_id="big", reason="planned_later", planned_start_p50_ms=later_ms)
    assert "later start" in verify_commit(driver.state, [told], POLICY, now)[0]

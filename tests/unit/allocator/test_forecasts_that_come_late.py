"""A forecast that comes after its job was placed by the planner's own prior still tells how long its GPUs are held."""

from __future__ import annotations

from services.allocator.core.phases import Phase
from tests import build
from tests.allocator_driver import POLICY, Driver

LATE_MS = 1000


def placed_without() -> Driver:
    """`j` waited for its forecast as long as it may, and went on without."""
    driver = Driver().give(build.node("n0"), build.accepted("j", 8))
    assert driver.job("j").phase is not Phase.STARTING
    driver.pass_ms(LATE_MS).give()
    assert driver.job("j").phase is Phase.STARTING
    assert driver.job("j").placed_p50_s == POLICY.prior_p50_s
    return driver


def test_it_is_believed_from_then_on() -> None:
    driver = placed_without()
    driver.give(build.forecast("j", {8: 3 * 3600}), build.started("j", "n0", at_ms=driver.now_ms))
    assert (driver.job("j").placed_p50_s, driver.job("j").placed_p90_s) == (3 * 3600, 4.5 * 3600)
    driver.give(build.accepted("next", 8, at_ms=driver.now_ms), build.forecast("next", {8: 600}))
    planned_ms = driver.status("next").planned_start_p50_ms
    assert planned_ms is not None
    assert planned_ms - driver.now_ms == 3 * 3600 * 1000


def test_of_another_size_it_changes_nothing() -> None:
    driver = placed_without()
    driver.give(build.forecast("j", {4: 3 * 3600}))
    assert driver.job("j").placed_p50_s == POLICY.prior_p50_s


def test_who_was_placed_by_a_forecast_keeps_it_until_it_is_made_anew_for_the_running_attempt() -> None:
    driver = Driver().give(build.node("n0"), build.accepted("j", 8), build.forecast("j", {8: 600}))
    assert driver.job("j").placed_p50_s == 600
    driver.give(build.forecast("j", {8: 3 * 3600}))
    assert driver.job("j").placed_p50_s == 600

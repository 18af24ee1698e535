"""Jobs that wait for slots of cards being cut have a planned start, and if all goes as expected they start by it; never before the slots
are there. Random loads and orders on one shared machine; durations are known."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from schemas.sharing import CUT_WAIT_S
from services.allocator.core.coming import coming_ms
from services.allocator.core.config import Policy
from services.allocator.core.decide import Settings
from services.allocator.core.layout import layout_of
from services.allocator.core.pose import remaining_s
from tests import build
from tests.allocator_driver import Driver
from tests.shared_cards import CARDS, HALF, MACHINE, half_job, machine, order, shaped

POLICY = Policy(iterations=4, step_s=900, steps=96)
SETTINGS = Settings(policy=POLICY, memory_mib={build.POOL: 81_920, HALF: 40_960}, code_version="test", writer="test")
MINUTE_MS = 60_000


def loaded(dice: Random) -> tuple[Driver, dict[str, int]]:
    """Whole cards with jobs of known ends on some of them."""
    driver = Driver(SETTINGS).give(*machine()).give(shaped([build.POOL] * CARDS, 1))
    ends: dict[str, int] = {}
    for number in range(dice.randint(1, 5)):
        size, minutes, job_id = dice.choice([1, 2, 4]), dice.randint(5, 300), f"w{number}"
        driver.give(build.accepted(job_id, size), build.forecast(job_id, {size: minutes * 60}, stretch=1.0))
        if driver.job(job_id).parts:
            driver.give(build.started(job_id, MACHINE, driver.now_ms))
            ends[job_id] = driver.now_ms + minutes * MINUTE_MS
    return driver, ends


@pytest.mark.parametrize("seed", range(12))
def test_a_job_for_new_slots_starts_by_its_planned_start(seed: int) -> None:
    dice = Random(seed)
    driver, ends = loaded(dice)
    cards = sorted(dice.sample(range(CARDS), dice.randint(1, 3)))
    driver.give(order("p1", cards, HALF, driver.now_ms))
    driver.give(half_job("h", 1), build.forecast("h", {1: 600}))
    job = driver.job("h")
    assert job.reason == "cut_under_way"
    assert job.planned_start_p50_ms is not None
    promised_ms = job.planned_start_p50_ms
    asked_ms: int | None = None
    while not driver.job("h").parts:
        assert driver.now_ms <= promised_ms + POLICY.step_ms, "it should have started"
        wanted = driver.placement(MACHINE).reshape
        if wanted is not None and asked_ms is None:
            asked_ms = driver.now_ms
            cut_ms = asked_ms + dice.randint(1, int(CUT_WAIT_S)) * 1000
        due = [end_ms for end_ms in ends.values() if end_ms > driver.now_ms] + ([cut_ms] if asked_ms else [])
        driver.pass_ms(max(0, min([*due, driver.now_ms + 5 * MINUTE_MS]) - driver.now_ms))
        for name in [name for name, end_ms in ends.items() if end_ms <= driver.now_ms]:
            del ends[name]
            driver.give(build.completed(name, MACHINE, driver.now_ms))
        if asked_ms and driver.now_ms >= cut_ms:
            pools = [HALF if card in cards else build.POOL for card in range(CARDS)]
            driver.give(shaped(pools, 2, "p1"))
        elif not driver.job("h").parts:
            driver.give()
    assert driver.now_ms <= promised_ms


def test_a_deadline_bounds_what_jobs_on_the_cards_may_still_take() -> None:
    driver = Driver(SETTINGS).give(*machine()).give(shaped([build.POOL] * CARDS, 1))
    driver.give(build.accepted("long", 8), build.forecast("long", {8: 40 * 3600}))
    driver.give(build.started("long", MACHINE, driver.now_ms))
    driver.give(order("p1", [0], HALF, driver.now_ms, deadline_s=3600.0))
    [wait_s] = [driver.job("long").spec.checkpoint.wait_s]
    layout = layout_of(driver.state, HALF)
    ends = coming_ms(driver.state, layout, driver.now_ms, remaining_s)
    assert ends == dict.fromkeys([0, 1], driver.now_ms + int((3600 + wait_s + CUT_WAIT_S) * 1000))


def test_cards_that_two_orders_are_about_and_slots_that_take_nothing_new_are_not_expected() -> None:
    driver = Driver(SETTINGS).give(*machine()).give(shaped([build.POOL] * CARDS, 1))
    driver.give(order("p1", [0, 1], HALF, driver.now_ms))
    layout = layout_of(driver.state, HALF)
    asked_ms = driver.now_ms
    assert coming_ms(driver.state, layout, driver.now_ms, remaining_s) == dict.fromkeys(
        range(4), asked_ms + int(CUT_WAIT_S * 1000)
    )
    driver.give(order("p2", [1], build.POOL, driver.now_ms))
    assert sorted(coming_ms(driver.state, layout, driver.now_ms, remaining_s)) == [0, 1]
    driver.pass_ms(10 * MINUTE_MS)
    assert set(coming_ms(driver.state, layout, driver.now_ms, remaining_s).values()) == {driver.now_ms + 1}, (
        "it is late"
    )
    broken = [msgspec.structs.replace(node, gpus=_without(node.gpus, 0)) for node in machine()]
    driver.give(*[msgspec.structs.replace(node, time_ms=driver.now_ms) for node in broken])
    assert sorted(coming_ms(driver.state, layout_of(driver.state, HALF), driver.now_ms, remaining_s)) == [1]


def _without(gpus: list, index: int) -> list:
    return [msgspec.structs.replace(gpu, healthy=gpu.healthy and gpu.index != index) for gpu in gpus]

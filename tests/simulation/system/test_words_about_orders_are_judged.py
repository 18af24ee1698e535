"""The judge of what waiting jobs are told about orders finds words that nobody's order stands behind."""

from __future__ import annotations

from schemas.commands import ReserveBlock
from schemas.decisions import Waits
from tests import build
from tests.shared_cards import HALF, MACHINE, order, shared
from tests.simulation.system.check_slots import said_of_orders

HOUR_MS = 3_600_000


def test_a_job_waits_for_a_cut_or_a_reservation_only_while_there_is_one() -> None:
    driver = shared(halves=0).give(build.accepted("j", 8), build.forecast("j", {8: 600}), build.accepted("w", 8))
    cut, kept = (Waits(job_id="w", reason=reason) for reason in ("to_be_cut", "reserved"))
    assert said_of_orders(driver.state, [cut]) == ["w waits for cards to be cut, and no such order is open"]
    assert said_of_orders(driver.state, [kept]) == ["w waits for a reservation, and there is none"]
    driver.give(order("p1", [0], HALF, driver.now_ms))
    assert said_of_orders(driver.state, [cut]) == []
    assert said_of_orders(driver.state, [kept]) == ["w waits for a reservation, and there is none"], "a cut is none"
    driver.give(
        ReserveBlock(
            reservation_id="v",
            cluster="c0",
            node=MACHINE,
            gpus=[1],
            from_ms=driver.now_ms,
            until_ms=driver.now_ms + HOUR_MS,
            ordered_ms=driver.now_ms,
        )
    )
    assert said_of_orders(driver.state, [kept]) == []

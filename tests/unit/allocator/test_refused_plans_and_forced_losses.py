"""What an application loses without a choice is no switch of its own, and a plan that is refused leaves nobody without a reason."""

from __future__ import annotations

import pytest

from schemas.commands import ReserveBlock
from schemas.decisions import Placed
from schemas.status import JobState
from services.allocator.core import decide as deciding
from tests import build
from tests.allocator_driver import Driver


def serving(floor: int, peak: int, switch_max: int) -> Driver:
    driver = Driver()
    driver.give(build.node("n00", order=0), build.node("n01", order=1))
    driver.give(build.application("app", floor=floor, peak=peak, switch_max=switch_max))
    assert sum(len(part.gpus) for part in driver.state.apps["app"].parts) == floor
    return driver


def test_a_reservation_takes_more_cards_than_the_cap_lets_an_application_switch():
    driver = serving(floor=4, peak=4, switch_max=1)
    (node,) = {part.node for part in driver.state.apps["app"].parts}
    now_ms = driver.now_ms
    driver.give(
        ReserveBlock(
            reservation_id="r",
            cluster=build.CLUSTER,
            node=node,
            from_ms=now_ms + 600_000,
            until_ms=now_ms + 7_200_000,
            ordered_ms=now_ms,
        ),
        build.accepted("j", 1),
        build.forecast("j", {1: 600}),
    )
    assert all(part.node != node for part in driver.state.apps["app"].parts)
    assert driver.job("j").state is JobState.STARTING


def test_a_lowered_peak_is_reached_within_the_cap():
    driver = serving(floor=4, peak=4, switch_max=1)
    smaller = build.application("app", floor=1, peak=1, switch_max=1)
    held = []
    for _ in range(5):
        driver.give(smaller)
        held.append(sum(len(part.gpus) for part in driver.state.apps["app"].parts))
        driver.pass_ms(driver.settings.policy.step_ms)
    assert held == [3, 2, 1, 1, 1]


def test_who_would_have_started_under_a_refused_plan_is_told_that_it_waits(monkeypatch: pytest.MonkeyPatch):
    driver = Driver()
    driver.give(build.node("n00"))
    monkeypatch.setattr(deciding, "verify_commit", lambda *_: ["something is wrong"])
    with pytest.raises(AssertionError):  # the driver refuses violations, after the decision was made
        driver.give(build.accepted("j", 1), build.forecast("j", {1: 600}))
    job = driver.job("j")
    assert (job.state, job.reason, job.parts) == (JobState.QUEUED, "planned_later", [])
    assert not any(isinstance(effect, Placed) for record in driver.log for effect in record.effects)

"""What telemetry finds keeps work away: the allocator's own fold and planner on the states that telemetry publishes."""

from __future__ import annotations

import pytest

from schemas.nodes import GpuSample, XidReport
from tests import build
from tests.allocator_driver import Driver
from tests.unit.telemetry.telemetry_rig import Fed, gpu


def state_of(fed: Fed, **first: object):
    """One sample of n00 with eight GPUs, the first changed; the state telemetry makes of it."""
    fed.wall_ms += 5000
    gpus: list[GpuSample] = [gpu(0, **first), *(gpu(index) for index in range(1, 8))]
    fed.sample("n00", *gpus)
    return fed.lines[-1]


def asks(driver: Driver, job_id: str, gpus: int) -> None:
    driver.give(build.accepted(job_id, gpus), build.forecast(job_id, {gpus: 600.0}))


@pytest.mark.parametrize(
    "error",
    [
        {"xids": [XidReport(code=79)]},
        {"error": "GPU is lost"},
        {"ecc_uncorrected": 4.0},
        {"recovery_action": "reset_gpu"},
    ],
)
def test_a_card_in_trouble_gets_no_new_work_and_its_neighbours_do(error) -> None:
    fed, driver = Fed(), Driver()
    driver.give(state_of(fed))
    driver.give(state_of(fed, **error))
    asks(driver, "whole", 8)
    assert driver.job("whole").parts == []
    asks(driver, "part", 4)
    assert 0 not in driver.job("part").parts[0].gpus


def test_what_runs_on_the_card_goes_on() -> None:
    fed, driver = Fed(), Driver()
    driver.give(state_of(fed))
    asks(driver, "whole", 8)
    driver.give(build.started("whole", "n00", build.START_MS))
    driver.give(state_of(fed, xids=[XidReport(code=94)]))
    assert driver.job("whole").holds_gpus
    driver.give(build.completed("whole", "n00", build.START_MS))
    asks(driver, "next", 8)
    assert driver.job("next").parts == []


def test_an_application_error_takes_no_card_away() -> None:
    fed, driver = Fed(), Driver()
    driver.give(state_of(fed))
    driver.give(state_of(fed, xids=[XidReport(code=13), XidReport(code=31)]))
    asks(driver, "whole", 8)
    assert driver.job("whole").parts[0].gpus == list(range(8))


def test_rubbish_takes_no_card_away() -> None:
    fed, driver = Fed(), Driver()
    driver.give(state_of(fed))
    driver.give(state_of(fed, utilization_pct=4294967295.0, temperature_c=4294967295.0, ecc_uncorrected=808334905.0))
    asks(driver, "whole", 8)
    assert driver.job("whole").parts[0].gpus == list(range(8))


def test_after_the_reset_the_card_is_used_again() -> None:
    fed, driver = Fed(), Driver()
    driver.give(state_of(fed, ecc_uncorrected=4.0))
    asks(driver, "whole", 8)
    assert driver.job("whole").parts == []
    for _ in range(4):
        state = state_of(fed, ecc_uncorrected=0.0)
    driver.give(state)
    assert driver.job("whole").parts[0].gpus == list(range(8))

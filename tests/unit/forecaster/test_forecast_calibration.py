"""P90 drifts to where one in ten misses, per team and for all, within its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from services.forecaster.core.calibration import KEY_COUNT_MAX, MARGIN, OFFSET_MAX, OFFSET_MIN, Calibration


def test_a_p90_that_is_too_low_takes_back_half_of_its_bias():
    rng, calibration, misses = np.random.default_rng(3), Calibration(), []
    for _ in range(6_000):
        missed = bool(rng.normal() > 0.5 + calibration.offset("blue"))
        misses.append(missed)
        calibration.outcome("blue", covered=not missed)
    assert np.mean(misses[:300]) > 0.2
    assert 0.1 < np.mean(misses[3_000:]) < 0.2, "27 % without calibration"
    assert calibration.covered + calibration.missed == 6_000


def test_another_team_gets_only_the_common_part():
    calibration = Calibration()
    for _ in range(500):
        calibration.outcome("blue", covered=False)
    assert 0 < calibration.offset("red") < calibration.offset("blue")
    assert calibration.offset("") == calibration.offset("red")


@pytest.mark.parametrize("covered", [True, False])
def test_offsets_stay_within_their_bounds(covered: bool):
    calibration = Calibration()
    for _ in range(20_000):
        calibration.outcome("blue", covered=covered)
    assert MARGIN + OFFSET_MIN <= calibration.offset("blue") <= MARGIN + OFFSET_MAX


def test_the_number_of_teams_is_bounded():
    calibration = Calibration()
    for number in range(KEY_COUNT_MAX + 50):
        calibration.outcome(f"team{number}", covered=True)
    calibration.outcome("one-too-many", covered=False)
    assert calibration.offset("one-too-many") == calibration.offset("")

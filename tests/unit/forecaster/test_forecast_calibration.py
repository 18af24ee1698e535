"""P90 drifts to where one in ten misses: for all, per size class and per team, within its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from services.forecaster.core.calibration import KEY_COUNT_MAX, MARGIN, OFFSET_MAX, OFFSET_MIN, Calibration, size_class


@pytest.mark.parametrize("bias", [0.5, 1.7], ids=["too low", "too high"])
def test_a_lasting_bias_is_taken_back(bias: float) -> None:
    rng, calibration, misses = np.random.default_rng(3), Calibration(), []
    for _ in range(6_000):
        missed = bool(rng.normal() > bias + calibration.offset("blue", 1))
        misses.append(missed)
        calibration.outcome("blue", 1, covered=not missed)
    assert 0.08 < np.mean(misses[1_000:]) < 0.12
    assert calibration.covered + calibration.missed == 6_000


def test_another_team_and_another_size_get_only_the_common_part() -> None:
    calibration = Calibration()
    for _ in range(20):
        calibration.outcome("blue", 8, covered=False)
    own, same_team = calibration.offset("blue", 8), calibration.offset("blue", 1)
    same_size, other = calibration.offset("red", 8), calibration.offset("red", 1)
    assert MARGIN < other < same_team < same_size < own
    assert calibration.offset("", 1) == other


def test_an_outcome_of_less_weight_moves_less() -> None:
    whole, tenth = Calibration(), Calibration()
    whole.outcome("blue", 1, covered=False)
    tenth.outcome("blue", 1, covered=False, weight=0.1)
    assert tenth.offset("blue", 1) - MARGIN == pytest.approx((whole.offset("blue", 1) - MARGIN) / 10)


@pytest.mark.parametrize("covered", [True, False])
def test_offsets_stay_within_their_bounds(covered: bool) -> None:
    calibration = Calibration()
    for _ in range(20_000):
        calibration.outcome("blue", 1, covered=covered)
    assert MARGIN + OFFSET_MIN <= calibration.offset("blue", 1) <= MARGIN + OFFSET_MAX


def test_the_number_of_teams_is_bounded() -> None:
    calibration = Calibration()
    for number in range(KEY_COUNT_MAX + 50):
        calibration.outcome(f"team{number}", 1, covered=True)
    calibration.outcome("one-too-many", 1, covered=False)
    assert calibration.offset("one-too-many", 1) == calibration.offset("", 1)


def test_size_classes_are_one_gpu_part_of_a_node_a_node_and_several() -> None:
    assert [size_class(gpus) for gpus in (1, 2, 4, 8, 16)] == ["1", "2–4", "2–4", "5–8", "more than 8"]

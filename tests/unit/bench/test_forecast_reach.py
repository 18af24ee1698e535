"""The online choice between voices follows the record without looking ahead, and batches count as what they are: one experience."""

from __future__ import annotations

import numpy as np

from bench.forecast.goals import regrets
from bench.forecast.reach import _deviation, batch_of, online
from services.forecaster.core.demand_scores import OURS, DemandScore
from services.forecaster.core.rolling import PastRuns

HOUR_S = 3_600


def alike(count: int, apart_s: int, duration_s: float) -> PastRuns:
    return PastRuns(
        submit_s=np.arange(count, dtype=np.int64) * apart_s,
        duration_s=np.full(count, duration_s),
        ended=np.ones(count, np.bool_),
        gpus=np.ones(count, np.int64),
        team=("red",) * count,
    )


def test_the_voice_that_is_right_gets_the_say() -> None:
    runs = alike(200, HOUR_S, 600.0)
    right = np.log(600.0)
    voices = np.tile(np.array([right, right + 2.0, right + 3.0]).reshape(1, 3, 1), (len(runs), 1, 2))
    said = online(runs, voices, list(runs.team))
    assert said[0, 0] > right + 1.0, "nothing is known yet"
    np.testing.assert_allclose(said[-1], right, atol=0.01)


def test_what_ends_later_changes_nothing() -> None:
    runs = alike(60, HOUR_S, 600.0)
    voices = np.random.default_rng(2).normal(6.0, 1.0, (len(runs), 3, 2))
    whole = online(runs, voices, list(runs.team))
    cut = 40
    first = alike(cut, HOUR_S, 600.0)
    np.testing.assert_array_equal(whole[:cut], online(first, voices[:cut], list(first.team)))


def test_a_batch_is_what_comes_within_ten_minutes_of_each_other() -> None:
    runs = alike(6, 1, 60.0)
    spread = PastRuns(np.array([0, 300, 850, 1_500, 1_501, 9_000]), runs.duration_s, runs.ended, runs.gpus, runs.team)
    assert batch_of(spread).tolist() == [0, 0, 0, 3, 3, 5]


def test_a_mean_over_batches_deviates_as_their_number_says() -> None:
    values = np.repeat([0.0, 1.0], 100)
    assert _deviation(values, np.repeat([0, 1], 100)) > 5 * _deviation(values, np.arange(200))


def test_regret_is_measured_against_the_best_other_method_of_each_client() -> None:
    def scored(loss: float) -> DemandScore:
        return DemandScore(windows=1, load=1.0, loss=loss, coverage=0.9)

    clients = {"a": {OURS: scored(1.2), "x": scored(1.0), "y": scored(2.0)}, "b": {OURS: scored(1.0), "x": scored(2.0)}}
    found = regrets(clients, 12)
    assert found["clients"] == 2
    assert found["worse"]["by more than 10%"] == 1
    assert found["worse"]["by more than 50%"] == 0
    assert found["ratio"]["most"] == 1.2

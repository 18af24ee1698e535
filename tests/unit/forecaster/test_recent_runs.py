"""The newest runs and batches of a key: right figures by hand, each batch one vote, running runs vote with their age."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest

from services.forecaster.core.features import BURST, GIVEN, LIMIT, batch_weights, feature_row, unknown_features
from services.forecaster.core.history import DurationHistory, Subject
from services.forecaster.core.prior import unknown_hazard
from services.forecaster.core.recent import BATCHES
from services.forecaster.core.rolling import PastRuns

PRIOR = unknown_hazard()
BLUE = Subject(team="blue", gpus=1, kind="training", user="ann", what="bert")
HOUR_MS = 3_600_000


def batch(history: DurationHistory, durations_s: list[float], start_ms: int) -> None:
    runs = [history.start(BLUE, start_ms) for _ in durations_s]
    for run, duration_s in zip(runs, durations_s, strict=True):
        history.finish(run, duration_s, observed=True)


def test_the_middle_of_the_last_five_and_the_p90_of_the_last_twenty_are_those_of_a_sorted_list():
    history = DurationHistory()
    durations_s = [1.5**number for number in range(1, 26)]
    for number, duration_s in enumerate(durations_s):
        history.finish(history.start(BLUE, number * HOUR_MS), duration_s, observed=True)
    five, twenty, _, _ = history.view(BLUE, 30 * HOUR_MS, PRIOR).recent
    assert five == pytest.approx(log(1.5**23), rel=1e-5)
    assert twenty == pytest.approx(np.quantile(np.log(durations_s[-20:]), 0.9), rel=1e-5)


def test_a_crashed_sweep_of_three_hundred_has_one_vote_among_the_batches():
    history = DurationHistory()
    for number, durations_s in enumerate([[3_600.0] * 4, [2.0] * 300, [3_600.0] * 2]):
        batch(history, durations_s, (number + 1) * HOUR_MS)
    view = history.view(BLUE, 9 * HOUR_MS, PRIOR)
    assert view.recent[2] == pytest.approx(log(3_600.0), rel=1e-4)
    assert view.log_quantile(0.5) < log(60.0)


def test_only_the_last_batches_vote_and_a_late_end_of_a_forgotten_one_does_not():
    history = DurationHistory()
    late = history.start(BLUE, HOUR_MS)
    for number in range(BATCHES):
        batch(history, [100.0], (number + 2) * HOUR_MS)
    history.finish(late, 1e6, observed=True)
    assert history.view(BLUE, 20 * HOUR_MS, PRIOR).recent[2] == pytest.approx(log(100.0), rel=1e-4)


def test_running_runs_vote_in_their_batch_with_their_age():
    history = DurationHistory()
    batch(history, [10.0] * 6, HOUR_MS)
    going = [history.start(BLUE, HOUR_MS) for _ in range(6)]
    view = history.view(BLUE, HOUR_MS + 1_000_000, PRIOR)
    assert view.recent[2] == pytest.approx((log(10.0) + log(1_000.0)) / 2, rel=1e-4)
    for run in going:
        history.forget(run)
    assert history.view(BLUE, HOUR_MS + 1_000_000, PRIOR).recent[2] == pytest.approx(log(10.0), rel=1e-4)


def test_the_ages_of_what_goes_on_are_of_the_very_thing_without_oneself():
    history = DurationHistory()
    batch(history, [10.0] * 6, HOUR_MS)
    started_s = [100.0, 400.0, 900.0]
    going = [history.start(BLUE, 2 * HOUR_MS + round(second * 1000)) for second in started_s]
    history.start(replace(BLUE, what="gpt"), 2 * HOUR_MS)
    now_ms = 2 * HOUR_MS + 1_000_000
    ages = np.log(1_000.0 - np.array(started_s))
    assert history.view(BLUE, now_ms, PRIOR).going == pytest.approx((np.median(ages), ages.max()))
    assert history.view(BLUE, now_ms, PRIOR, skipped=going[0]).going == pytest.approx((ages[1:].mean(), ages[1]))
    for run in going:
        history.forget(run)
    assert np.isnan(history.view(BLUE, now_ms, PRIOR).going).all()


def test_a_seed_keeps_the_newest_runs_and_batches():
    history = DurationHistory()
    for number in range(4):
        batch(history, [50.0, 500.0], (number + 1) * HOUR_MS)
    planted = DurationHistory(history.at_rest())
    now_ms = 9 * HOUR_MS
    np.testing.assert_array_equal(history.view(BLUE, now_ms, PRIOR).recent, planted.view(BLUE, now_ms, PRIOR).recent)


def test_the_row_is_relative_to_the_base_so_that_ten_times_longer_runs_look_the_same():
    rows = []
    for factor in (1.0, 10.0):
        history = DurationHistory()
        for number in range(300):
            seconds = factor * (100.0 + 50.0 * (number % 7))
            history.finish(history.start(BLUE, number * HOUR_MS), seconds, observed=True)
        history.start(BLUE, 400 * HOUR_MS - round(factor * 1_000_000))
        view = history.view(BLUE, 400 * HOUR_MS, PRIOR)
        rows.append(feature_row(unknown_features(1, 3_600.0 * factor), view))
    first, second = rows
    assert second[GIVEN] - first[GIVEN] == pytest.approx(log(10.0), abs=0.1)
    np.testing.assert_allclose(second[GIVEN + 2 :], first[GIVEN + 2 :], atol=0.2)
    assert second[LIMIT] == pytest.approx(first[LIMIT], abs=0.1)
    assert first[GIVEN] <= first[GIVEN + 1]


def test_of_nothing_known_the_base_is_the_prior():
    view = DurationHistory().view(BLUE, 0, PRIOR)
    row = feature_row(unknown_features(1), view)
    assert row[GIVEN] == view.log_quantile(0.5)
    assert row[GIVEN + 1] == view.log_quantile(0.9)
    assert row[BURST] == 0.0
    assert np.isnan(row[LIMIT])


def test_a_batch_of_n_weighs_like_the_square_root_of_n():
    weights = batch_weights(np.arange(10_000.0))
    assert weights[0] == 1.0
    assert weights.sum() == pytest.approx(200.0, rel=0.01)


def test_places_count_within_ten_minutes_of_the_one_before():
    runs = PastRuns(
        submit_s=np.array([0, 0, 500, 1_000, 1_000, 5_000]),
        duration_s=np.ones(6),
        ended=np.ones(6, np.bool_),
        gpus=np.ones(6, np.int64),
        team=("a", "a", "a", "b", "a", "a"),
    )
    assert runs.places().tolist() == [0, 1, 2, 0, 3, 0]

"""The history of durations: kernels equal the naive count, running jobs weigh in, memory stays within its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from services.forecaster.core.history import LEVELS, DurationHistory, Subject, clamped_log_s
from services.forecaster.core.prior import unknown_hazard
from services.forecaster.core.survival import DURATION_S_MAX, lognormal_hazard, quantile
from tests.oracle.naive_durations import NaiveHistory, naive_quantile

PRIOR = unknown_hazard()
BLUE = Subject(team="blue", gpus=1, kind="training", user="ann", what="bert")


def filled(durations_s: list[float], subject: Subject = BLUE) -> DurationHistory:
    history = DurationHistory()
    for number, duration_s in enumerate(durations_s):
        history.finish(history.start(subject, number * 1000), duration_s, observed=True)
    return history


def p50_s(history: DurationHistory, subject: Subject = BLUE, now_ms: int = 10_000_000) -> float:
    return float(np.exp(history.view(subject, now_ms, PRIOR).log_quantile(0.5)))


def test_fast_equals_naive_on_a_random_history():
    rng = np.random.default_rng(7)
    fast, slow = DurationHistory(), NaiveHistory()
    subjects = [
        Subject(team=team, gpus=gpus, kind=kind, user=user, what="x")
        for team in "ab"
        for gpus in (1, 8)
        for kind, user in (("", ""), ("training", "u"), ("debug", "v"))
    ]
    going: list[tuple[int, int]] = []
    for step in range(150):
        subject = subjects[rng.integers(len(subjects))]
        going.append((fast.start(subject, step * 60_000), slow.start(subject, step * 60_000)))
        if len(going) > 5:
            first, second = going.pop(rng.integers(len(going)))
            duration_s = float(rng.lognormal(6, 3))
            observed = bool(rng.random() < 0.8)
            fast.finish(first, duration_s, observed=observed)
            slow.finish(second, duration_s, observed=observed)
    for subject in subjects:
        view = fast.view(subject, 9_600_000, PRIOR)
        expected = np.array(slow.hazards(subject, 9_600_000, list(PRIOR)))
        np.testing.assert_allclose(view.hazards, expected, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("survived_s", [0.0, 90.0, 40_000.0])
def test_quantile_equals_a_slow_walk(share: float, survived_s: float):
    hazard = lognormal_hazard(1_000.0, 2.0)
    survived = clamped_log_s(survived_s)
    assert quantile(hazard, share, survived) == pytest.approx(naive_quantile(list(hazard), share, survived), abs=1e-3)


def test_the_prior_is_what_it_says():
    hazard = lognormal_hazard(1_200.0, 2.0)
    assert np.exp(quantile(hazard, 0.5, 0.0)) == pytest.approx(1_200.0, rel=0.05)
    assert quantile(hazard, 0.8413, 0.0) - quantile(hazard, 0.5, 0.0) == pytest.approx(2.0, abs=0.1)


def test_history_overrules_the_prior_after_a_few_runs():
    assert p50_s(filled([60.0] * 10)) == pytest.approx(60.0, rel=0.4)


def test_running_jobs_lengthen_what_the_finished_ones_say():
    history = filled([60.0] * 20)
    before = p50_s(history)
    for number in range(20):
        history.start(BLUE, number)
    assert p50_s(history, now_ms=50_000_000) > 10 * before


def test_a_stopped_run_is_a_lower_bound_not_an_end():
    ended, stopped = filled([3_600.0] * 10), filled([3_600.0] * 10)
    for number in range(10):
        ended.finish(ended.start(BLUE, number), 60.0, observed=True)
        stopped.finish(stopped.start(BLUE, number), 60.0, observed=False)
    assert p50_s(stopped) > p50_s(ended)
    assert p50_s(stopped) == pytest.approx(3_600.0, rel=0.4)


def test_a_new_user_leans_on_the_team_and_a_new_team_on_the_size():
    history = filled([7_200.0] * 30)
    assert p50_s(history, Subject("blue", 1, "training", "new", "other")) == pytest.approx(7_200.0, rel=0.4)
    assert p50_s(history, Subject("green", 1, "debug", "x", "y")) > 3_000.0


def test_recent_runs_count_more():
    assert p50_s(filled([60.0] * 400 + [6_000.0] * 400)) == pytest.approx(6_000.0, rel=0.4)


def test_a_survivor_gets_a_longer_forecast_however_old_it_is():
    view = filled([60.0] * 50).view(BLUE, 0, PRIOR)
    for elapsed_s in (10.0, 100.0, 10_000.0, 1_000_000.0):
        total_s = np.exp(view.log_quantile(0.5, survived_s=elapsed_s))
        assert total_s > elapsed_s
        assert view.log_quantile(0.9, survived_s=elapsed_s) >= view.log_quantile(0.5, survived_s=elapsed_s)


@pytest.mark.parametrize("absurd_s", [-5.0, 0.0, 1e30, float("inf"), float("nan")])
def test_absurd_durations_stay_on_the_grid(absurd_s: float):
    history = filled([absurd_s] * 5)
    assert 1.0 <= p50_s(history) <= DURATION_S_MAX * 1.001


def test_keys_are_bounded_and_the_longest_unused_makes_room():
    history = DurationHistory(key_count_max=50)
    for number in range(200):
        subject = Subject(team=f"t{number}", gpus=1, kind="training", user="u", what="w")
        history.finish(history.start(subject, number), 100.0, observed=True)
    assert history.key_count == 50
    assert history.view(Subject("t199", 1, "training", "u", "w"), 0, PRIOR).weights[-1] > 0
    assert history.view(Subject("t0", 1, "training", "u", "w"), 0, PRIOR).weights[-1] == 0


def test_keys_of_running_jobs_are_not_evicted():
    history = DurationHistory(key_count_max=10)
    runs = [history.start(Subject(team=f"t{number}", gpus=1), number) for number in range(30)]
    for run in runs:
        history.finish(run, 100.0, observed=True)
    assert history.key_count <= 10
    assert history.running == 0


def test_without_room_for_another_run_it_is_not_learnt_from():
    history = DurationHistory(run_count_max=2)
    runs = [history.start(BLUE, 0) for _ in range(3)]
    assert runs[2] == -1
    history.finish(runs[2], 5.0, observed=True)
    assert history.ended == 0


def test_a_seed_gives_the_same_answers():
    history = filled([100.0, 2_000.0, 50_000.0] * 10)
    planted = DurationHistory(history.at_rest())
    first, second = history.view(BLUE, 10_000, PRIOR), planted.view(BLUE, 10_000, PRIOR)
    np.testing.assert_array_equal(first.hazards, second.hazards)
    assert planted.ended == 0
    assert len(LEVELS) == len(first.weights)

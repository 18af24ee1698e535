"""Demand of an application: follows its days or its level, knows gaps from idleness, and never leaves its bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from services.forecaster.core.demand import DAYS_KEPT, DemandHistory

STEP_S = 900
DAY_S = 86_400
STEPS = DAY_S // STEP_S


def daily(second: int) -> float:
    """Between 2 and 10 GPUs, peak at noon."""
    return 6.0 - 4.0 * math.cos(2 * math.pi * (second % DAY_S) / DAY_S)


def observed(days: float, load=daily, *, gap=lambda second: False, start_s: int = 0) -> DemandHistory:
    history = DemandHistory(STEP_S)
    for second in range(start_s, start_s + round(days * DAY_S), 600):
        if not gap(second):
            assert history.observe((second + 600) * 1000, 600.0, load(second) * 25.0, 25.0)
    return history


def test_a_daily_service_is_followed_a_day_ahead():
    forecast = observed(6).forecast(6 * DAY_S * 1000, STEPS, 100.0)
    truth = [daily(6 * DAY_S + step * STEP_S + STEP_S // 2) for step in range(STEPS)]
    np.testing.assert_allclose(forecast.p50, truth, rtol=0.1)
    assert not forecast.prior
    assert all(high >= low for low, high in zip(forecast.p50, forecast.p90, strict=True))


def test_a_level_shift_is_followed_within_hours():
    history = observed(6, lambda s: daily(s) * (2.0 if s >= 5.75 * DAY_S else 1.0))
    forecast = history.forecast(6 * DAY_S * 1000, STEPS, 100.0)
    assert np.mean(forecast.p50[:8]) > 1.4 * np.mean([daily(6 * DAY_S + step * STEP_S) for step in range(8)])


def test_a_missing_window_is_a_gap_not_a_zero():
    whole = observed(6).forecast(6 * DAY_S * 1000, STEPS, 100.0)
    gaps = observed(6, gap=lambda s: 4 * DAY_S < s < 4.3 * DAY_S or 5.5 * DAY_S < s < 5.6 * DAY_S)
    np.testing.assert_allclose(gaps.forecast(6 * DAY_S * 1000, STEPS, 100.0).p50, whole.p50, rtol=0.15)


def test_an_idle_night_is_zero():
    history = observed(6, lambda s: 8.0 if 8 <= s % DAY_S // 3600 < 20 else 0.0)
    forecast = history.forecast(6 * DAY_S * 1000, STEPS, 100.0)
    assert max(forecast.p50[4 : 7 * 4]) < 0.5
    assert min(forecast.p50[9 * 4 : 19 * 4]) > 7.0


def test_on_the_first_day_the_level_answers_with_wide_quantiles():
    forecast = observed(0.1, lambda s: 3.0).forecast(round(0.1 * DAY_S) * 1000, STEPS, 100.0)
    assert forecast.prior
    assert forecast.p50 == [3.0] * STEPS
    assert forecast.p90 == [6.0] * STEPS


def test_ten_minute_windows_and_hourly_ones_mean_the_same():
    hourly = DemandHistory(STEP_S)
    for hour in range(6 * 24):
        hourly.observe((hour + 1) * 3_600_000, 3_600.0, daily(hour * 3600 + 1800), 1.0)
    forecast = hourly.forecast(6 * DAY_S * 1000, STEPS, 100.0)
    np.testing.assert_allclose(forecast.p50, observed(6).forecast(6 * DAY_S * 1000, STEPS, 100.0).p50, rtol=0.2)


def test_demand_never_exceeds_the_cluster():
    forecast = observed(3, lambda s: 500.0).forecast(3 * DAY_S * 1000, STEPS, 64.0)
    assert max(forecast.p90) == 64.0


@pytest.mark.parametrize(
    ("load", "per_gpu", "window_s"),
    [
        (math.inf, 1.0, 600.0),
        (math.nan, 1.0, 600.0),
        (1.0, 0.0, 600.0),
        (1e300, 1e-300, 600.0),
        (-1.0, 1.0, 600.0),
        (1.0, 1.0, 0.0),
    ],
)
def test_what_is_no_demand_is_refused_and_counted(load: float, per_gpu: float, window_s: float):
    history = DemandHistory(STEP_S)
    assert not history.observe(1_000_000, window_s, load, per_gpu)
    assert history.empty
    assert history.refused == 1


def test_old_windows_are_refused_and_late_ones_fill_their_step():
    history = observed(DAYS_KEPT + 2)
    assert not history.observe(DAY_S * 1000, 600.0, 1.0, 1.0)
    assert history.observe((DAYS_KEPT + 1) * DAY_S * 1000, 600.0, 1.0, 1.0)
    assert len(history.values(np.arange(DAYS_KEPT * STEPS))) == DAYS_KEPT * STEPS


def test_a_forecast_made_after_a_silence_still_rests_on_the_days():
    history = observed(6)
    forecast = history.forecast(round(6.5 * DAY_S) * 1000, STEPS, 100.0)
    np.testing.assert_allclose(forecast.p50[48:], [daily(step * STEP_S + 450) for step in range(48)], rtol=0.25)

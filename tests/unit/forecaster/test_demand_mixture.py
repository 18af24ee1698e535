"""Which rules are believed: by their record, only by what was known, the same after a restart, and others after a shift of level."""

from __future__ import annotations

import numpy as np
import pytest

from services.forecaster.core.demand import DAYS_KEPT, DemandHistory
from services.forecaster.core.demand_deep import DEEP_RULES
from services.forecaster.core.demand_mixture import PRIOR_DEEP, PRIOR_DOWN, PRIOR_P50, PRIOR_P90, PRIOR_UP, middle
from services.forecaster.core.demand_rules import RULES, SPREADS, Grid, quantiles, rules

STEP_S = 900
HOUR_MS = 3_600_000
DAY_S = 86_400
STEPS = DAY_S // STEP_S
GRID = Grid(STEP_S)


def noisy(days: int, seed: int) -> np.ndarray:
    """Per step, a daily service with noise and a change of level on the way."""
    rng = np.random.default_rng(seed)
    steps = np.arange(days * STEPS)
    wave = 8.0 + 5.0 * np.sin(2 * np.pi * steps / STEPS)
    return wave * rng.gamma(20.0, 0.05, len(steps)) * np.where(steps > 0.7 * len(steps), 1.5, 1.0)


def told(load: np.ndarray, order: np.ndarray | None = None) -> DemandHistory:
    history = DemandHistory(STEP_S)
    for step in np.arange(len(load)) if order is None else order:
        assert history.observe((int(step) + 1) * STEP_S * 1000, float(STEP_S), float(load[step]), 1.0)
    return history


def test_every_rule_and_spread_has_its_priors() -> None:
    assert PRIOR_P50.shape == PRIOR_DOWN.shape == PRIOR_UP.shape == (len(RULES), 4)
    assert PRIOR_DEEP.shape == (len(RULES) + len(DEEP_RULES), 4)
    assert PRIOR_P90.shape == (len(SPREADS), 4)


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_quantiles_without_gaps_are_numpys(gaps: float) -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=(3, 40, 7))
    values[rng.random(values.shape) < gaps] = np.nan
    values[0, 0, :] = np.nan if gaps else 1.0
    with np.errstate(all="ignore"):
        for share, found in zip((0.5, 0.9), quantiles(values, (0.5, 0.9)), strict=True):
            for place in np.ndindex(3, 40):
                known = values[place][~np.isnan(values[place])]
                wanted = np.quantile(known, share) if len(known) else np.nan
                np.testing.assert_allclose(found[place], wanted, equal_nan=True)


def test_a_weighted_median_is_between_the_two_middle_rules_and_ignores_an_absurd_one() -> None:
    weights = np.ones((1, 3, 4)) / 3
    said = np.array([1.0, 3.0, 1e9]).reshape(1, 3, 1).repeat(STEPS, axis=2)
    np.testing.assert_allclose(middle(GRID, weights, said), 3.0)
    heavier = np.array([0.5, 0.5 - 1e-12, 1e-12]).reshape(1, 3, 1).repeat(4, axis=2)
    np.testing.assert_allclose(middle(GRID, heavier, said), 2.0, rtol=1e-6)


def test_the_weighted_median_is_where_half_of_the_weight_lies() -> None:
    rng = np.random.default_rng(8)
    weights = rng.random((3, len(RULES), 4))
    weights /= weights.sum(axis=1, keepdims=True)
    said = np.round(rng.random((3, len(RULES), STEPS)), 1)  # with ties
    found = middle(GRID, weights, said)
    for moment, step in np.ndindex(found.shape):
        hours = step * STEP_S / 3600
        own = weights[moment, :, np.searchsorted([2, 6, 12], hours, side="right")]
        order = np.argsort(said[moment, :, step], kind="stable")
        places = np.cumsum(own[order]) - 0.5 * own[order]
        assert found[moment, step] == pytest.approx(np.interp(0.5, places, said[moment, order, step]), abs=1e-9)


def test_many_moments_at_once_are_told_what_each_would_be_told_alone() -> None:
    past = np.random.default_rng(3).gamma(2.0, size=(4, GRID.reach))
    past[1, ::7] = np.nan
    together = rules(GRID, past)
    for moment in range(len(past)):
        alone, part = rules(GRID, past[moment : moment + 1]), together[moment : moment + 1]
        np.testing.assert_array_equal(alone.p50, part.p50)
        np.testing.assert_array_equal(alone.above, part.above)
        np.testing.assert_array_equal(alone.shift, part.shift)


def test_what_comes_after_the_moment_changes_nothing() -> None:
    load = noisy(9, 1)
    now_ms = 8 * DAY_S * 1000
    early, late = told(load[: 8 * STEPS]), told(load)
    assert early.forecast(now_ms, STEPS, 1e9) == late.forecast(now_ms, STEPS, 1e9)


def test_a_restart_believes_the_same_whatever_was_asked_before_and_in_whatever_order_windows_came() -> None:
    load = noisy(9, 2)
    asked = DemandHistory(STEP_S)
    late = set(range(7 * STEPS, 7 * STEPS + 20))
    for step in range(len(load)):
        if step not in late:
            asked.observe((step + 1) * STEP_S * 1000, float(STEP_S), float(load[step]), 1.0)
        if step > STEPS and step % 7 == 0:
            asked.forecast((step + 1) * STEP_S * 1000, STEPS, 1e9)
    for step in sorted(late):
        asked.observe((step + 1) * STEP_S * 1000, float(STEP_S), float(load[step]), 1.0)
    for hours in (0, 1, 5, 7):
        now_ms = 9 * DAY_S * 1000 + hours * HOUR_MS
        assert asked.forecast(now_ms, STEPS, 1e9) == told(load).forecast(now_ms, STEPS, 1e9)


def test_windows_far_ahead_of_the_clock_leave_no_stale_belief() -> None:
    load = noisy(13, 3)
    now_ms = 9 * DAY_S * 1000
    asked = told(load[: 9 * STEPS])
    asked.forecast(now_ms, STEPS, 1e9)
    for step in range(9 * STEPS, 13 * STEPS):
        asked.observe((step + 1) * STEP_S * 1000, float(STEP_S), float(load[step]), 1.0)
    assert asked.forecast(now_ms, STEPS, 1e9) == told(load).forecast(now_ms, STEPS, 1e9)


def test_the_rule_that_was_right_lately_leads() -> None:
    """Yesterday repeats exactly, other days do not: the middle of days is wrong, yesterday right."""
    rng = np.random.default_rng(4)
    level = np.repeat([5.0, 9.0, 5.0, 14.0, 14.0, 14.0, 14.0], STEPS)
    shape = np.tile(rng.gamma(2.0, 1.0, STEPS), 7)
    said = told(level * shape).forecast(7 * DAY_S * 1000, STEPS, 1e9)
    np.testing.assert_allclose(said.p50, 14.0 * shape[:STEPS], rtol=0.25)


@pytest.mark.parametrize(("factor", "shift"), [(0.2, -1), (1.0, 0), (3.0, 1)])
def test_a_shift_is_seen_when_a_quarter_of_a_day_leaves_all_that_was_usual(factor: float, shift: int) -> None:
    load = noisy(6, 6)[: 5 * STEPS + 20]
    load[-24:] *= factor
    assert rules(GRID, load[np.newaxis, -GRID.reach :]).shift.tolist() == [shift]


def test_a_service_that_was_switched_off_is_not_expected_back_at_once() -> None:
    load = noisy(8, 7)
    load[-26:] = 0.0
    said = told(load).forecast(8 * DAY_S * 1000, STEPS, 1e9)
    usual = rules(GRID, load[np.newaxis, -GRID.reach :]).p50[0, 0]
    assert sum(said.p50[:8]) < 0.35 * sum(usual[:8])
    assert sum(said.p50) < 0.8 * sum(usual)


def test_a_level_that_always_fell_at_this_time_is_not_believed_to_be_gone_at_once() -> None:
    days, hour = 6, STEPS // 24
    load = np.full(days * STEPS, 8.0)
    for day in range(days):
        load[day * STEPS + 16 * hour : day * STEPS + 18 * hour] = 0.5
    before = (days - 1) * STEPS + 16 * hour
    found = told(load[:before]).forecast(before * STEP_S * 1000, STEPS, 64.0)
    assert found.p50[hour] < 2.0  # the days say so, and they may be right
    for steps in range(1, 2 * hour):
        assert found.p90[steps] >= 8.0 * (1.0 - steps / (2 * hour)) - 1e-3


def test_p90_covers_about_what_it_says_on_a_noisy_daily_service() -> None:
    load = noisy(13, 8)
    history, inside = DemandHistory(STEP_S), []
    for step in range(len(load) - STEPS):
        history.observe((step + 1) * STEP_S * 1000, float(STEP_S), float(load[step]), 1.0)
        if step > 6 * STEPS and (step + 1) % STEPS == 0:
            said = history.forecast((step + 1) * STEP_S * 1000, STEPS, 1e9)
            inside += list(load[step + 1 : step + 1 + STEPS] <= said.p90)
    assert 0.8 <= np.mean(inside) <= 0.98


@pytest.mark.parametrize("step_s", [60, 900, 3_600, 21_600, 43_200, 86_400])
def test_any_step_that_divides_a_day_works(step_s: int) -> None:
    history = DemandHistory(step_s)
    for day in range(DAYS_KEPT * DAY_S // step_s):
        history.observe((day + 1) * step_s * 1000, float(step_s), 3.0, 1.0)
    said = history.forecast(DAYS_KEPT * DAY_S * 1000, max(1, 2 * DAY_S // step_s), 1e9)
    np.testing.assert_allclose(said.p50, 3.0)
    assert not said.prior

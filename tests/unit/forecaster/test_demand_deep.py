"""Rules that look back two weeks: asked only where two weeks are known, right about a shape on a moving level, the same after a restart."""

from __future__ import annotations

import numpy as np
import pytest

from services.forecaster.core.demand import DAYS_KEPT, DemandHistory
from services.forecaster.core.demand_deep import DEEP_DAYS, DEEP_DAYS_MIN, DEEP_RULES, deep, deep_rules
from services.forecaster.core.demand_remembered import Remembered
from services.forecaster.core.demand_rules import DAY_S, Grid

STEP_S = 3_600
STEPS = DAY_S // STEP_S
GRID = Grid(STEP_S)
SHAPE = 3.0 * np.sin(2 * np.pi * np.arange(STEPS) / STEPS)


def wandering(days: int, seed: int) -> np.ndarray:
    """A daily shape on a level that wanders and comes back."""
    rng = np.random.default_rng(seed)
    steps = days * STEPS
    level, pushes = np.zeros(steps), rng.normal(0.0, 1.0, steps)
    for step in range(1, steps):
        level[step] = 0.97 * level[step - 1] + pushes[step]
    return np.maximum(50.0 + np.tile(SHAPE, days) + level + rng.normal(0.0, 1.5, steps), 0.0)


def told(load: np.ndarray) -> DemandHistory:
    history = DemandHistory(STEP_S)
    for step, gpus in enumerate(load):
        if gpus == gpus:
            assert history.observe((step + 1) * STEP_S * 1000, float(STEP_S), float(gpus), 1.0)
    return history


def test_a_shape_is_found_on_a_steady_level_and_added_to_the_new_one() -> None:
    load = 50.0 + np.tile(SHAPE, DEEP_DAYS)
    load[-3 * STEPS :] += 20.0
    said = dict(zip(DEEP_RULES, deep_rules(GRID, load[np.newaxis])[0], strict=True))
    np.testing.assert_allclose(said["shape at the level of the last quarter day"], 70.0 + SHAPE, atol=0.1)
    slow, fast = said["shape at a level let go in 24 h"], said["shape at a level let go in 6 h"]
    assert (slow >= fast - 1e-9).all()  # the days before lie lower
    assert slow[0] == pytest.approx(70.0 + SHAPE[0], abs=0.5)


def test_days_of_which_little_is_known_say_nothing_about_the_shape() -> None:
    load = 50.0 + np.tile(SHAPE, DEEP_DAYS)
    gappy = load.copy()
    gappy[STEPS : 2 * STEPS][np.arange(STEPS) > 8] = np.nan
    gappy[STEPS : STEPS + 8] = 400.0
    np.testing.assert_allclose(deep_rules(GRID, gappy[np.newaxis]), deep_rules(GRID, load[np.newaxis]))


def test_what_was_never_observed_is_not_answered_and_nothing_is_below_zero() -> None:
    assert np.isnan(deep_rules(GRID, np.full((1, DEEP_DAYS * STEPS), np.nan))).all()
    falling = np.maximum(0.0, 20.0 - np.arange(DEEP_DAYS * STEPS) * 0.06 + 5.0 * np.tile(SHAPE, DEEP_DAYS))
    assert (deep_rules(GRID, falling[np.newaxis]) >= 0.0).all()


def test_many_moments_at_once_are_told_what_each_would_be_told_alone() -> None:
    past = np.random.default_rng(3).gamma(2.0, size=(5, DEEP_DAYS * STEPS))
    past[1, ::7] = np.nan
    past[2, : 5 * STEPS] = np.nan
    together = deep_rules(GRID, past)
    for moment in range(len(past)):
        np.testing.assert_array_equal(deep_rules(GRID, past[moment : moment + 1])[0], together[moment])


@pytest.mark.parametrize("known", [DEEP_DAYS_MIN - 1, DEEP_DAYS_MIN])
def test_they_are_asked_where_two_weeks_are_known(known: int) -> None:
    past = np.full((1, DEEP_DAYS * STEPS), np.nan)
    past[0, -known * STEPS :] = 1.0
    assert deep(GRID, past) == (known >= DEEP_DAYS_MIN)


def test_two_weeks_of_a_shape_on_a_wandering_level_are_worth_more_than_one() -> None:
    """Paired over many loads and days: the same days told from two weeks, and from one."""
    misses = []
    for seed in range(6):
        load = wandering(DAYS_KEPT + 4, seed)
        for day in range(DAYS_KEPT, DAYS_KEPT + 4):
            now, came = day * STEPS, load[day * STEPS : (day + 1) * STEPS]
            week = np.where(np.arange(now) < now - 9 * STEPS, np.nan, load[:now])
            both = [told(one).forecast(now * STEP_S * 1000, STEPS, 1e9).p50 for one in (load[:now], week)]
            misses.append([float(np.abs(came - one).mean()) for one in both])
    deeper, shallower = np.mean(misses, axis=0)
    assert deeper < 0.97 * shallower


def test_a_restart_says_the_same_whatever_was_asked_before_and_whatever_came_late() -> None:
    load = wandering(DAYS_KEPT + 3, 11)
    late = set(range(len(load) - 40, len(load) - 30))
    asked = DemandHistory(STEP_S)
    for step in range(len(load)):
        if step not in late:
            asked.observe((step + 1) * STEP_S * 1000, float(STEP_S), float(load[step]), 1.0)
        if step > STEPS and step % 5 == 0:
            asked.forecast((step + 1) * STEP_S * 1000, STEPS, 1e9)
    now_ms = len(load) * STEP_S * 1000
    gappy = np.where([step in late for step in range(len(load))], np.nan, load)
    assert asked.forecast(now_ms, STEPS, 1e9) == told(gappy).forecast(now_ms, STEPS, 1e9)
    for step in sorted(late):
        asked.observe((step + 1) * STEP_S * 1000, float(STEP_S), float(load[step]), 1.0)
    for hours in (0, 1, 5, 7, 13):
        then_ms = now_ms + hours * 3_600_000
        assert asked.forecast(then_ms, STEPS, 1e9) == told(load).forecast(then_ms, STEPS, 1e9)


def test_what_was_forgotten_is_worked_out_again_to_the_same_bits() -> None:
    load, little = wandering(DAYS_KEPT + 2, 12), Remembered(bytes_max=3 * 4_500)
    asked, other = DemandHistory(STEP_S), DemandHistory(STEP_S, little)
    for step, gpus in enumerate(load):
        said = []
        for history in (asked, other):
            history.observe((step + 1) * STEP_S * 1000, float(STEP_S), float(gpus), 1.0)
            said.append(history.forecast((step + 1) * STEP_S * 1000, STEPS, 1e9))
        assert said[0] == said[1]
        assert little.held_bytes <= 3 * 4_500
    assert little.held_bytes > 0


def test_a_clock_that_went_back_leaves_nothing_stale() -> None:
    load = wandering(DAYS_KEPT, 13)
    asked, late = DemandHistory(STEP_S), set(range(len(load) - 20, len(load) - 8))
    for step in range(len(load)):
        if step not in late:
            asked.observe((step + 1) * STEP_S * 1000, float(STEP_S), float(load[step]), 1.0)
    for steps_back in (0, 24):
        asked.forecast((len(load) - steps_back) * STEP_S * 1000, STEPS, 1e9)
    for step in sorted(late):
        asked.observe((step + 1) * STEP_S * 1000, float(STEP_S), float(load[step]), 1.0)
    for steps_on in (0, 7):
        now_ms = (len(load) + steps_on) * STEP_S * 1000
        assert asked.forecast(now_ms, STEPS, 1e9) == told(load).forecast(now_ms, STEPS, 1e9)

"""Five rules that look back two weeks: the usual shape of a day, added to a level that is followed slowly or let go slowly.

What a decomposition into day and level does, by medians: the shape is the middle of what every time of the day lay above its day's
mean, the level a fading mean of what is left without that shape. They differ in which level they go by: that of the last quarter day,
of the last day, or the newest one, from which half of the way back to that of the last days is gone after 6, 12 or 24 hours. Sums of
many jobs behave so, and these rules are asked only where two weeks are known: with a few days the shape is noise. Input is what was
known before each moment, NaN where nothing was observed. Owns: these rules. Refuses: choosing among them (`demand_mixture.py`).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from services.forecaster.core.demand_rules import Grid, Series, quantiles

DEEP_DAYS = 14
"""28 did less than half a percent better, and cost twice the memory."""
DEEP_DAYS_MIN = 12
"""Of these days so many must be known; else the rules are not asked."""
DAY_KNOWN_SHARE = 0.75
"""A day of which less is known says nothing about the shape: its mean is that of the times that are known."""
DEEP_RULES = (
    "shape at a level let go in 6 h", "shape at a level let go in 12 h", "shape at a level let go in 24 h",
    "shape at the level of the last quarter day", "shape at the level of the last day",
)  # fmt: skip
LET_GO_S = (21_600, 43_200, 86_400)
NEWEST_S, QUARTER_S, DAY_S, DAYS_S = 3_600, 21_600, 86_400, 172_800
"""Half-lives of the levels."""
LEVEL_DAYS = 7
"""Beyond these, a level has faded away."""


def deep(grid: Grid, past: Series) -> bool:
    """Whether two weeks are known, of one moment: `past` (1, DEEP_DAYS · day)."""
    told = (~np.isnan(past)).reshape(DEEP_DAYS, grid.day).sum(axis=1)
    return int((told >= DAY_KNOWN_SHARE * grid.day).sum()) >= DEEP_DAYS_MIN


def deep_rules(grid: Grid, past: Series) -> Series:
    """(n, rules, day) after each of n moments; `past` (n, DEEP_DAYS · day). NaN where nothing was known for a week."""
    days = past.reshape(len(past), DEEP_DAYS, grid.day)
    known = ~np.isnan(days)
    told = known.sum(axis=-1)
    mean = np.where(known, days, 0.0).sum(axis=-1) / np.maximum(told, 1)
    above = days - np.where(told >= DAY_KNOWN_SHARE * grid.day, mean, np.nan)[..., np.newaxis]
    shape = quantiles(np.ascontiguousarray(above.transpose(0, 2, 1)), (0.5,))[0]
    shape = np.where(np.isnan(shape), 0.0, shape)
    rest = (days[:, -LEVEL_DAYS:] - shape[:, np.newaxis]).reshape(len(past), 1, -1)
    newest, quarter, day, long = _levels(rest, _weights(grid))
    let_go = (long + (newest - long) * _left(grid)[:, np.newaxis]) + shape
    p50 = np.concatenate([let_go, (quarter + shape)[np.newaxis], (day + shape)[np.newaxis]])
    return np.ascontiguousarray(np.maximum(p50, 0.0).transpose(1, 0, 2))


def _levels(rest: Series, weights: Series) -> Series:
    """(levels, n, 1): fading means of what is known, NaN where nothing is."""
    known = ~np.isnan(rest)
    total = np.where(known, weights, 0.0).sum(axis=-1)
    mean = np.where(known, rest * weights, 0.0).sum(axis=-1) / np.maximum(total, 1e-300)
    return np.where(total > 0, mean, np.nan).T[..., np.newaxis]


@lru_cache(maxsize=16)
def _weights(grid: Grid) -> Series:
    """(levels, steps) of the last days, oldest first, for each half-life."""
    age_s = np.arange(LEVEL_DAYS * grid.day)[::-1] * float(grid.step_s)
    return np.stack([0.5 ** (age_s / half_life_s) for half_life_s in (NEWEST_S, QUARTER_S, DAY_S, DAYS_S)])


@lru_cache(maxsize=16)
def _left(grid: Grid) -> Series:
    """(rules, day): what of the newest level's distance is left at each step ahead."""
    ahead_s = np.arange(grid.day) * float(grid.step_s)
    return np.stack([0.5 ** (ahead_s / let_go_s) for let_go_s in LET_GO_S])

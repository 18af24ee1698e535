"""Thirteen simple rules for the next day of a load, and four ways to say how far above them it may go, at many moments at once.

Each rule is what a thoughtful person would try: the same time on other days (middle of three or five, yesterday, fading mean), the
last hour and a half, the middle of the last day, and these corrected by how the last hours ran. None is right for every load: a
daily service follows its days, a bursty one its level, one that was moved its newest hours. Which to believe is decided in
`demand_mixture.py`. Input is what was known before each moment, NaN where nothing was observed: a gap is not an idle window.
Owns: the rules. Refuses: choosing among them, clocks, state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

DAY_S = 86_400
DAYS_USED = 5
"""Days whose same time is looked at: further back, habits have changed (six and seven days, and the same weekday, did no better)."""
RULES = (
    "same time, middle of 3 days", "same time yesterday", "same time, fading mean", "about the same time, middle of 5 days",
    "last level", "middle of the last day", "same time by the last hours", "same time by the last quarter day",
    "yesterday by the last hours", "half day, half same time", "moved for good", "shape of days, last day's level",
    "that by the last quarter day",
)  # fmt: skip
LAST_LEVEL = RULES.index("last level")
SPREADS = ("own misses", "of the last day", "of the last three days", "about the same time")
FADING = 0.6
"""What a day weighs against the one after it."""
RECENT_S, QUARTER_S = 5_400, 21_600
RECENT_HALF_LIFE_S, QUARTER_HALF_LIFE_S = 7_200, 43_200
"""How far ahead half of what the last hour and a half, or the last quarter of a day, showed still holds."""
LEVEL_MAX = 4.0
"""A correction by level is bounded by this factor either way: beyond it the rule of the last level takes over by itself."""
MOVED_MAX = 10.0
SHIFTED_STEPS_SHARE = 0.9
SHIFTED_DOWN, SHIFTED_UP = 0.6, 1.6
"""A level has shifted when nine tenths of the last quarter day lie on one side of all that the last four days had at about that time,
and their sum is this many times the usual one."""
SHIFT_DAYS = 4
LEVEL_FLOOR = 0.05
"""Share of the mean of five days added on both sides of ratios, so that an idle night doesn't make them explode."""
P90 = 0.9


@dataclass(frozen=True, slots=True)
class Grid:
    """`day`: steps in a day. `near`: steps on both sides that count as about the same time."""

    step_s: int

    @property
    def day(self) -> int:
        return max(1, DAY_S // self.step_s)

    @property
    def near(self) -> int:
        return max(1, self.steps(3_600) // 2)

    @property
    def reach(self) -> int:
        """Steps before a moment that the rules look at."""
        return DAYS_USED * self.day + self.near

    def steps(self, seconds: int) -> int:
        return max(1, seconds // self.step_s)


@dataclass(frozen=True, slots=True)
class Said:
    """At n moments about the day after each: `p50` (n, rules, day), `above` (n, spreads without own misses, day), and `shift` (n,): -1
    where the level has just fallen out of what it was, 1 where it has risen, else 0."""

    p50: Series
    above: Series
    shift: NDArray[np.int64]

    @staticmethod
    def of(parts: list[Said]) -> Said:
        """All their moments."""
        return Said(
            np.concatenate([part.p50 for part in parts]),
            np.concatenate([part.above for part in parts]),
            np.concatenate([part.shift for part in parts]),
        )

    def __getitem__(self, moments: slice) -> Said:
        """Only these moments."""
        return Said(self.p50[moments], self.above[moments], self.shift[moments])


def rules(grid: Grid, past: Series) -> Said:
    """`past`: (n, reach), what was known in the steps before each moment. Where a rule can't answer, the last level does."""
    day, near, length = grid.day, grid.near, past.shape[1]
    # What lies after the moment itself is not known: the day before stands in for yesterday's next minutes.
    padded = np.concatenate([past, past[:, length - day : length - day + near]], axis=1)

    def lag(days: int, shift: int = 0) -> Series:
        begin = length - days * day + shift
        return padded[:, begin : begin + day]

    days = np.stack([lag(back) for back in range(1, DAYS_USED + 1)], axis=-1)
    yesterday = days[..., 0]
    about = quantiles(
        np.stack([lag(back, shift) for back in range(1, DAYS_USED + 1) for shift in range(-near, near + 1)], axis=-1),
        (0.5, P90),
    )
    about_p50, about_p90 = about
    recent = past[:, length - grid.steps(RECENT_S) :]
    last = np.broadcast_to(_level(past, recent).reshape(-1, 1), yesterday.shape)
    day_p50, day_p90 = _flat(past[:, length - day :], day)
    three_p50, three_p90 = _flat(past[:, max(0, length - 3 * day) :], day)
    soon, later = _fades(grid)
    known = ~np.isnan(past)
    mean = np.where(known, past, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    by_recent = _ratio(grid, past, mean, grid.steps(RECENT_S), DAYS_USED)
    by_quarter = _ratio(grid, past, mean, grid.steps(QUARTER_S), DAYS_USED)
    by_yesterday = _ratio(grid, past, mean, grid.steps(RECENT_S), 1)
    shift, moved = _shifted(grid, past)
    shaped, by_shape = _shaped(grid, past, days)
    p50 = np.stack(
        [
            quantiles(days[..., :3], (0.5,))[0],
            yesterday,
            _fading(days),
            about_p50,
            last,
            day_p50,
            about_p50 * by_recent**soon,
            about_p50 * by_quarter**later,
            yesterday * by_yesterday**soon,
            0.5 * day_p50 + 0.5 * about_p50,
            about_p50 * moved,
            shaped,
            shaped * by_shape**later,
        ],
        axis=1,
    )
    above = np.stack([day_p90 - day_p50, three_p90 - three_p50, about_p90 - about_p50], axis=1)
    return Said(np.where(np.isnan(p50), last[:, np.newaxis], p50), np.maximum(above, 0.0), shift)


def quantiles(values: Series, shares: tuple[float, ...]) -> list[Series]:
    """Quantiles over the last axis without gaps; NaN where there are only gaps."""
    ordered = np.sort(values, axis=-1)  # NaN last
    if not np.isnan(ordered[..., -1]).any():
        return [_between(ordered, share * (ordered.shape[-1] - 1)) for share in shares]
    most = np.maximum((~np.isnan(ordered)).sum(axis=-1) - 1, 0)
    found = []
    for share in shares:
        place = share * most
        low = np.floor(place).astype(np.int64)
        below = np.take_along_axis(ordered, low[..., np.newaxis], axis=-1)[..., 0]
        beyond = np.take_along_axis(ordered, np.minimum(low + 1, most)[..., np.newaxis], axis=-1)[..., 0]
        found.append(below + (beyond - below) * (place - low))
    return found


def _between(ordered: Series, place: float) -> Series:
    low = int(place)
    below, beyond = ordered[..., low], ordered[..., min(low + 1, ordered.shape[-1] - 1)]
    return np.asarray(below + (beyond - below) * (place - low))


def _flat(window: Series, steps: int) -> list[Series]:
    """P50 and P90 of a window, for every step ahead alike."""
    return [np.broadcast_to(one.reshape(-1, 1), (len(window), steps)) for one in quantiles(window, (0.5, P90))]


@lru_cache(maxsize=16)
def _fades(grid: Grid) -> tuple[Series, Series]:
    """What of a correction by the last hours, and by the last quarter day, holds how far ahead."""
    ahead_s = np.arange(grid.day) * float(grid.step_s)
    return 0.5 ** (ahead_s / RECENT_HALF_LIFE_S), 0.5 ** (ahead_s / QUARTER_HALF_LIFE_S)


def _fading(days: Series) -> Series:
    weight = np.where(np.isnan(days), 0.0, FADING ** np.arange(days.shape[-1]))
    total = weight.sum(axis=-1)
    mean = (np.nan_to_num(days) * weight).sum(axis=-1) / np.maximum(total, 1e-12)
    return np.where(total > 0, mean, np.nan)


def _level(past: Series, recent: Series) -> Series:
    """Mean of the last hour and a half, or the newest that there is, or 0."""
    known = ~np.isnan(recent)
    mean = np.where(known, recent, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    any_known = ~np.isnan(past)
    newest = past.shape[1] - 1 - np.argmax(any_known[:, ::-1], axis=1)
    value = np.where(any_known.any(axis=1), past[np.arange(len(past)), newest], 0.0)
    return np.where(known.any(axis=1), mean, value)


def _ratio(grid: Grid, past: Series, mean: Series, steps: int, days: int) -> Series:
    """(n, 1): how the last steps ran against the same time on the days before; 1 where nothing can be said."""
    length = past.shape[1]
    steps = min(steps, grid.near + grid.day // 2)
    came = past[:, length - steps :]
    others = [
        past[:, max(0, length - back * grid.day - steps) : length - back * grid.day] for back in range(1, days + 1)
    ]
    usual = quantiles(np.stack([one for one in others if one.shape[1] == steps], axis=-1), (0.5,))[0]
    both = ~np.isnan(came) & ~np.isnan(usual)
    floor = LEVEL_FLOOR * mean * steps + 1e-9
    ratio = (np.where(both, came, 0.0).sum(axis=1) + floor) / (np.where(both, usual, 0.0).sum(axis=1) + floor)
    return np.clip(ratio, 1.0 / LEVEL_MAX, LEVEL_MAX).reshape(-1, 1)


def _shaped(grid: Grid, past: Series, days: Series) -> tuple[Series, Series]:
    """(n, day): the usual shape of a day at the last day's level; (n, 1): how the last quarter day ran against that."""
    known = ~np.isnan(days)
    level = np.where(known, days, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    shape = quantiles(days / np.where(level > 0, level, np.nan)[:, np.newaxis], (0.5,))[0]
    shaped = shape * level[:, :1]
    steps = grid.steps(QUARTER_S)
    came, usual = past[:, past.shape[1] - steps :], shaped[:, grid.day - steps :]
    both = ~np.isnan(came) & ~np.isnan(usual)
    floor = LEVEL_FLOOR * level[:, 0] * steps + 1e-9
    ratio = (np.where(both, came, 0.0).sum(axis=1) + floor) / (np.where(both, usual, 0.0).sum(axis=1) + floor)
    return shaped, np.clip(ratio, 1.0 / LEVEL_MAX, LEVEL_MAX).reshape(-1, 1)


def _shifted(grid: Grid, past: Series) -> tuple[NDArray[np.int64], Series]:
    """(n,): whether the last quarter day left what was usual, downwards or upwards; (n, 1): its sum ÷ the usual one."""
    length, steps = past.shape[1], grid.steps(QUARTER_S)
    came = past[:, length - steps :]
    ends = [
        length - back * grid.day + shift for back in range(1, SHIFT_DAYS + 1) for shift in (-grid.near, 0, grid.near)
    ]
    usual = np.stack([past[:, max(0, end - steps) : end] for end in ends], axis=-1)
    least, most = np.fmin.reduce(usual, axis=-1), np.fmax.reduce(usual, axis=-1)
    both = ~np.isnan(came) & ~np.isnan(least)
    count = np.maximum(both.sum(axis=1), 1)
    below, above = ((both & (came < least)).sum(axis=1) / count, (both & (came > most)).sum(axis=1) / count)
    middle = quantiles(usual, (0.5,))[0]
    ratio = (np.where(both, came, 0.0).sum(axis=1) + 1e-9) / (np.where(both, middle, 0.0).sum(axis=1) + 1e-9)
    down = (below >= SHIFTED_STEPS_SHARE) & (ratio < SHIFTED_DOWN)
    up = (above >= SHIFTED_STEPS_SHARE) & (ratio > SHIFTED_UP)
    return up.astype(np.int64) - down.astype(np.int64), np.minimum(ratio, MOVED_MAX).reshape(-1, 1)

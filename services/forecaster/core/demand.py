"""Real-time demand of one application: GPUs per step for the next day, P50 and P90, from observed load.

The rule: for each coming step the median of the same time on the last days, corrected by how the last hours ran against the
same rule (the correction fades with distance); P90 from how far this rule was off lately, per distance. On one day or less of
data: the last level with wide quantiles. Windows that never came are gaps, not zeros. Owns a ring of observed GPUs per step;
refuses: any model (a LightGBM residual was measured not to help: see docs of the evaluation), any clock. Never negative, NaN, infinite or
above what the cluster has.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

DAY_S = 86_400
DAYS_KEPT = 8
"""Ring length: seven days back plus today. Older days were measured to add nothing."""
DAYS_USED = 5
"""Days whose same time is looked at: their median beats a plain model on most daily clients."""
LEVEL_WINDOW_S = 5_400
"""The last hour and a half says where today stands against other days."""
LEVEL_HALF_LIFE_S = 7_200
"""Two hours ahead half of that still holds."""
LEVEL_MAX = 4.0
"""A level correction beyond this factor is a new regime; then the last value counts, not the days."""
COLD_FACTOR = 2.0
"""Without a day of history P90 is this much above the last level: real-time traffic peaks at two to three times its mean."""
SPREAD_NEIGHBOUR_STEPS = 2
"""Steps on each side whose values on other days count as samples of this one, for the P90."""
HORIZON_S = DAY_S
P90 = 0.9


@dataclass(frozen=True, slots=True)
class Demand:
    """GPUs per step from `start_ms`. `prior`: less than a day was known."""

    start_ms: int
    p50: list[float]
    p90: list[float]
    prior: bool


class DemandHistory:
    """Observed GPUs of one application on a grid of steps. Bounded: `DAYS_KEPT` days."""

    def __init__(self, step_s: int) -> None:
        self._step_ms = step_s * 1000
        self._steps_day = DAY_S // step_s
        self._size = DAYS_KEPT * self._steps_day
        self._total = np.zeros(self._size)
        self._weight = np.zeros(self._size)
        self._index = np.full(self._size, -1, np.int64)
        self.last_index = -1
        self._last_value = 0.0
        self.refused = 0

    @property
    def empty(self) -> bool:
        return self.last_index < 0

    def observe(self, time_ms: int, window_s: float, load: float, per_gpu: float) -> bool:
        """Mean load of the window that ended at `time_ms`; False (and counted) if it can't be used.

        A window longer than a step fills every step it covers; several in one step are averaged by their length.
        """
        if not (isfinite(load) and isfinite(per_gpu) and load >= 0 and per_gpu > 0 and window_s > 0):
            self.refused += 1
            return False
        gpus = load / per_gpu
        if not isfinite(gpus):
            self.refused += 1
            return False
        end_ms, start_ms = time_ms, max(0, time_ms - round(window_s * 1000))
        first, last = start_ms // self._step_ms, max(start_ms, end_ms - 1) // self._step_ms
        if last <= self.last_index - self._size:
            self.refused += 1
            return False
        for index in range(max(first, last - self._size + 1), last + 1):
            begin, stop = max(start_ms, index * self._step_ms), min(end_ms, (index + 1) * self._step_ms)
            self._add(index, gpus, max(stop - begin, 1) / self._step_ms)
        if last >= self.last_index:
            self.last_index, self._last_value = last, gpus
        return True

    def forecast(self, now_ms: int, steps: int, gpus_max: float) -> Demand:
        """The coming `steps` from the step `now_ms` lies in."""
        first = now_ms // self._step_ms
        future = np.arange(first, first + steps)
        base, seen = self._same_time(future)
        enough = seen.mean() > 0.5
        level = self._level(first)
        if not enough or level is None:
            p50 = np.full(steps, self._recent_level())
            p90 = p50 * COLD_FACTOR
        else:
            distance_s = (future - first) * (self._step_ms / 1000.0)
            fade = 0.5 ** (distance_s / LEVEL_HALF_LIFE_S)
            p50 = np.where(seen, base, self._recent_level()) * level**fade
            p90 = p50 * self._spread(future, base) ** (1.0 - 0.5 * fade)
        p50 = np.clip(np.nan_to_num(p50, nan=0.0, posinf=gpus_max), 0.0, gpus_max)
        p90 = np.clip(np.nan_to_num(p90, nan=gpus_max, posinf=gpus_max), p50, gpus_max)
        return Demand(first * self._step_ms, _rounded(p50), _rounded(p90), not enough)

    def _add(self, index: int, gpus: float, weight: float) -> None:
        place = index % self._size
        if self._index[place] != index:
            if self._index[place] > index:
                return
            self._index[place], self._total[place], self._weight[place] = index, 0.0, 0.0
        self._total[place] += gpus * weight
        self._weight[place] += weight

    def values(self, indices: NDArray[np.int64]) -> Series:
        """Observed GPUs at these steps, NaN where nothing came."""
        places = indices % self._size
        known = (self._index[places] == indices) & (self._weight[places] > 0)
        return np.where(known, self._total[places] / np.maximum(self._weight[places], 1e-12), np.nan)

    def _days(self, indices: NDArray[np.int64]) -> Series:
        """(days, steps): the same time on the last days before each step that lie wholly in the past."""
        back = np.arange(1, DAYS_USED + 1).reshape(-1, 1) * self._steps_day
        return self.values(indices.reshape(1, -1) - back)

    def _same_time(self, indices: NDArray[np.int64]) -> tuple[Series, NDArray[np.bool_]]:
        days = self._days(indices)
        known = ~np.isnan(days)
        return _nan_quantile(days, 0.5), np.asarray(known.any(axis=0))

    def _recent(self, first: int) -> NDArray[np.int64]:
        steps = max(1, LEVEL_WINDOW_S * 1000 // self._step_ms)
        anchor = min(first, self.last_index + 1)
        return np.arange(anchor - steps, anchor)

    def _recent_level(self) -> float:
        recent = self.values(self._recent(self.last_index + 1))
        recent = recent[~np.isnan(recent)]
        return float(recent.mean()) if len(recent) else self._last_value

    def _level(self, first: int) -> float | None:
        """How the last hour and a half ran against the rule, shrunk; None if it left the rule altogether."""
        recent = self._recent(first)
        actual = self.values(recent)
        expected, seen = self._same_time(recent)
        usable = seen & ~np.isnan(actual)
        if first - self.last_index > len(recent) or not usable.any():
            return 1.0
        floor = 0.05 + 0.1 * float(np.nanmean(expected[seen]))
        ratio = (actual[usable].mean() + floor) / (expected[usable].mean() + floor)
        return float(ratio) if 1.0 / LEVEL_MAX <= ratio <= LEVEL_MAX else None

    def _spread(self, indices: NDArray[np.int64], base: Series) -> Series:
        """P90 ÷ P50 of the same time of day: from the last days, this step and its neighbours."""
        shifts = range(-SPREAD_NEIGHBOUR_STEPS, SPREAD_NEIGHBOUR_STEPS + 1)
        ratios = []
        for shift in shifts:
            days = self._days(indices + shift)
            middle = _nan_quantile(days, 0.5)
            ratios.append((days + 0.05) / (middle + 0.05))
        spread = _nan_quantile(np.concatenate(ratios), P90)
        return np.maximum(np.nan_to_num(spread, nan=COLD_FACTOR), 1.0)


def _nan_quantile(values: Series, share: float) -> Series:
    """Quantile of each column without its gaps; NaN for a column of gaps."""
    ordered = np.sort(values, axis=0)  # NaN last
    count = (~np.isnan(values)).sum(axis=0)
    place = share * np.maximum(count - 1, 0)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(count - 1, 0))
    columns = np.arange(values.shape[1])
    result = ordered[low, columns] + (ordered[high, columns] - ordered[low, columns]) * (place - low)
    return np.where(count > 0, result, np.nan)


def _rounded(values: Series) -> list[float]:
    return [round(float(value), 3) for value in values]

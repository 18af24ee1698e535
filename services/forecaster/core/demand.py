"""Real-time demand of one application: GPUs per step for the next day, P50 and P90, from observed load.

Five simple rules answer: the median of the same time on the last days, the same time yesterday, both of these corrected by how
the last hours ran (the correction fades with distance), and the last level. Each is tried on the past as if it were still to
come; P50 is their mean weighted by how well they did at each distance, the median of the days favoured. P90 adds what other
days had above their median at that time, and what the trials would have needed, but is never above the highest load of the last
ten days. So a daily service follows its days, a bursty one its level, and nobody has to say which it is. On a day or less of
data: the last level with wide quantiles. Windows that never came are gaps, not zeros. Owns a ring of observed GPUs per step;
refuses: any trained model, any clock. Never negative, NaN, infinite or above what the cluster has.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]
Steps = NDArray[np.int64]

DAY_S = 86_400
DAYS_KEPT = 10
"""Ring length: trials two days back look five days further back, and P90 is capped by the highest load in it."""
DAYS_USED = 5
"""Days whose same time is looked at: their median beats a plain model on most daily clients."""
TRIAL_DAYS = 2
"""Past days the rules are tried on; with more of them a change of habits was noticed too late."""
TRIAL_WEIGHTS = (1.0, 1.0, 0.7)
"""Of the newest trial whose outcome is known, then of those one and two days ago."""
DISTANCES_S = (0, 7_200, 21_600, 43_200, DAY_S)
"""Rules are weighed separately for the next 2, 6, 12 and 24 hours: the level helps near, the days far."""
SHARPNESS = 2.0
"""A rule with half the error gets four times the weight: few trials don't prove more than that."""
MEDIAN_FAVOUR = 3.0
"""The median of five days weighs this much more than its record: it is the steadiest, and two or three trials are mostly luck."""
LEVEL_WINDOW_S = 5_400
"""The last hour and a half says where today stands against other days."""
LEVEL_HALF_LIFE_S = 7_200
"""Two hours ahead half of that still holds."""
LEVEL_MAX = 4.0
"""A level correction is bounded by this factor: beyond it the rule of the last level takes over by itself."""
COLD_FACTOR = 2.0
"""Without a day of history P90 is this much above the last level: real-time traffic peaks at two to three times its mean."""
FLOOR_GPUS = 0.05
"""Added on both sides of ratios, so that an idle night doesn't make them explode."""
TRIAL_SHARE = 0.6
"""P90 rests on what other days had at that time, and for this share on what the trials would have needed: either alone did worse."""
MEDIAN_RULE = 0
"""Place of the median of the days among the rules."""
NEIGHBOUR_STEPS = 2
HORIZON_S = DAY_S
P90 = 0.9
TRIAL_P90 = 0.94
"""The mixture has seen the trials its spread is measured on, so more than 90 % of them has to be covered."""


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
        self._level_steps = max(1, LEVEL_WINDOW_S // step_s)
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
        rules = self._rules(first, steps)
        enough = bool((~np.isnan(rules[0])).mean() > 0.5)
        if enough:
            p50, spread = self._mixed(first, steps, rules)
            own_days = np.maximum(self._days_p90(first, steps) - rules[0], 0.0)
            p90 = p50 + TRIAL_SHARE * spread + (1.0 - TRIAL_SHARE) * np.where(np.isnan(own_days), spread, own_days)
            p90 = np.minimum(
                p90, max(float(np.nanmax(self.values(np.arange(first - self._size + 1, first)))), p50.max())
            )
        else:
            p50 = np.full(steps, self._recent_level(first))
            p90 = p50 * COLD_FACTOR
        p50 = np.clip(np.nan_to_num(p50, nan=0.0, posinf=gpus_max), 0.0, gpus_max)
        p90 = np.clip(np.nan_to_num(p90, nan=gpus_max, posinf=gpus_max), p50, gpus_max)
        return Demand(first * self._step_ms, _rounded(p50), _rounded(p90), not enough)

    def _rules(self, first: int, steps: int) -> Series:
        """(rules, steps): what each rule would say at `first` about the steps from there on; NaN where it can't."""
        future = np.arange(first, first + steps)
        back = np.arange(1, DAYS_USED + 1).reshape(-1, 1) * self._steps_day
        days = self._before(future.reshape(1, -1) - back, first)
        median, yesterday = _nan_quantile(days, 0.5), days[0]
        recent = np.arange(first - self._level_steps, first)
        actual = self._before(recent, first)
        past_days = self._before(recent.reshape(1, -1) - back, first)
        fade = 0.5 ** ((future - first) * (self._step_ms / 1000.0) / LEVEL_HALF_LIFE_S)
        level = np.full(steps, self._recent_level(first))
        return np.stack(
            [
                median,
                yesterday,
                median * _level(actual, _nan_quantile(past_days, 0.5)) ** fade,
                yesterday * _level(actual, past_days[0]) ** fade,
                level,
            ]
        )

    def _days_p90(self, first: int, steps: int) -> Series:
        """P90 of the same time on the last days, each with its neighbouring steps."""
        future = np.arange(first, first + steps).reshape(1, -1)
        back = [
            day * self._steps_day + near
            for day in range(1, DAYS_USED + 1)
            for near in range(-NEIGHBOUR_STEPS, NEIGHBOUR_STEPS + 1)
        ]
        return _nan_quantile(self._before(future - np.array(back).reshape(-1, 1), first), P90)

    def _mixed(self, first: int, steps: int, rules: Series) -> tuple[Series, Series]:
        """(P50, P90 - P50) per step: rules weighed by their trials, and the spread the mixture would have needed there."""
        days = [self._trial(first, first - day * self._steps_day, steps) for day in range(1, TRIAL_DAYS + 1)]
        p50, spread = np.empty(steps), np.empty(steps)
        for near_s, far_s in pairwise(DISTANCES_S):
            far = max(1, far_s * 1000 // self._step_ms)
            part = slice(near_s * 1000 // self._step_ms, far)
            trials = [self._trial(first, first - far, far), *days]
            weights = self._weights([(said[:, part], came[part]) for said, came in trials])
            p50[part] = _mixture(weights, rules[:, part])
            needed = np.concatenate([came[part] - _mixture(weights, said[:, part]) for said, came in trials])
            needed = needed[~np.isnan(needed)]
            wide = max(0.0, float(np.quantile(needed, TRIAL_P90))) if len(needed) else None
            spread[part] = (COLD_FACTOR - 1.0) * p50[part] if wide is None else wide
        return p50, spread

    def _trial(self, first: int, origin: int, steps: int) -> tuple[Series, Series]:
        """What the rules would have said at an earlier origin, and what came as far as it is known at `first`."""
        said = self._rules(origin, min(steps, self._steps_day))
        return said, self._before(np.arange(origin, origin + said.shape[1]), first)

    def _weights(self, trials: list[tuple[Series, Series]]) -> Series:
        """Of the rules, from their mean absolute error in trials, and the favour of the median."""
        error, count = np.zeros(len(trials[0][0])), np.zeros(len(trials[0][0]))
        for weight, (said, came) in zip(TRIAL_WEIGHTS, trials, strict=True):
            miss = np.abs(said - came)
            error += weight * np.nansum(miss, axis=1)
            count += weight * (~np.isnan(miss)).sum(axis=1)
        favour = np.ones(len(count))
        favour[MEDIAN_RULE] = MEDIAN_FAVOUR
        if not count.all():
            return favour * np.where(count > 0, 1.0, 1e-3)
        mean = error / count
        return favour * (mean + 1e-6 + 0.01 * mean.max()) ** -SHARPNESS

    def _add(self, index: int, gpus: float, weight: float) -> None:
        place = index % self._size
        if self._index[place] != index:
            if self._index[place] > index:
                return
            self._index[place], self._total[place], self._weight[place] = index, 0.0, 0.0
        self._total[place] += gpus * weight
        self._weight[place] += weight

    def values(self, indices: Steps) -> Series:
        """Observed GPUs at these steps, NaN where nothing came."""
        places = indices % self._size
        known = (self._index[places] == indices) & (self._weight[places] > 0)
        return np.where(known, self._total[places] / np.maximum(self._weight[places], 1e-12), np.nan)

    def _before(self, indices: Steps, first: int) -> Series:
        """Values at these steps, but only what was known at `first`."""
        return np.where(indices < first, self.values(indices), np.nan)

    def _recent_level(self, first: int) -> float:
        """Mean of the last hour and a half before `first`, or of the newest that there is."""
        anchor = min(first, self.last_index + 1)
        recent = self.values(np.arange(anchor - self._level_steps, anchor))
        recent = recent[~np.isnan(recent)]
        return float(recent.mean()) if len(recent) else self._last_value


def _level(actual: Series, expected: Series) -> float:
    """How the last hour and a half ran against a rule, as a factor; 1 where nothing can be said."""
    usable = ~np.isnan(actual) & ~np.isnan(expected)
    if not usable.any():
        return 1.0
    floor = FLOOR_GPUS + 0.1 * float(expected[usable].mean())
    ratio = (float(actual[usable].mean()) + floor) / (float(expected[usable].mean()) + floor)
    return min(max(ratio, 1.0 / LEVEL_MAX), LEVEL_MAX)


def _mixture(weights: Series, rules: Series) -> Series:
    """Weighted mean of the rules that can answer, step by step."""
    present = np.where(np.isnan(rules), 0.0, weights.reshape(-1, 1))
    return np.nansum(rules * present, axis=0) / np.maximum(present.sum(axis=0), 1e-300)


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

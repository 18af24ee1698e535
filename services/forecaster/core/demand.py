"""Real-time demand of one application: GPUs per step for the next day, P50 and P90, from observed load.

Thirteen simple rules answer (`demand_rules.py`), where two weeks are known five more (`demand_deep.py`); how much each counts
follows from how it would have done at moments of the last three days (`demand_mixture.py`). So a daily service follows its days, a
bursty one its level, one that was moved its newest hours, and nobody has to say which it is. While less than half of the day's times
were ever observed: the last level, with wide quantiles (in the shape of the day that others have, it did worse). Windows that never
came are gaps, not zeros. Owns a ring of observed GPUs per step; what is believed of the rules follows every six hours from the ring
alone, so that a restart believes the same. Refuses: any trained model, any clock. Never negative, NaN, infinite or above what the
cluster has.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from services.forecaster.core.demand_deep import DEEP_DAYS, deep, deep_rules
from services.forecaster.core.demand_mixture import (
    TRIAL_PERIOD_S,
    TRIALS,
    Belief,
    Trials,
    believe,
    first_belief,
    foretold,
)
from services.forecaster.core.demand_remembered import Remembered
from services.forecaster.core.demand_rules import DAYS_USED, LAST_LEVEL, RECENT_S, Grid, Said, Series, rules

Steps = NDArray[np.int64]

DAYS_KEPT = DEEP_DAYS + 4
"""Ring length: trials three days back look two weeks further back, and a day more for windows that run ahead of the clock."""
KNOWN_SHARE_MIN = 0.5
"""Of the times of the day; if less was ever observed in five days, the rules are not asked."""
FOLLOW_S = 7_200.0
"""For so long P90 stays above a falling part of the newest level: days that fell at this time may not fall today, and who believed them
would be without GPUs at full load."""
COLD_FACTOR = 2.0
"""Without a day of history P90 is this much above the last level: real-time traffic peaks at two to three times its mean."""


@dataclass(frozen=True, slots=True)
class Demand:
    """GPUs per step from `start_ms`. `prior`: less than half of the day's times were known."""

    start_ms: int
    p50: list[float]
    p90: list[float]
    prior: bool


class DemandHistory:
    """Observed GPUs of one application on a grid of steps. Bounded: `DAYS_KEPT` days."""

    def __init__(self, step_s: int, remembered: Remembered | None = None) -> None:
        self._step_ms = step_s * 1000
        self._grid = Grid(step_s)
        self._size = DAYS_KEPT * self._grid.day
        self._total = np.zeros(self._size)
        self._weight = np.zeros(self._size)
        self._index = np.full(self._size, -1, np.int64)
        self.last_index = -1
        self._last_value = 0.0
        self.refused = 0
        self._belief: Belief | None = None
        self._review, self._oldest = -1, -1
        self._remembered = remembered or Remembered()
        self._owner = self._remembered.owner()

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
        """The coming `steps` from the step `now_ms` lies in; days after the first are like it."""
        first, day = now_ms // self._step_ms, self._grid.day
        past = self._past(np.array([first]))
        enough = bool(self._enough(past)[0])
        if enough:
            belief, said = self._believed_and_said(first, past)
            p50, p90 = foretold(self._grid, belief, said)
            ahead_s = np.arange(day) * (self._step_ms / 1000)
            p90 = np.fmax(p90, self._newest_level(first) * np.maximum(0.0, 1.0 - ahead_s / FOLLOW_S))
        else:
            p50 = np.full(day, self._recent_level(first))
            p90 = p50 * COLD_FACTOR
        p50 = np.clip(np.nan_to_num(p50, nan=0.0, posinf=gpus_max), 0.0, gpus_max)
        p90 = np.clip(np.nan_to_num(p90, nan=gpus_max, posinf=gpus_max), p50, gpus_max)
        start_ms = first * self._step_ms
        return Demand(start_ms, _rounded(np.resize(p50, steps)), _rounded(np.resize(p90, steps)), not enough)

    def _believed_and_said(self, first: int, past: Series) -> tuple[Belief, Said]:
        """What the trials up to the last quarter of a day say, kept until the next one, or until what it rests on changes; and what the
        rules say of the coming day."""
        period = self._grid.steps(TRIAL_PERIOD_S)
        review = first // period * period
        if self._belief is not None and self._review == review:
            return self._belief, self._said(np.array([first]), past, self._belief.rules.of_deep)
        of_deep = deep(self._grid, self._before(np.array([review]), DEEP_DAYS * self._grid.day))
        # Looked at from an earlier moment, what is remembered of later ones may be overtaken unnoticed.
        if self._belief is None or self._belief.rules.of_deep != of_deep or review < self._review:
            self._owner = self._remembered.owner()
        moments, tried, said = self._trials(review - period * np.arange(1, TRIALS + 1), first, past, of_deep)
        if tried is None:
            return first_belief(), rules(self._grid, past)
        ahead = moments.reshape(-1, 1) + np.arange(self._grid.day)
        came = np.where(ahead < review, self.values(ahead), np.nan)
        self._belief, self._review = believe(self._grid, Trials(review - moments, tried, came)), review
        self._oldest = review - period * TRIALS - max(self._grid.reach, DEEP_DAYS * self._grid.day)
        return self._belief, said

    def _trials(self, moments: Steps, first: int, past: Series, of_deep: bool) -> tuple[Steps, Said | None, Said]:
        """Those of the moments before which enough was known, what the rules said at them, and what they say at `first`, asked in one
        go. What was said at moments of the last review is remembered, while nothing came late."""
        tried = {int(moment): self._remembered.get(self._owner, int(moment)) for moment in moments}
        new = moments[[said is None for said in tried.values()]]
        before = self._past(new)
        enough = self._enough(before)
        new, before = new[enough], before[enough]
        said = self._said(np.append(new, first), np.concatenate([before, past]), of_deep)
        for place, moment in enumerate(new):
            # Copied: a part would keep the whole alive.
            tried[int(moment)] = part = Said.of([said[place : place + 1]])
            self._remembered.put(self._owner, int(moment), part)
        known = {moment: one for moment, one in tried.items() if one is not None}
        return np.array(list(known), np.int64), Said.of(list(known.values())) if known else None, said[-1:]

    def _said(self, moments: Steps, past: Series, of_deep: bool) -> Said:
        """By all rules that are asked; a deep one that can't answer says the last level."""
        said = rules(self._grid, past)
        if not of_deep:
            return said
        more = deep_rules(self._grid, self._before(moments, DEEP_DAYS * self._grid.day))
        more = np.where(np.isnan(more), said.p50[:, LAST_LEVEL, np.newaxis], more)
        return Said(np.concatenate([said.p50, more], axis=1), said.above, said.shift)

    def _enough(self, past: Series) -> NDArray[np.bool_]:
        """Whether for most times of the day something is known."""
        days = past[:, -DAYS_USED * self._grid.day :].reshape(len(past), DAYS_USED, self._grid.day)
        return (~np.isnan(days)).any(axis=1).mean(axis=1) > KNOWN_SHARE_MIN

    def _past(self, moments: Steps) -> Series:
        """(n, reach): what was known in the steps before each moment."""
        return self._before(moments, self._grid.reach)

    def _before(self, moments: Steps, steps: int) -> Series:
        return self.values(moments.reshape(-1, 1) + np.arange(-steps, 0))

    def _add(self, index: int, gpus: float, weight: float) -> None:
        place = index % self._size
        before = self._index[place]
        if before > index:
            return
        # A window that comes late, or one far ahead of the clock that pushes out what trials still look at.
        if index < self._review or (before != index and before >= max(0, self._oldest)):
            self._belief = None
        if before != index:
            self._index[place], self._total[place], self._weight[place] = index, 0.0, 0.0
        self._total[place] += gpus * weight
        self._weight[place] += weight

    def values(self, indices: Steps) -> Series:
        """Observed GPUs at these steps, NaN where nothing came."""
        places = indices % self._size
        known = (self._index[places] == indices) & (self._weight[places] > 0)
        return np.where(known, self._total[places] / np.maximum(self._weight[places], 1e-12), np.nan)

    def _newest_level(self, first: int) -> float:
        """The mean of the last two steps before `first` that were observed; 0 if nothing came in the last hour and a half."""
        recent = self._recent(first)
        return float(recent[-2:].mean()) if len(recent) else 0.0

    def _recent_level(self, first: int) -> float:
        """Mean of the last hour and a half before `first`, or of the newest that there is."""
        recent = self._recent(min(first, self.last_index + 1))
        return float(recent.mean()) if len(recent) else self._last_value

    def _recent(self, end: int) -> Series:
        """What was observed in the hour and a half before step `end`."""
        recent = self.values(np.arange(end - self._grid.steps(RECENT_S), end))
        return recent[~np.isnan(recent)]


def _rounded(values: Series) -> list[float]:
    return [round(float(value), 3) for value in values]

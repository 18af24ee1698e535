"""Expected batch-like work in the coming hours: GPU-seconds arriving per step, so that capacity later has a worth.

Owns: per step of the last days, the work that arrived (expected duration × GPUs of each accepted job). The forecast is the
mean of the same time on the days known, blended with the mean of the last day. Bounded: `DAYS_KEPT` days. Refuses clocks.
"""

from __future__ import annotations

import numpy as np

DAY_S = 86_400
DAYS_KEPT = 8
SAME_TIME_SHARE = 0.5
"""Half same-time, half overall mean: arrivals of batch work follow the clock only loosely."""


class ArrivalHistory:
    """GPU-seconds accepted per step."""

    def __init__(self, step_s: int) -> None:
        self._step_ms = step_s * 1000
        self._steps_day = DAY_S // step_s
        self._work = np.zeros(DAYS_KEPT * self._steps_day)
        self._index = np.full(len(self._work), -1, np.int64)
        self.first_index = -1
        self.last_index = -1

    def arrived(self, time_ms: int, gpu_seconds: float) -> None:
        """One accepted job's expected work."""
        index = time_ms // self._step_ms
        place = index % len(self._work)
        if self._index[place] > index:
            return
        if self._index[place] != index:
            self._index[place], self._work[place] = index, 0.0
        self._work[place] += gpu_seconds
        self.first_index = index if self.first_index < 0 else min(self.first_index, index)
        self.last_index = max(self.last_index, index)

    def forecast(self, now_ms: int, steps: int) -> tuple[int, list[float]]:
        """(start of the current step in ms, GPU-seconds per step). Steps without a job since the first one count as zero."""
        first = now_ms // self._step_ms
        known_from = max(self.first_index, first - len(self._work) + 1)
        day = np.arange(max(known_from, first - self._steps_day), first)
        overall = float(self._at(day).mean()) if len(day) else float(self._at(np.array([first]))[0])
        expected = []
        for index in range(first, first + steps):
            days = np.arange(index - self._steps_day, known_from - 1, -self._steps_day)
            days = days[days < first]
            same = float(self._at(days).mean()) if len(days) else overall
            expected.append(round(SAME_TIME_SHARE * same + (1 - SAME_TIME_SHARE) * overall, 1))
        return first * self._step_ms, expected

    def _at(self, indices: np.ndarray) -> np.ndarray:
        places = indices % len(self._work)
        return np.where(self._index[places] == indices, self._work[places], 0.0)

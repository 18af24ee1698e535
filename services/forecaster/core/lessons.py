"""What past runs teach a model: the features at their start, what was said then, and how long they took. Bounded.

Owns: the last `LESSONS_MAX` runs that ended by themselves, and those that go on. Runs that were stopped from outside teach
history a lower bound, but no model. Refuses: fitting, judging. Read next: `retraining.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.forecaster.core.features import GIVEN, NAMES, Row

LESSONS_MAX = 20_000
"""Ended runs kept, 220 bytes each, the oldest go first: a few weeks of a busy cluster, fitted in a second or two."""
RUNNING_TAUGHT_MAX = 2_000
"""Runs that go on and are handed to a training, newest first: more would take milliseconds of the event path to copy."""
GROWTH = 512

Array = NDArray[np.float64]
Moments = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Taught:
    """Runs as arrays. `rows`: features at start; `log_s`: log seconds, of a run that goes on (`ended` False) so far."""

    rows: Array
    start_ms: Moments
    end_ms: Moments
    log_s: Array
    ended: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.log_s)

    def history(self, column: int) -> Array:
        """log P50 (0) or log P90 (1) of history alone."""
        return self.rows[:, GIVEN + column]


class Lessons:
    """A ring of ended runs, oldest first once taken out, and the runs that go on."""

    def __init__(self, lessons_max: int = LESSONS_MAX) -> None:
        self._max = lessons_max
        self._rows = np.zeros((0, len(NAMES)))
        self._times = np.zeros((0, 2), np.int64)
        self._log_s = np.zeros(0)
        self._next = 0
        self._going: dict[str, tuple[Row, int]] = {}
        self.count = 0
        """Ended runs ever learnt from."""

    @property
    def kept(self) -> int:
        return min(self.count, self._max)

    def started(self, job_id: str, row: Row, start_ms: int) -> None:
        """A run began (again): these were its features."""
        self._going[job_id] = (row, start_ms)

    def forget(self, job_id: str) -> None:
        """A run is over without a lesson."""
        self._going.pop(job_id, None)

    def ended(self, job_id: str, end_ms: int, log_s: float) -> None:
        """A run ended by itself after so many log seconds."""
        found = self._going.pop(job_id, None)
        if found is None:
            return
        if self._next == len(self._log_s) < self._max:
            self._grow()
        self._rows[self._next] = found[0]
        self._times[self._next] = found[1], end_ms
        self._log_s[self._next] = log_s
        self.count += 1
        self._next = (self._next + 1) % self._max

    def ended_since(self, moment_ms: int) -> int:
        """Kept runs that ended after a moment."""
        return int((self._times[: self.kept, 1] > moment_ms).sum())

    def taught(self, now_ms: int) -> Taught:
        """A copy of everything, oldest first, running ones last."""
        kept = self.kept
        order = np.arange(kept) if kept < self._max else (np.arange(kept) + self._next) % self._max
        going = list(self._going.values())[-RUNNING_TAUGHT_MAX:]
        rows = [self._rows[order], *([np.array([row for row, _ in going])] if going else [])]
        start_ms = np.concatenate([self._times[order, 0], np.array([start for _, start in going], np.int64)])
        elapsed_s = np.maximum((now_ms - start_ms[kept:]) / 1000.0, 1.0)
        return Taught(
            rows=np.concatenate(rows),
            start_ms=start_ms,
            end_ms=np.concatenate([self._times[order, 1], np.full(len(going), now_ms, np.int64)]),
            log_s=np.concatenate([self._log_s[order], np.log(elapsed_s)]),
            ended=np.arange(kept + len(going)) < kept,
        )

    def _grow(self) -> None:
        extra = min(max(GROWTH, len(self._log_s)), self._max - len(self._log_s))
        self._rows = np.concatenate([self._rows, np.zeros((extra, len(NAMES)))])
        self._times = np.concatenate([self._times, np.zeros((extra, 2), np.int64)])
        self._log_s = np.concatenate([self._log_s, np.zeros(extra)])

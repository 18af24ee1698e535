"""The newest ended runs of a key, and its last batches: what a memory that fades by the start can't tell.

People submit in batches, and the runs of a batch are alike: 300 runs that crashed within a minute are one mishap, not 300 reasons
to expect the next. So per key the last `NEWEST` durations are kept as they are, and the last `BATCHES` batches (runs that started
within `BATCH_GAP_S` of the one before) as count, sum and sum of squares, each batch with one vote. Owns these arrays and the
kernels on them; refuses keys and clocks. Read next: `history.py`.
"""

from __future__ import annotations

from math import log, nan, sqrt

import numpy as np
from numba import njit

from services.forecaster.core.survival import Counts, Floats, Indices

NEWEST = 20
"""Ended runs kept per key: what the simple rule "last 20" looks at."""
FEW = 5
"""Of these, the middle is of the last five: alone, on NASA, 1 % less loss than of all twenty."""
BATCHES = 12
BATCH_GAP_S = 600.0
"""A start within ten minutes of the last one of its key belongs to the same batch."""
P90_DEVIATIONS = 1.2816
HIGH_BATCH_SHARE = 0.7
"""A batch's own P90 is a large value already: seven in ten of them lie below what is expected."""


class RecentRuns:
    """Arrays with one row per key; `history.py` says which row is whose."""

    def __init__(self) -> None:
        self.newest = np.zeros((0, NEWEST), np.float32)
        self.ended = np.zeros(0, np.int64)
        self.batches = np.zeros((0, BATCHES, 3), np.float32)
        self.batch = np.zeros(0, np.int64)

    def grow(self, extra: int) -> None:
        self.newest = np.concatenate([self.newest, np.zeros((extra, NEWEST), np.float32)])
        self.ended = np.concatenate([self.ended, np.zeros(extra, np.int64)])
        self.batches = np.concatenate([self.batches, np.zeros((extra, BATCHES, 3), np.float32)])
        self.batch = np.concatenate([self.batch, np.zeros(extra, np.int64)])

    def clear(self, slot: int) -> None:
        self.newest[slot] = 0.0
        self.batches[slot] = 0.0
        self.ended[slot] = self.batch[slot] = 0

    def started(self, slot: int, quiet_s: float) -> int:
        """A run begins, `quiet_s` after the last one of its key; the number of its batch."""
        if quiet_s > BATCH_GAP_S or self.batch[slot] == 0:
            self.batch[slot] += 1
            self.batches[slot, self.batch[slot] % BATCHES] = 0.0
        return int(self.batch[slot])

    def finished(self, slots: Indices, batch_of: Indices, log_s: float) -> None:
        """A run of these keys, in these batches of theirs, ended by itself."""
        _add(self.newest, self.ended, self.batches, self.batch, slots, batch_of, log_s)

    def middle_and_high(self, slot: int, going_ms: Indices, going_batch: Indices, now_ms: int) -> Floats:
        """Log seconds: middle of the last five, P90 of the last twenty, middle and P90 over batches; NaN where nothing ended.

        `going_ms`, `going_batch`: start and batch of runs of the key that go on. They vote in their batch with their age, else the
        quick ends of a batch would speak for all of it.
        """
        result = np.full(4, nan)
        _summary(
            self.newest[slot],
            self.ended[slot],
            self.batches[slot].copy(),
            self.batch[slot],
            going_ms,
            going_batch,
            now_ms,
            result,
        )
        return result


@njit(cache=True)
def _add(
    newest: Counts,
    ended: Indices,
    batches: Counts,
    batch: Indices,
    slots: Indices,
    batch_of: Indices,
    log_s: float,
) -> None:
    for level in range(len(slots)):
        slot = slots[level]
        if slot < 0:
            continue
        newest[slot, ended[slot] % NEWEST] = log_s
        ended[slot] += 1
        if batch_of[level] > batch[slot] - BATCHES:
            place = batch_of[level] % BATCHES
            batches[slot, place, 0] += 1.0
            batches[slot, place, 1] += log_s
            batches[slot, place, 2] += log_s * log_s


@njit(cache=True)
def _between(ordered: Floats, share: float) -> float:
    """Quantile of a sorted array that is not empty, between its neighbours."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@njit(cache=True)
def _summary(
    newest: Counts,
    ended: int,
    batches: Counts,
    batch: int,
    going_ms: Indices,
    going_batch: Indices,
    now_ms: int,
    result: Floats,
) -> None:
    """`batches` is changed: a copy."""
    if ended == 0:
        return
    for run in range(len(going_ms)):
        if going_batch[run] > batch - BATCHES:
            age_log_s = log(max(1.0, (now_ms - going_ms[run]) / 1000.0))
            place = going_batch[run] % BATCHES
            batches[place, 0] += 1.0
            batches[place, 1] += age_log_s
            batches[place, 2] += age_log_s * age_log_s
    few = np.empty(min(ended, FEW))
    for back in range(len(few)):
        few[back] = newest[(ended - 1 - back) % NEWEST]
    result[0] = _between(np.sort(few), 0.5)
    result[1] = _between(np.sort(newest[: min(ended, NEWEST)].astype(np.float64)), 0.9)
    middles, highs, count = np.empty(BATCHES), np.empty(BATCHES), 0
    for place in range(BATCHES):
        runs = batches[place, 0]
        if runs > 0:
            middle = batches[place, 1] / runs
            middles[count] = middle
            highs[count] = middle + P90_DEVIATIONS * sqrt(max(0.0, batches[place, 2] / runs - middle * middle))
            count += 1
    if count > 0:
        result[2] = _between(np.sort(middles[:count]), 0.5)
        result[3] = _between(np.sort(highs[:count]), HIGH_BATCH_SHARE)


@njit(cache=True)
def ages(start_ms: Indices, now_ms: int) -> tuple[float, float]:
    """Log seconds for which runs that go on have lasted: their middle, and the oldest of them; NaN without any."""
    if len(start_ms) == 0:
        return nan, nan
    lasted = np.empty(len(start_ms))
    for run in range(len(start_ms)):
        lasted[run] = log(max(1.0, (now_ms - start_ms[run]) / 1000.0))
    lasted.sort()
    return _between(lasted, 0.5), lasted[-1]


@njit(cache=True)
def newest_running(first: int, following: Indices, level: int, skipped: int, found: Indices) -> int:
    """Fill `found` with the running jobs of a key, newest first, but for `skipped`; how many there were."""
    run, count = first, 0
    while run >= 0 and count < len(found):
        if run != skipped:
            found[count] = run
            count += 1
        run = following[run, level]
    return count

"""Compiled kernels of the duration history: decayed hazard counts per key, and quantiles read from them.

A duration is a point on a fixed grid of `BINS` equal steps in log seconds from 1 s to 60 days. Per key and memory length
(`HALF_LIVES`, counted in starts of that key) two rows are kept: *exposure* (weight of runs that reached a bin) and *ends*
(weight of runs that ended in it). Ends ÷ exposure is the hazard, and hazards turn into quantiles. Runs that still go on, or
were stopped from outside, add exposure but no end: that is what keeps the many short finished jobs from hiding the long ones
that have not finished yet. A weight depends on how many runs of the key *started* since, never on when it ended; weighting
by completion would count the long ones twice.

Levels of keys are chained from coarse to fine: each level's hazard is its own counts plus `SHRINKAGE_WEIGHT` pseudo-runs of
the level above. Owns arithmetic only: arrays in, arrays out. Read next: `history.py`.
"""

from __future__ import annotations

from math import erfc, floor, log

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.float32]
Indices = NDArray[np.int64]

BINS = 48
"""Steps of the log-duration grid: one is a factor of 1.38, within which hazards are taken as constant."""
DURATION_S_MAX = 5_184_000.0
"""60 days: the end of the grid; longer runs count as this long."""
LOG_S_MAX = log(DURATION_S_MAX)
BIN_WIDTH = LOG_S_MAX / BINS
HALF_LIVES = (20.0, 60.0, 200.0)
"""Memory lengths in starts of the same key: this morning's sweep, today, the last days. The longest one is the base."""
BASE_SCALE = len(HALF_LIVES) - 1
SHRINKAGE_WEIGHT = 3.0
"""Pseudo-runs of the coarser level in each bin: three own runs weigh as much as everything known above."""
RUNNING_SCANNED_MAX = 4_096
"""Running jobs looked at per level, newest first: bounds the time of a forecast on a huge cluster."""
HAZARD_MAX = 0.999_999


def decay_rates() -> Floats:
    """Weight lost with one more start of a key, per memory length."""
    return np.array([0.5 ** (1.0 / half_life) for half_life in HALF_LIVES])


@njit(cache=True)
def _bin_of(log_s: float) -> tuple[int, float]:
    """(bin, position inside it in 0..1)."""
    place = min(max(log_s, 0.0), LOG_S_MAX) / BIN_WIDTH
    index = min(floor(place), BINS - 1)
    return index, min(place - index, 1.0)


@njit(cache=True)
def age(ends: Counts, exposure: Counts, slots: Indices, rates: Floats) -> None:
    """One more run starts under these keys: everything older loses weight."""
    for slot in slots:
        if slot < 0:
            continue
        for scale in range(ends.shape[1]):
            rate = rates[scale]
            for index in range(BINS):
                ends[slot, scale, index] *= rate
                exposure[slot, scale, index] *= rate


@njit(cache=True)
def add_run(
    ends: Counts, exposure: Counts, slots: Indices, starts_since: Indices, rates: Floats, log_s: float, observed: bool
) -> None:
    """A run is over. `observed`: it ended by itself after `log_s`; else it was cut there and its true end is unknown.

    `starts_since`: per level, runs of the same key started after this one.
    """
    index, inside = _bin_of(log_s)
    for level in range(len(slots)):
        slot = slots[level]
        if slot < 0:
            continue
        for scale in range(ends.shape[1]):
            weight = rates[scale] ** starts_since[level]
            for reached in range(index):
                exposure[slot, scale, reached] += weight
            exposure[slot, scale, index] += weight if observed else weight * inside
            if observed:
                ends[slot, scale, index] += weight


@njit(cache=True)
def curves(
    ends: Counts,
    exposure: Counts,
    starts: Indices,
    slots: Indices,
    first_running: Indices,
    next_running: Indices,
    running_start_ms: Indices,
    running_rank: Indices,
    rates: Floats,
    prior: Floats,
    now_ms: int,
    skipped: int,
    hazards: Floats,
    weights: Floats,
) -> None:
    """Chained hazards per level into `hazards` (level, scale, bin) and the weight of the evidence into `weights` (level).

    `skipped`: a running job left out (it must not vote on its own future), or -1.
    """
    scales = ends.shape[1]
    reached = np.empty((scales, BINS))
    for level in range(len(slots)):
        slot = slots[level]
        if slot < 0:
            weights[level] = 0.0
            for scale in range(scales):
                for index in range(BINS):
                    above = prior[index] if level == 0 else hazards[level - 1, scale, index]
                    hazards[level, scale, index] = above
            continue
        for scale in range(scales):
            for index in range(BINS):
                reached[scale, index] = exposure[slot, scale, index]
        run = first_running[slot]
        seen = 0
        while run >= 0 and seen < RUNNING_SCANNED_MAX:
            if run != skipped:
                elapsed_s = max(1.0, (now_ms - running_start_ms[run]) / 1000.0)
                last, inside = _bin_of(log(elapsed_s))
                for scale in range(scales):
                    weight = rates[scale] ** (starts[slot] - running_rank[run, level])
                    for index in range(last):
                        reached[scale, index] += weight
                    reached[scale, last] += weight * inside
            run = next_running[run, level]
            seen += 1
        total = 0.0
        for index in range(BINS):
            total += ends[slot, scales - 1, index]
        weights[level] = total
        for scale in range(scales):
            for index in range(BINS):
                above = prior[index] if level == 0 else hazards[level - 1, scale, index]
                ended = ends[slot, scale, index] + SHRINKAGE_WEIGHT * above
                hazards[level, scale, index] = ended / (reached[scale, index] + SHRINKAGE_WEIGHT)


@njit(cache=True)
def quantile(hazard: Floats, share: float, survived_log_s: float) -> float:
    """Log seconds by which `share` of the runs that lasted `survived_log_s` have ended (0 = all runs)."""
    first, inside = _bin_of(survived_log_s)
    left = log(1.0 - share)
    passed = 0.0
    for index in range(first, BINS):
        rate = log(1.0 - min(hazard[index], HAZARD_MAX))
        width = 1.0 - inside if index == first else 1.0
        if passed + rate * width <= left:
            start = inside if index == first else 0.0
            return BIN_WIDTH * (index + start + (left - passed) / rate)
        passed += rate * width
    return LOG_S_MAX


def lognormal_hazard(median_s: float, spread: float) -> Floats:
    """Hazard per bin of a lognormal duration: the prior's shape. `spread`: standard deviation of log seconds.

    In log time this hazard rises with age, so a run that has outlived everything is expected to last a fraction of its age
    more, not for ever and not "any moment now".
    """
    edges = (np.arange(BINS + 1) * BIN_WIDTH - log(max(median_s, 1.0))) / spread
    survival = 0.5 * np.array([erfc(edge / 2**0.5) for edge in edges])
    hazard = 1.0 - survival[1:] / np.maximum(survival[:-1], 1e-300)
    return np.clip(np.where(survival[:-1] < 1e-12, 0.9, hazard), 1e-9, 0.9)

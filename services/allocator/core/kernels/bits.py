"""Time words: one GPU's busy steps as 128 bits in two uint64 (`lo` steps 0-63, `hi` steps 64-127).

Pools with windows of at most 64 steps never touch `hi`: every function takes `two`, False for them.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.cpython.unsafe.numbers import leading_zeros, trailing_zeros
from numba.extending import overload

ZERO = np.uint64(0)
ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
WORD = 64


def lowest(word):
    """Position of the lowest set bit; undefined for 0."""
    return (int(word) & -int(word)).bit_length() - 1


def highest(word):
    """Position of the highest set bit; undefined for 0."""
    return int(word).bit_length() - 1


@overload(lowest)
def _lowest_compiled(word):
    return lambda word: np.int64(trailing_zeros(word))  # type: ignore[call-arg]


@overload(highest)
def _highest_compiled(word):
    return lambda word: np.int64(63) - np.int64(leading_zeros(word))  # type: ignore[call-arg]


@njit(cache=True, inline="always")
def mask_below(n):
    """Word with bits 0..n-1 set, for any n."""
    if n <= 0:
        return ZERO
    if n >= WORD:
        return ALL
    return ALL >> np.uint64(WORD - n)


@njit(cache=True)
def span(start, end, two):
    """(lo, hi) with bits start..end-1 set."""
    lo = mask_below(end) & ~mask_below(start)
    hi = ZERO
    if two:
        hi = mask_below(end - WORD) & ~mask_below(start - WORD)
    return lo, hi


@njit(cache=True)
def blocked_starts(lo, hi, steps, two):
    """Bit t set iff any of t..t+steps-1 is set: starts at which a run of `steps` would collide. 1 <= steps <= 97."""
    have = 1
    if not two:
        if steps >= WORD:
            return _smear_all(lo), ZERO
        while have * 2 <= steps:
            lo |= lo >> np.uint64(have)
            have *= 2
        if steps > have:
            lo |= lo >> np.uint64(steps - have)
        return lo, ZERO
    while have * 2 <= steps:
        lo |= (lo >> np.uint64(have)) | (hi << np.uint64(WORD - have))
        hi |= hi >> np.uint64(have)
        have *= 2  # ends at 64 at most, so no shift reaches 64
    if steps > have:
        rest = steps - have
        lo |= (lo >> np.uint64(rest)) | (hi << np.uint64(WORD - rest))
        hi |= hi >> np.uint64(rest)
    return lo, hi


@njit(cache=True)
def _smear_all(lo):
    """Bit t set iff any bit at or above t is set."""
    if lo == ZERO:
        return ZERO
    return mask_below(highest(lo) + 1)


@njit(cache=True)
def first_set(lo, hi):
    """Lowest set step of a pair, or 128 for none."""
    if lo != ZERO:
        return lowest(lo)
    if hi != ZERO:
        return WORD + lowest(hi)
    return 2 * WORD


@njit(cache=True)
def run_before(lo, hi, step):
    """Clear steps directly before `step`: distance down to the highest set bit below it (or to step 0)."""
    if step > WORD:
        above = hi & mask_below(step - WORD)
        if above != ZERO:
            return step - 1 - (WORD + highest(above))
    below = lo & mask_below(step)
    if below != ZERO:
        return step - 1 - highest(below)
    return step


@njit(cache=True)
def run_after(lo, hi, step, steps):
    """Clear steps from `step` up to the next set bit (or to the end of the window)."""
    if step >= steps:
        return 0
    at = first_set(lo & ~mask_below(step), hi & ~mask_below(step - WORD))
    return min(at, steps) - step

"""Integers from fractions and sums, the same on every machine: weights of steps, shares of densities, running sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def step_weights(steps: int, decay_end: float, weight_one: int) -> Ints:
    """Weights falling linearly from 1 at step 0 to `decay_end` at the last step, rounded to fixed point."""
    end = round(decay_end * weight_one)
    last = max(1, steps - 1)
    values = [(weight_one * (last - t) + end * t + last // 2) // last for t in range(steps)]
    return np.array(values, dtype=np.int64)


def rounded_share(density: Ints, best: Ints, work: Ints) -> Ints:
    """density × best ÷ work rounded half up, without leaving int64: best <= work, so split off whole multiples.

    Work beyond 2**24 GPU-steps (no real job) loses its lowest bits on both sides of the fraction.
    """
    excess = np.maximum(0, np.frexp(work)[1].astype(np.int64) - 24)
    work, best = work >> excess, best >> excess
    whole, rest = density // work * best, density % work * best
    return whole + (2 * rest + work) // (2 * work)


def running_sums(rows: Sequence[Sequence[int]], columns: int) -> Ints:
    """Row by row the sums up to and including each column."""
    table = np.array(rows, dtype=np.int64).reshape(len(rows), columns)
    sums: Ints = np.cumsum(table, axis=1)
    return sums

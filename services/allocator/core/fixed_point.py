"""Integers from fractions and sums, the same on every machine: weights of steps, running sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
PRIORITY_ONE = 1000
WEIGHTS_CACHED_MAX = 32  # one per window and scale of priorities a process plans with


@lru_cache(WEIGHTS_CACHED_MAX)
def step_weights(steps: int, decay_end: float, weight_one: int) -> tuple[Ints, Ints]:
    """Weights falling linearly from 1 at step 0 to `decay_end` at the last step, rounded to fixed point, and their prefix sums."""
    end = round(decay_end * weight_one)
    last = max(1, steps - 1)
    values = [(weight_one * (last - t) + end * t + last // 2) // last for t in range(steps)]
    return np.array(values, dtype=np.int64), np.array([0, *accumulate(values)], dtype=np.int64)


def running_sums(rows: Sequence[Sequence[int]], columns: int) -> Ints:
    """Row by row the sums up to and including each column."""
    table = np.array(rows, dtype=np.int64).reshape(len(rows), columns)
    sums: Ints = np.cumsum(table, axis=1)
    return sums

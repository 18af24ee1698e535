"""Bounds from prices, in exact integers: whatever prices a solver suggests, what follows from them here is proven.

Prices per row turn the model into one choice per job; the sum of the best choices bounds every solution. A candidate
whose job loses more by it than the distance to a known plan is in no better plan and can be dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.model import IntegerModel

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PricedBound:
    """`bound` in objective units; `with_variable[i]`: the bound of solutions in which exclusive variable i is 1."""

    bound: int
    with_variable: Ints


def priced_bound(model: IntegerModel, prices: NDArray[np.float64]) -> PricedBound:
    """The bound at these prices per row of `model.rows`, rounded to integers. Groups must not overlap."""
    reduced = np.array(model.gain, dtype=np.int64)
    total = 0
    for row, price in zip(model.rows, np.rint(prices).astype(np.int64).tolist(), strict=True):
        if price:
            np.subtract.at(reduced, row.variables, price * row.coefficients)
            total += price * (row.high if price > 0 else row.low)
    earned = np.maximum(0, reduced) * np.array(model.upper, dtype=np.int64)
    best = earned.copy()
    for group in model.exclusive:
        most = int(earned[group].max())
        earned[group] = 0
        earned[group[0]] = most
        best[group] = most
    bound = total + int(earned.sum())
    return PricedBound(bound, bound - best + reduced)

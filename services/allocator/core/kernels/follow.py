"""Start the search from a plan that is known: its sizes and its order, each job as early as it fits.

An earlier plan kept as it was (`repair.py`) leaves holes where something ended early; this closes them, and searches on
from there.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.board import CLASS, FIRST, GUARD_HI, GUARD_LO, OPTION, REFUSAL, START
from services.allocator.core.kernels.layout import lay_out
from services.allocator.core.kernels.repair import keep_segments
from services.allocator.core.kernels.search import (
    build,
    close_grid,
    empty_grid,
    improve,
    margin_density,
    seeded,
    value_order,
    work_of,
)
from services.allocator.core.kernels.settle import settle_all


@njit(cache=True)
def follow(f, kept, segments, iterations, seed, finish_share):
    """Job rows and segments of a search that begins with the order and sizes of `kept` (a row per job, START -1: unknown)."""
    w, g = work_of(f, finish_share), empty_grid(f)
    if not keep_segments(f, g, segments):
        segments = lay_out(f, g.bits[GUARD_LO], g.bits[GUARD_HI], 0)
    close_grid(f, w, g)
    by_value = value_order(f, np.ones(f.jobs.shape[0], np.bool_))
    margin = margin_density(f, g, by_value)
    forced = np.full(f.jobs.shape[0], -1, np.int64)
    order = _followed_order(f, kept, by_value, forced)
    empty = g.bits.copy()
    total = build(w, g, order, forced, margin, g.flat)
    g.bits[:] = empty
    if iterations > 0:
        improve(w, g, order, forced, margin, total, iterations, seeded(seed))
        g.bits[:] = empty
    settle_all(f, w, g, order)
    return g.place, segments


@njit(cache=True)
def _followed_order(f, kept, by_value, forced):
    """Known jobs by start, then place in the pool; the others behind them by value. Fills in the known sizes."""
    known = np.zeros(f.jobs.shape[0], np.bool_)
    count = 0
    for j in by_value:
        if kept[j, START] >= 0 and f.jobs[j, REFUSAL] == 0 and f.options[kept[j, OPTION], CLASS] >= 0:
            known[j] = True
            forced[j] = kept[j, OPTION]
            count += 1
    order = np.empty(len(by_value), np.int64)
    key = np.empty(count, np.int64)
    first, last = 0, count
    for j in by_value:
        if known[j]:
            order[first] = j
            key[first] = (kept[j, START] << 32) + kept[j, FIRST]
            first += 1
        else:
            order[last] = j
            last += 1
    order[:count] = order[:count][np.argsort(key, kind="mergesort")]
    return order

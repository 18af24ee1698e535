"""One job into the grid at the best of its offered sizes.

The duration counts against batch cells, the longer hold against guarded cells. An option's score is its gain less a
margin for the cells it takes: what other work would earn there.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ZERO, span
from services.allocator.core.kernels.blocks import NO_START, fill_nodes, occupy, scan, scan_multi, scan_nodes
from services.allocator.core.kernels.board import (
    CLASS,
    DATA,
    DENSITY,
    FIRST,
    GAIN,
    GPUS,
    HOLD,
    OPTION,
    OPTION_EARLIEST,
    START,
    STEPS,
)
from services.allocator.core.kernels.caps import allowed, charge
from services.allocator.core.kernels.near import farness
from services.allocator.core.kernels.shape import node_of


@njit(cache=True)
def find(w, g, j, o, earliest, tight):
    """Earliest (start, first GPU) for job j at option row `o`, or NO_START."""
    k, steps, hold = w.options[o, CLASS], w.options[o, STEPS], w.options[o, HOLD]
    lo, hi = span(earliest, g.steps, g.two)
    if w.job_caps.shape[1] > 0:
        lo, hi = allowed(w, g, j, w.options[o, GPUS], steps, lo, hi)
        if lo == ZERO and hi == ZERO:
            return NO_START, -1
    data = w.options[o, DATA]
    if g.flat:
        return scan(g, k, steps, hold, lo, hi, tight, data)
    start, first = NO_START, -1
    if k < w.shape[3]:
        start, first = scan_nodes(w, g, k, steps, hold, lo, hi, data)
    several = scan_multi(w, g, k, steps, hold, lo, hi, data)
    if several[0] < start or (several[0] == start and _is_nearer(g, k, several[1], first, data)):
        return several
    return start, first


@njit(cache=True)
def _is_nearer(g, k, several, first, data):
    """Of two blocks with the same start: whether the one of several nodes is nearer, or as near and lower in the pool."""
    if several < 0:
        return False
    here, there = farness(g, first, 1 << k, data), farness(g, several, 1 << k, data)
    return there < here or (there == here and several < first)


@njit(cache=True)
def put(w, g, j):
    """Put job j's cells into the grid."""
    o, start, first = g.place[j, OPTION], g.place[j, START], g.place[j, FIRST]
    size = w.options[o, GPUS]
    end = min(start + w.options[o, STEPS], g.steps)
    occupy(g, first, size, start, end)
    if w.job_caps.shape[1] > 0:
        charge(w, g, j, size, start, end)
    if not g.flat:
        fill_nodes(w, g, node_of(w.shape, first), node_of(w.shape, first + size - 1) + 1)


@njit(cache=True)
def place_job(w, g, j, forced, margin, tight):
    """Place job j at its best option and earliest start, or leave it out; returns its gain.

    `margin` is a density; `forced` names the only option to consider, or -1.
    """
    g.place[j, START] = -1
    g.place[j, GAIN] = 0
    best_score, best_start, best_option = np.int64(-(1 << 62)), -1, -1
    best_gain, best_first = np.int64(0), -1
    for o in range(w.option_ptr[j], w.option_ptr[j + 1]):
        if w.options[o, CLASS] < 0 or (forced >= 0 and o != forced) or w.options[o, OPTION_EARLIEST] >= g.steps:
            continue
        start, first = find(w, g, j, o, w.options[o, OPTION_EARLIEST], tight)
        if start == NO_START:
            continue
        weight = w.weight_sum[min(start + w.options[o, STEPS], g.steps)] - w.weight_sum[start]
        weight *= w.options[o, GPUS]
        gain = w.options[o, DENSITY] * weight
        if gain > 0 and start + w.options[o, STEPS] <= g.steps:
            gain += w.finish_bonus
        score = gain - margin * weight
        if score > best_score:
            best_score, best_start, best_first, best_option, best_gain = score, start, first, o, gain
    if best_option < 0 or best_gain <= 0:
        return np.int64(0)
    g.place[j, START], g.place[j, FIRST] = best_start, best_first
    g.place[j, OPTION], g.place[j, GAIN] = best_option, best_gain
    put(w, g, j)
    return best_gain

"""One job into the grid: the earliest block of a size, the best of the offered sizes, mark and unmark.

A block test is an OR over the block's GPUs and a shift: smear the busy steps back by the duration, and the lowest
clear bit is the earliest start. The duration counts against batch cells, the longer hold against guarded cells.
Nodes that can't offer a block early enough are skipped by an index of one word per node and size.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ALL, ZERO, blocked_starts, first_set, run_after, run_before, span
from services.allocator.core.kernels.board import (
    BUSY_HI,
    BUSY_LO,
    CLASS,
    DENSITY,
    EARLIEST,
    FIRST,
    GAIN,
    GPUS,
    GUARD_HI,
    GUARD_LO,
    HOLD,
    OPTION,
    REFUSAL,
    START,
    STEPS,
)

NO_START = 1 << 30


@njit(cache=True)
def _refresh(words, index, node, begin, end, two):
    """Recompute the index words of one node from its GPUs."""
    classes = index.shape[0] - 1
    for half in range(2 if two else 1):
        row = BUSY_HI if half else BUSY_LO
        for k in range(classes):
            size = 1 << k
            none_free = ALL
            for first in range(begin, end - size + 1):
                busy = ZERO
                for i in range(first, first + size):
                    busy |= words[row, i]
                none_free &= busy
            index[k, half, node] = none_free
        any_busy = ZERO
        for i in range(begin, end):
            any_busy |= words[row, i]
        index[classes, half, node] = any_busy


@njit(cache=True)
def _block_start(words, first, size, steps, hold, window_lo, window_hi, two):
    """Earliest start of a run of `steps` on these GPUs inside the window mask; 128 and more for none."""
    if not two:
        lo, guard = words[BUSY_LO, first], words[GUARD_LO, first]
        for i in range(first + 1, first + size):
            lo |= words[BUSY_LO, i]
            guard |= words[GUARD_LO, i]
        lo, hi = blocked_starts(lo, ZERO, steps, False)
        if hold != steps:
            guard, hi = blocked_starts(guard, ZERO, hold, False)
            lo |= guard
        return first_set(~lo & window_lo, ZERO)
    lo, hi, guard_lo, guard_hi = ZERO, ZERO, ZERO, ZERO
    for i in range(first, first + size):
        lo |= words[BUSY_LO, i]
        hi |= words[BUSY_HI, i]
        guard_lo |= words[GUARD_LO, i]
        guard_hi |= words[GUARD_HI, i]
    lo, hi = blocked_starts(lo, hi, steps, True)
    if hold != steps:
        guard_lo, guard_hi = blocked_starts(guard_lo, guard_hi, hold, True)
        lo |= guard_lo
        hi |= guard_hi
    return first_set(~lo & window_lo, ~hi & window_hi)


@njit(cache=True)
def _idle_around(words, first, size, start, end, steps):
    """Idle GPU-steps directly before `start` and after `end` on these GPUs: what a placement there cuts into."""
    idle = 0
    for i in range(first, first + size):
        lo, hi = words[BUSY_LO, i], words[BUSY_HI, i]
        idle += run_before(lo, hi, start) + run_after(lo, hi, end, steps)
    return idle


@njit(cache=True)
def find_block(words, index, stale, node_first, size, k, steps, hold, earliest, window, two, tight):
    """Earliest (start, first GPU) of a block of class k inside a node, or NO_START.

    Among equal starts the block with the least idle time around it wins if `tight`, else the lowest GPU.
    """
    best_start, best_first, best_idle = NO_START, -1, 0
    window_lo, window_hi = span(earliest, window, two)
    for node in range(len(node_first) - 1):
        begin, end = node_first[node], node_first[node + 1]
        if end - begin < size:
            continue
        if stale[node]:
            _refresh(words, index, node, begin, end, two)
            stale[node] = 0
        lo, hi = blocked_starts(index[k, 0, node], index[k, 1, node], steps, two)
        bound = first_set(~lo & window_lo, ~hi & window_hi)
        if bound >= window or bound > best_start or (bound == best_start and not tight):
            continue
        for first in range(begin, end - size + 1):
            start = _block_start(words, first, size, steps, hold, window_lo, window_hi, two)
            if start > best_start or start >= window:
                continue
            if tight:
                idle = _idle_around(words, first, size, start, min(start + steps, window), window)
                if start < best_start or idle < best_idle:
                    best_start, best_first, best_idle = start, first, idle
            elif start < best_start:
                best_start, best_first = start, first
                if start == earliest:
                    return best_start, best_first
    return best_start, best_first


@njit(cache=True)
def find_nodes(words, index, stale, node_first, multi_node, multi_nodes, steps, hold, earliest, window, two):
    """Earliest (start, first GPU) of a block made of whole nodes; `multi_*` list the candidates of the class."""
    best_start, best_first = NO_START, -1
    window_lo, window_hi = span(earliest, window, two)
    whole = index.shape[0] - 1
    for c in range(len(multi_node)):
        lo, hi = ZERO, ZERO
        for node in range(multi_node[c], multi_node[c] + multi_nodes[c]):
            if stale[node]:
                _refresh(words, index, node, node_first[node], node_first[node + 1], two)
                stale[node] = 0
            lo |= index[whole, 0, node]
            hi |= index[whole, 1, node]
        lo, hi = blocked_starts(lo, hi, steps, two)
        start = first_set(~lo & window_lo, ~hi & window_hi)
        if start >= best_start or start >= window:
            continue
        first = node_first[multi_node[c]]
        if hold != steps:
            size = node_first[multi_node[c] + multi_nodes[c]] - first
            start = _block_start(words, first, size, steps, hold, window_lo, window_hi, two)
            if start >= best_start or start >= window:
                continue
        best_start, best_first = start, first
        if start == earliest:
            break
    return best_start, best_first


@njit(cache=True)
def find(f, g, o, earliest, tight):
    """Earliest (start, first GPU) for option row `o`, or NO_START."""
    k, size = f.options[o, CLASS], f.options[o, GPUS]
    steps, hold = f.options[o, STEPS], f.options[o, HOLD]
    start, first = NO_START, -1
    if k < f.node_classes:
        start, first = find_block(
            g.words, g.index, g.stale, f.node_first, size, k, steps, hold, earliest, f.steps, f.two, tight
        )
    a, b = f.multi_ptr[k], f.multi_ptr[k + 1]
    if a < b:
        start_m, first_m = find_nodes(
            g.words, g.index, g.stale, f.node_first, f.multi_node[a:b], f.multi_nodes[a:b],
            steps, hold, earliest, f.steps, f.two,
        )  # fmt: skip
        if start_m < start or (start_m == start and first_m < first):
            start, first = start_m, first_m
    return start, first


@njit(cache=True)
def set_cells(words, stale, gpu_node, first, size, start, end, busy, two):
    """Occupy (or free) the cells of a placed job. They are its own, so clearing bits undoes setting them exactly."""
    lo, hi = span(start, end, two)
    for i in range(first, first + size):
        if busy:
            words[BUSY_LO, i] |= lo
            words[BUSY_HI, i] |= hi
        else:
            words[BUSY_LO, i] &= ~lo
            words[BUSY_HI, i] &= ~hi
        stale[gpu_node[i]] = 1


@njit(cache=True)
def mark(f, g, j, busy):
    """Put job j's cells into the grid, or take them out."""
    o, start = g.place[j, OPTION], g.place[j, START]
    end = min(start + f.options[o, STEPS], f.steps)
    set_cells(g.words, g.stale, f.gpu_node, g.place[j, FIRST], f.options[o, GPUS], start, end, busy, f.two)


@njit(cache=True)
def place_job(f, g, j, forced, margin, tight):
    """Place job j at its best option and earliest start, or leave it out; returns its gain.

    An option's score is its gain less `margin` (a density: what other work would earn on the same cells) for each cell.
    `forced` names the only option to consider, or -1.
    """
    g.place[j, START] = -1
    g.place[j, GAIN] = 0
    if f.jobs[j, REFUSAL] != 0 or f.jobs[j, EARLIEST] >= f.steps:
        return np.int64(0)
    best_score, best_start, best_option = np.int64(-(1 << 62)), -1, -1
    best_gain, best_first = np.int64(0), -1
    for o in range(f.option_ptr[j], f.option_ptr[j + 1]):
        if f.options[o, CLASS] < 0 or (forced >= 0 and o != forced):
            continue
        start, first = find(f, g, o, f.jobs[j, EARLIEST], tight)
        if start == NO_START:
            continue
        weight = f.weight_sum[min(start + f.options[o, STEPS], f.steps)] - f.weight_sum[start]
        weight *= f.options[o, GPUS]
        gain = f.options[o, DENSITY] * weight
        score = gain - margin * weight
        if score > best_score:
            best_score, best_start, best_first, best_option, best_gain = score, start, first, o, gain
    if best_option < 0 or best_gain <= 0:
        return np.int64(0)
    g.place[j, START], g.place[j, FIRST] = best_start, best_first
    g.place[j, OPTION], g.place[j, GAIN] = best_option, best_gain
    mark(f, g, j, True)
    return best_gain

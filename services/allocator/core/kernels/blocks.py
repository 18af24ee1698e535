"""Busy words of every candidate block, kept up to date, and the search for the earliest free one.

A block's word is the OR of its GPUs' words. One pass over a row of blocks smears all of them at once (the compiler
makes vector code of it): OR in the row shifted by the duration, and a clear bit is a start. In large pools a row per
node says first which nodes can have a block at all.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import (
    ALL,
    ONE,
    WORD,
    ZERO,
    blocked_starts,
    first_set,
    run_after,
    run_before,
    span,
)
from services.allocator.core.kernels.board import BUSY_HI, BUSY_LO, GUARD_HI, GUARD_LO
from services.allocator.core.kernels.near import FARTHEST, farness
from services.allocator.core.kernels.shape import multi_block, multi_range, node_begin

NO_START = 1 << 30


@njit(cache=True)
def fill_grid(w, g):
    """Derive blocks and nodes from busy and guard words."""
    _fill_blocks(w.shape, g.bits, BUSY_LO, g.block_lo, g.classes)
    if g.two:
        _fill_blocks(w.shape, g.bits, BUSY_HI, g.block_hi, g.classes)
    if g.guard_lo >= 0:
        _fill_blocks(w.shape, g.bits, GUARD_LO, g.guard_lo, g.classes)
        if g.two:
            _fill_blocks(w.shape, g.bits, GUARD_HI, g.guard_hi, g.classes)
    fill_nodes(w, g, 0, w.shape[0])


@njit(cache=True)
def fill_nodes(w, g, low, high):
    """Derive the words of nodes low..high-1 from their blocks; nothing to do in flat grids."""
    if g.flat:
        return
    for node in range(low, high):
        _fill_node(w.shape, g.bits, g.block_lo, g.node_lo, g.classes, node)
        if g.two:
            _fill_node(w.shape, g.bits, g.block_hi, g.node_hi, g.classes, node)


@njit(cache=True)
def _fill_blocks(shape, bits, word, row, classes):
    """Blocks of all classes from the words in one row: inside nodes by doubling, of several nodes one by one."""
    bits[row : row + classes] = ALL
    bits[row] = bits[word]
    for k in range(1, min(classes, shape[3])):
        half = 1 << (k - 1)
        for node in range(shape[0]):
            for i in range(node_begin(shape, node), node_begin(shape, node + 1) - 2 * half + 1):
                bits[row + k, i] = bits[row + k - 1, i] | bits[row + k - 1, i + half]
    for k in range(min(classes, shape[2])):  # an empty pool has no class at all
        low, high = multi_range(shape, k)
        for c in range(low, high):
            node, nodes = multi_block(shape, c)
            busy = ZERO
            for i in range(node_begin(shape, node), node_begin(shape, node + nodes)):
                busy |= bits[word, i]
            bits[row + k, node_begin(shape, node)] = busy


@njit(cache=True)
def _fill_node(shape, bits, block_row, node_row, classes, node):
    """One node's words: the AND over its blocks of each class."""
    begin, end = node_begin(shape, node), node_begin(shape, node + 1)
    for k in range(min(classes, shape[3])):
        none_free = ALL
        for i in range(begin, end - (1 << k) + 1):
            none_free &= bits[block_row + k, i]
        bits[node_row + k, node] = none_free


@njit(cache=True)
def occupy(g, first, size, start, end):
    """Set a job's cells in words and blocks; `fill_nodes` has to follow before nodes are scanned again."""
    lo, hi = span(start, end, g.two)
    _add(g.bits, BUSY_LO, g.block_lo, g.classes, first, size, lo)
    if g.two:
        _add(g.bits, BUSY_HI, g.block_hi, g.classes, first, size, hi)


@njit(cache=True)
def _add(bits, word, row, classes, first, size, cells):
    """OR cells into GPUs first..first+size-1 and into all blocks that contain one of them."""
    for i in range(first, first + size):
        bits[word, i] |= cells
    for k in range(classes):
        for i in range(max(0, first - (1 << k) + 1), first + size):
            bits[row + k, i] |= cells


@njit(cache=True)
def _smear(bits, out, row, n, steps):
    """Row `out` = the first n words of `row` with every busy step spread to all starts it blocks."""
    if steps >= WORD:
        for i in range(n):
            bits[out, i] = blocked_starts(bits[row, i], ZERO, steps, False)[0]
        return
    by = np.uint64(1 if steps > 1 else 0)
    for i in range(n):
        bits[out, i] = bits[row, i] | (bits[row, i] >> by)
    have = 2
    while have * 2 <= steps:
        by = np.uint64(have)
        for i in range(n):
            bits[out, i] |= bits[out, i] >> by
        have *= 2
    if steps > have:
        by = np.uint64(steps - have)
        for i in range(n):
            bits[out, i] |= bits[out, i] >> by


@njit(cache=True)
def _smear_two(bits, out, row_lo, row_hi, n, steps):
    """`_smear` for windows of more than 64 steps, into rows `out` and `out` + 1. A shift of 64 hands `hi` down to `lo`."""
    if steps == 1:
        for i in range(n):
            bits[out, i] = bits[row_lo, i]
            bits[out + 1, i] = bits[row_hi, i]
        return
    by, back = np.uint64(1), np.uint64(WORD - 1)
    for i in range(n):
        bits[out, i] = bits[row_lo, i] | (bits[row_lo, i] >> by) | (bits[row_hi, i] << back)
        bits[out + 1, i] = bits[row_hi, i] | (bits[row_hi, i] >> by)
    have = 2
    while have < steps:
        more = min(have, steps - have)
        if more == WORD:
            for i in range(n):
                bits[out, i] |= bits[out + 1, i]
        else:
            by, back = np.uint64(more), np.uint64(WORD - more)
            for i in range(n):
                bits[out, i] |= (bits[out, i] >> by) | (bits[out + 1, i] << back)
                bits[out + 1, i] |= bits[out + 1, i] >> by
        have += more


@njit(cache=True)
def _starts(g, row_lo, row_hi, n, steps):
    """Smear a row into scratch; returns the steps at which any of its n blocks can start."""
    any_lo, any_hi = ZERO, ZERO
    if g.two:
        _smear_two(g.bits, g.scratch, row_lo, row_hi, n, steps)
        for i in range(n):
            any_hi |= ~g.bits[g.scratch + 1, i]
    else:
        _smear(g.bits, g.scratch, row_lo, n, steps)
    for i in range(n):
        any_lo |= ~g.bits[g.scratch, i]
    return any_lo, any_hi


@njit(cache=True)
def _starts_held(g, k, n, steps, hold):
    """`_starts` of the blocks of class k for a hold longer than the duration."""
    any_lo, any_hi = ZERO, ZERO
    out = g.scratch
    for i in range(n):
        if g.two:
            lo, hi = blocked_starts(g.bits[g.block_lo + k, i], g.bits[g.block_hi + k, i], steps, True)
            held_lo, held_hi = blocked_starts(g.bits[g.guard_lo + k, i], g.bits[g.guard_hi + k, i], hold, True)
            g.bits[out + 1, i] = hi | held_hi
            any_hi |= ~(hi | held_hi)
        else:
            lo = blocked_starts(g.bits[g.block_lo + k, i], ZERO, steps, False)[0]
            held_lo = blocked_starts(g.bits[g.guard_lo + k, i], ZERO, hold, False)[0]
        g.bits[out, i] = lo | held_lo
        any_lo |= ~(lo | held_lo)
    return any_lo, any_hi


@njit(cache=True)
def scan(g, k, steps, hold, window_lo, window_hi, tight, data):
    """Earliest (start, first GPU) of a block of class k over the whole pool, or NO_START; starts only in the window's steps.

    Among equal starts the nearest block wins (`near.py`), then the one with the least idle time around the placement if `tight`,
    then the lowest GPU.
    """
    n = g.bits.shape[1]
    if hold != steps:
        any_lo, any_hi = _starts_held(g, k, n, steps, hold)
    else:
        any_lo, any_hi = _starts(g, g.block_lo + k, g.block_hi + k, n, steps)
    start = first_set(any_lo & window_lo, any_hi & window_hi)
    if start >= g.steps:
        return NO_START, -1
    row, shift = (g.scratch, np.uint64(start)) if start < WORD else (g.scratch + 1, np.uint64(start - WORD))
    best_first, best_idle, best_far = -1, 1 << 60, FARTHEST
    chooses = g.domains >= 0 or data >= 0
    for i in range(n):
        if (g.bits[row, i] >> shift) & ONE == ZERO:
            far = farness(g, i, 1 << k, data) if chooses else 0
            if far > best_far:
                continue
            if not tight:
                if not chooses:
                    return start, i
                if far < best_far:
                    best_first, best_far = i, far
                continue
            idle = idle_around(g, i, 1 << k, start, min(start + steps, g.steps))
            if far < best_far or idle < best_idle:
                best_first, best_idle, best_far = i, idle, far
    return start, best_first


@njit(cache=True)
def idle_around(g, first, size, start, end):
    """Idle GPU-steps directly before `start` and after `end` on these GPUs: what a placement there cuts into."""
    idle, hi = 0, ZERO
    for i in range(first, first + size):
        lo = g.bits[BUSY_LO, i]
        if g.two:
            hi = g.bits[BUSY_HI, i]
        idle += run_before(lo, hi, start) + run_after(lo, hi, end, g.steps)
    return idle


@njit(cache=True)
def scan_nodes(w, g, k, steps, hold, window_lo, window_hi, data):
    """Earliest (start, first GPU) of a block inside a node of a large pool: nodes first, then the blocks of one node. Among equal
    starts the nearest block, then the lowest."""
    nodes = w.shape[0]
    any_lo, any_hi = _starts(g, g.node_lo + k, g.node_hi + k, nodes, steps)
    any_lo &= window_lo
    any_hi &= window_hi
    while True:
        start = first_set(any_lo, any_hi)
        if start >= g.steps:
            return NO_START, -1
        row, shift = (g.scratch, np.uint64(start)) if start < WORD else (g.scratch + 1, np.uint64(start - WORD))
        best_first, best_far = -1, FARTHEST
        for node in range(nodes):
            if (g.bits[row, node] >> shift) & ONE == ZERO:
                begin, end = node_begin(w.shape, node), node_begin(w.shape, node + 1)
                first, far = _starts_at(g, begin, end - (1 << k) + 1, k, steps, hold, start, data)
                if first >= 0 and far < best_far:
                    best_first, best_far = first, far
                    if far == 0:
                        break
        if best_first >= 0:
            return start, best_first
        if start < WORD:
            any_lo &= any_lo - ONE
        else:
            any_hi &= any_hi - ONE


@njit(cache=True)
def _starts_at(g, begin, end, k, steps, hold, start, data):
    """(GPU in begin..end-1 from which a block of class k can start at exactly `start`, how far it is): the nearest, then the lowest;
    -1 if there is none."""
    best_first, best_far = -1, FARTHEST
    need_lo, need_hi = span(start, min(start + steps, g.steps), g.two)
    hold_lo, hold_hi = span(start, min(start + hold, g.steps), g.two)
    for i in range(begin, end):
        if g.bits[g.block_lo + k, i] & need_lo != ZERO or (g.two and g.bits[g.block_hi + k, i] & need_hi != ZERO):
            continue
        if hold != steps and (
            g.bits[g.guard_lo + k, i] & hold_lo != ZERO or (g.two and g.bits[g.guard_hi + k, i] & hold_hi != ZERO)
        ):
            continue
        far = farness(g, i, 1 << k, data)
        if far < best_far:
            best_first, best_far = i, far
            if far == 0:
                break
    return best_first, best_far


@njit(cache=True)
def scan_multi(w, g, k, steps, hold, window_lo, window_hi, data):
    """Earliest (start, first GPU) of a block of several whole nodes in a large pool; among equal starts the nearest, then the lowest."""
    best_start, best_first, best_far = NO_START, -1, FARTHEST
    earliest = first_set(window_lo, window_hi)
    low, high = multi_range(w.shape, k)
    for c in range(low, high):
        i = node_begin(w.shape, multi_block(w.shape, c)[0])
        hi = g.bits[g.block_hi + k, i] if g.two else ZERO
        lo, hi = blocked_starts(g.bits[g.block_lo + k, i], hi, steps, g.two)
        if hold != steps:
            held_hi = g.bits[g.guard_hi + k, i] if g.two else ZERO
            held_lo, held_hi = blocked_starts(g.bits[g.guard_lo + k, i], held_hi, hold, g.two)
            lo |= held_lo
            hi |= held_hi
        start = first_set(~lo & window_lo, ~hi & window_hi)
        if start > best_start or start >= g.steps:
            continue
        far = farness(g, i, 1 << k, data)
        if start < best_start or far < best_far:
            best_start, best_first, best_far = start, i, far
            if start == earliest and far == 0:
                break
    return best_start, best_first

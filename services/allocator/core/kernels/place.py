"""One job into the grid: the earliest block of a size, the best of the offered sizes, mark and unmark.

A block test is an OR over the block's GPUs and a shift: smear the busy steps back by the duration, and the lowest
clear bit is the earliest start. The duration counts against batch cells, the longer hold against guarded cells.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ZERO, blocked_starts, first_set, run_after, run_before, span

NO_START = 1 << 30


@njit(cache=True)
def find_block(f, g, k, steps, hold, earliest, tight):
    """Earliest (start, first GPU) for a block of class k, or NO_START.

    Among equal starts the block with the least idle time around it wins if `tight`, else the lowest GPU.
    """
    size = 1 << k
    best_start, best_first, best_idle = NO_START, -1, 0
    window_lo, window_hi = span(earliest, f.steps, f.two)
    for c in range(f.block_ptr[k], f.block_ptr[k + 1]):
        first = f.block_first[c]
        lo, hi, guard_lo, guard_hi = ZERO, ZERO, ZERO, ZERO
        for i in range(first, first + size):
            lo |= g.batch_lo[i]
            guard_lo |= g.guard_lo[i]
        if f.two:
            for i in range(first, first + size):
                hi |= g.batch_hi[i]
                guard_hi |= g.guard_hi[i]
        if hold == steps:
            lo, hi = blocked_starts(lo | guard_lo, hi | guard_hi, steps, f.two)
        else:
            lo, hi = blocked_starts(lo, hi, steps, f.two)
            guard_lo, guard_hi = blocked_starts(guard_lo, guard_hi, hold, f.two)
            lo |= guard_lo
            hi |= guard_hi
        start = first_set(~lo & window_lo, ~hi & window_hi)
        if start > best_start or start >= f.steps:
            continue
        if not tight:
            if start < best_start:
                best_start, best_first = start, first
                if start == earliest:
                    break
            continue
        idle = _idle_around(f, g, first, size, start, steps)
        if start < best_start or idle < best_idle:
            best_start, best_first, best_idle = start, first, idle
    return best_start, best_first


@njit(cache=True)
def _idle_around(f, g, first, size, start, steps):
    """Idle GPU-steps directly before and after the cells the job would take: what the placement cuts into."""
    idle = 0
    for i in range(first, first + size):
        lo, hi = g.batch_lo[i] | g.guard_lo[i], g.batch_hi[i] | g.guard_hi[i]
        idle += run_before(lo, hi, start) + run_after(lo, hi, start + steps, f.steps)
    return idle


@njit(cache=True)
def cells_weight(f, start, steps):
    """Sum of step weights over the part of start..start+steps that lies in the window."""
    return f.weight_sum[min(start + steps, f.steps)] - f.weight_sum[start]


@njit(cache=True)
def mark(f, g, j):
    """Occupy job j's cells."""
    o = g.option[j]
    a, b = span(g.start[j], min(g.start[j] + f.option_steps[o], f.steps), f.two)
    for i in range(g.first[j], g.first[j] + f.option_gpus[o]):
        g.batch_lo[i] |= a
        g.batch_hi[i] |= b


@njit(cache=True)
def unmark(f, g, j):
    """Free job j's cells; they are its own, so clearing bits undoes `mark` exactly."""
    o = g.option[j]
    a, b = span(g.start[j], min(g.start[j] + f.option_steps[o], f.steps), f.two)
    for i in range(g.first[j], g.first[j] + f.option_gpus[o]):
        g.batch_lo[i] &= ~a
        g.batch_hi[i] &= ~b


@njit(cache=True)
def place_job(f, g, j, forced, margin, tight):
    """Place job j at its best option and earliest start, or leave it out; returns its gain.

    An option's score is its gain less `margin` (a density: what other work would earn on the same cells) for each cell.
    `forced` names the only option to consider, or -1.
    """
    g.start[j] = -1
    g.gain[j] = 0
    if f.job_refusal[j] != 0 or f.job_earliest[j] >= f.steps:
        return 0
    best_score, best_start, best_option = np.int64(-(1 << 62)), -1, -1
    best_gain, best_first = np.int64(0), -1
    for o in range(f.option_ptr[j], f.option_ptr[j + 1]):
        if f.option_class[o] < 0 or (forced >= 0 and o != forced):
            continue
        start, first = find_block(
            f, g, f.option_class[o], f.option_steps[o], f.option_hold[o], f.job_earliest[j], tight
        )
        if start == NO_START:
            continue
        weight = f.option_gpus[o] * cells_weight(f, start, f.option_steps[o])
        gain = f.option_density[o] * weight
        score = gain - margin * weight
        if score > best_score:
            best_score, best_start, best_first, best_option, best_gain = score, start, first, o, gain
    if best_option < 0 or best_gain <= 0:
        return 0
    g.start[j], g.first[j], g.option[j], g.gain[j] = best_start, best_first, best_option, best_gain
    mark(f, g, j)
    return best_gain

"""Caps: how many GPUs a group of jobs (a team, a user, the organisation) may use at once, in every step.

What is left of each cap in each step lies in the grid's bits, in rows of its own, so that copies of the grid carry it. A cap only
takes starts away: `allowed` is a set of steps, and the scans look for blocks at those steps alone.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ONE, WORD, ZERO, blocked_starts


@njit(cache=True)
def fill_room(f, g, running):
    """What running jobs (if they count) leave of each cap, before anything is planned; nothing where they are above it."""
    gpus = g.bits.shape[1]
    for group in range(len(f.cap_gpus) if gpus > 0 else 0):
        for step in range(g.steps):
            at = group * g.steps + step
            used = f.cap_used[group, step] if running else 0
            g.bits[g.room + at // gpus, at % gpus] = np.uint64(max(0, f.cap_gpus[group] - used))


@njit(cache=True)
def allowed(w, g, j, size, steps, lo, hi):
    """Of the starts in (lo, hi), those at which job j on `size` GPUs keeps all its caps."""
    gpus = g.bits.shape[1]
    for c in range(w.job_caps.shape[1]):
        group = w.job_caps[j, c]
        if group < 0:
            continue
        full_lo, full_hi = ZERO, ZERO
        for step in range(g.steps):
            at = group * g.steps + step
            if np.int64(g.bits[g.room + at // gpus, at % gpus]) < size:
                if step < WORD:
                    full_lo |= ONE << np.uint64(step)
                else:
                    full_hi |= ONE << np.uint64(step - WORD)
        if full_lo != ZERO or full_hi != ZERO:
            full_lo, full_hi = blocked_starts(full_lo, full_hi, steps, g.two)
            lo &= ~full_lo
            hi &= ~full_hi
    return lo, hi


@njit(cache=True)
def charge(w, g, j, size, start, end):
    """Take job j's GPUs from its caps in steps start..end-1."""
    gpus = g.bits.shape[1]
    for c in range(w.job_caps.shape[1]):
        group = w.job_caps[j, c]
        if group < 0:
            continue
        for step in range(start, end):
            at = group * g.steps + step
            g.bits[g.room + at // gpus, at % gpus] -= np.uint64(size)

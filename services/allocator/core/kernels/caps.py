"""Caps: how many GPUs a group of jobs (a team, a user, the organisation) may use at once, in every step.

Usage per group and step lies in the grid's bits, in rows of their own, so that copies of the grid carry it. A cap only
takes starts away: `allowed` is a set of steps, and the scans look for blocks at those steps alone.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ONE, WORD, ZERO, blocked_starts


@njit(cache=True)
def fill_usage(w, g):
    """What running jobs use, before anything is planned."""
    gpus = g.bits.shape[1]
    for group in range(len(w.cap_gpus) if gpus > 0 else 0):
        for step in range(g.steps):
            at = group * g.steps + step
            g.bits[g.usage + at // gpus, at % gpus] = np.uint64(w.cap_used[group, step])


@njit(cache=True)
def allowed(w, g, j, size, steps, lo, hi):
    """Of the starts in (lo, hi), those at which job j on `size` GPUs keeps all its caps."""
    gpus = g.bits.shape[1]
    for c in range(w.job_caps.shape[1]):
        group = w.job_caps[j, c]
        if group < 0:
            continue
        room = w.cap_gpus[group] - size
        full_lo, full_hi = ZERO, ZERO
        for step in range(g.steps):
            at = group * g.steps + step
            if np.int64(g.bits[g.usage + at // gpus, at % gpus]) > room:
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
    """Count job j's GPUs in steps start..end-1."""
    gpus = g.bits.shape[1]
    for c in range(w.job_caps.shape[1]):
        group = w.job_caps[j, c]
        if group < 0:
            continue
        for step in range(start, end):
            at = group * g.steps + step
            g.bits[g.usage + at // gpus, at % gpus] += np.uint64(size)

"""Change a plan as little as possible: keep what is still legal, place what is new, leave the rest alone.

For single events in large pools, where planning everything again costs more than the event is worth.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ZERO, span
from services.allocator.core.kernels.blocks import fill_nodes, occupy
from services.allocator.core.kernels.board import (
    BUSY_HI,
    BUSY_LO,
    CLASS,
    FIRST,
    GPUS,
    GUARD_HI,
    GUARD_LO,
    HOLD,
    OPTION,
    OPTION_EARLIEST,
    REFUSAL,
    START,
    STEPS,
)
from services.allocator.core.kernels.caps import allowed, charge
from services.allocator.core.kernels.layout import blocked_words, lay_out, running_words
from services.allocator.core.kernels.place import place_job
from services.allocator.core.kernels.search import close_grid, empty_grid, margin_density, value_order, work_of
from services.allocator.core.kernels.settle import settle


@njit(cache=True)
def repair(f, kept, segments, known, retries, finish_share):
    """Job rows and segments after a small change.

    `kept` are job rows of the earlier plan for the first `known` jobs; later jobs are new. Segments stay if all of
    them still fit, else applications are laid out anew. Kept jobs that no longer fit are placed again with the new
    ones, most valuable first; then the best `retries` of those that had no place.
    """
    w, g = work_of(f, finish_share), empty_grid(f)
    if not keep_segments(f, g, segments):
        segments = lay_out(f, g.bits[GUARD_LO], g.bits[GUARD_HI], 0)
    close_grid(f, w, g)
    missing, waiting = np.zeros(f.jobs.shape[0], np.bool_), np.zeros(f.jobs.shape[0], np.bool_)
    for j in range(f.jobs.shape[0]):
        missing[j] = j >= known
        waiting[j] = j < known and kept[j, START] < 0
        if j < known and kept[j, START] >= 0:
            g.place[j] = kept[j]
            missing[j] = not _keep_job(f, w, g, j)
            if missing[j]:
                g.place[j, START] = -1  # placed again below, unless it may not be placed any more
    fill_nodes(w, g, 0, w.shape[0])
    order = value_order(f, missing)
    margin = margin_density(f, g, order)
    for j in order:
        place_job(w, g, j, -1, margin, g.flat)
    tried = value_order(f, waiting)[:retries] if retries > 0 else order[:0]
    for j in tried:
        place_job(w, g, j, -1, margin, g.flat)
    settle(f, w, g, np.concatenate((order, tried)))
    return g.place, segments


@njit(cache=True)
def keep_segments(f, g, segments):
    """Put all segments into the guard words if every one of them still fits; whether they did."""
    taken = g.bits[BUSY_LO : BUSY_HI + 1]
    blocked_words(f, g.bits[GUARD_LO], g.bits[GUARD_HI])
    taken[:] = g.bits[GUARD_LO : GUARD_HI + 1]
    running_words(f, taken[0], taken[1], True)
    for s in range(segments.shape[0]):
        gpu = segments[s, 1]
        lo, hi = span(segments[s, 2], segments[s, 3], f.two)
        if (taken[0, gpu] & lo) != ZERO or (taken[1, gpu] & hi) != ZERO:
            return False
        taken[0, gpu] |= lo
        taken[1, gpu] |= hi
        g.bits[GUARD_LO, gpu] |= lo
        g.bits[GUARD_HI, gpu] |= hi
    return True


@njit(cache=True)
def _keep_job(f, w, g, j):
    """Put job j where it was if that is still legal; whether it was. Nodes are filled once, after all of them."""
    o, start, first = g.place[j, OPTION], g.place[j, START], g.place[j, FIRST]
    if f.jobs[j, REFUSAL] != 0 or f.options[o, CLASS] < 0 or start < f.options[o, OPTION_EARLIEST]:
        return False
    lo, hi = span(start, min(start + f.options[o, STEPS], f.steps), f.two)
    hold_lo, hold_hi = span(start, min(start + f.options[o, HOLD], f.steps), f.two)
    for i in range(first, first + f.options[o, GPUS]):
        if (g.bits[BUSY_LO, i] & lo) != ZERO or (g.bits[BUSY_HI, i] & hi) != ZERO:
            return False
        if (g.bits[GUARD_LO, i] & hold_lo) != ZERO or (g.bits[GUARD_HI, i] & hold_hi) != ZERO:
            return False
    end = min(start + f.options[o, STEPS], f.steps)
    if w.job_caps.shape[1] > 0:
        at_lo, at_hi = allowed(w, g, j, f.options[o, GPUS], f.options[o, STEPS], *span(start, start + 1, f.two))
        if at_lo == ZERO and at_hi == ZERO:
            return False
        charge(w, g, j, f.options[o, GPUS], start, end)
    occupy(g, first, f.options[o, GPUS], start, end)
    return True

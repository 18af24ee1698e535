"""Jobs at fixed sizes in a fixed order, each at its earliest fit: what the baselines need from the grid."""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.layout import blocked_words
from services.allocator.core.kernels.place import NO_START, find_block, mark
from services.allocator.core.kernels.search import empty_grid


@njit(cache=True)
def queue_in_order(f, reserved, order, options, in_turn):
    """Place `order`'s jobs at `options` around GPUs that are `reserved` for the whole window.

    With `in_turn` no job starts before one ahead of it; one that must wait for the end of the window stops all behind
    it, while one that no block of the unreserved pool could ever take is passed over.
    """
    g = empty_grid(f)
    blocked_words(f, g.guard_lo, g.guard_hi)
    for gpu in range(len(reserved)):
        if reserved[gpu]:
            g.guard_lo[gpu] = np.uint64(0xFFFFFFFFFFFFFFFF)
            g.guard_hi[gpu] = np.uint64(0xFFFFFFFFFFFFFFFF)
    turn = 0
    for j in order:
        o = options[j]
        if f.job_refusal[j] != 0 or o < 0 or f.option_class[o] < 0:
            continue
        earliest = max(f.job_earliest[j], turn)
        start, first = NO_START, -1
        if earliest < f.steps:
            start, first = find_block(f, g, f.option_class[o], f.option_steps[o], f.option_hold[o], earliest, False)
        if start == NO_START:
            if in_turn and _could_ever_start(f, g, o):
                break
            continue
        g.start[j], g.first[j], g.option[j] = start, first, o
        mark(f, g, j)
        if in_turn:
            turn = start
    return g.start, g.first, g.option


@njit(cache=True)
def _could_ever_start(f, g, o):
    """Whether some block of the option's size is clear of guards (reservations of whole GPUs, closed GPUs) at all."""
    size = 1 << f.option_class[o]
    for c in range(f.block_ptr[f.option_class[o]], f.block_ptr[f.option_class[o] + 1]):
        clear = True
        for i in range(f.block_first[c], f.block_first[c] + size):
            if g.guard_lo[i] != np.uint64(0) or g.guard_hi[i] != np.uint64(0):
                clear = False
        if clear:
            return True
    return False

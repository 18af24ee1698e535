"""Jobs at fixed sizes in a fixed order, each at its earliest fit: what the baselines need from the grid."""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ALL, ZERO
from services.allocator.core.kernels.board import (
    BUSY_HI,
    BUSY_LO,
    CLASS,
    EARLIEST,
    FIRST,
    GUARD_HI,
    GUARD_LO,
    OPTION,
    REFUSAL,
    START,
)
from services.allocator.core.kernels.layout import blocked_words
from services.allocator.core.kernels.place import NO_START, find, mark
from services.allocator.core.kernels.search import close_grid, empty_grid


@njit(cache=True)
def queue_in_order(f, reserved, order, options, in_turn):
    """Place `order`'s jobs at `options` around GPUs that are `reserved` for the whole window; returns job rows.

    With `in_turn` no job starts before one ahead of it; one that must wait for the end of the window stops all behind
    it, while one that no block of the unreserved pool could ever take is passed over.
    """
    g = empty_grid(f)
    blocked_words(f, g.words[GUARD_LO], g.words[GUARD_HI])
    for gpu in range(len(reserved)):
        if reserved[gpu]:
            g.words[GUARD_LO, gpu] = ALL
            g.words[GUARD_HI, gpu] = ALL
    free = empty_grid(f)
    free.words[:] = g.words
    close_grid(f, g)
    for i in range(len(reserved)):  # the same pool with nothing running: could a job ever start?
        shut = g.words[GUARD_LO, i] != ZERO or g.words[GUARD_HI, i] != ZERO
        free.words[BUSY_LO, i] = ALL if shut else ZERO
        free.words[BUSY_HI, i] = ALL if shut else ZERO
    turn = 0
    for j in order:
        o = options[j]
        if f.jobs[j, REFUSAL] != 0 or o < 0 or f.options[o, CLASS] < 0:
            continue
        earliest = max(f.jobs[j, EARLIEST], turn)
        start, first = NO_START, -1
        if earliest < f.steps:
            start, first = find(f, g, o, earliest, False)
        if start == NO_START:
            if in_turn and find(f, free, o, 0, False)[0] != NO_START:
                break
            continue
        g.place[j, START], g.place[j, FIRST], g.place[j, OPTION] = start, first, o
        mark(f, g, j, True)
        if in_turn:
            turn = start
    return g.place

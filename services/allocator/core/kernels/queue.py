"""Jobs at fixed sizes in a fixed order, each at its earliest fit: what the baselines need from the grid."""

from __future__ import annotations

from numba import njit

from services.allocator.core.kernels.bits import ALL, ZERO
from services.allocator.core.kernels.blocks import NO_START, fill_grid
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
from services.allocator.core.kernels.caps import fill_room
from services.allocator.core.kernels.layout import blocked_words
from services.allocator.core.kernels.place import find, put
from services.allocator.core.kernels.search import close_grid, empty_grid, work_of


@njit(cache=True)
def queue_in_order(f, reserved, order, options, in_turn):
    """Place `order`'s jobs at `options` around GPUs that are `reserved` for the whole window; returns job rows.

    With `in_turn` no job starts before one ahead of it; one that must wait for the end of the window stops all behind
    it, while one that no block of the unreserved pool could ever take is passed over.
    """
    g, w = empty_grid(f), work_of(f, 0)
    blocked_words(f, g.bits[GUARD_LO], g.bits[GUARD_HI])
    for gpu in range(len(reserved)):
        if reserved[gpu]:
            g.bits[GUARD_LO, gpu] = ALL
            g.bits[GUARD_HI, gpu] = ALL
    free = empty_grid(f)  # the same pool with nothing running: could a job ever start?
    for i in range(len(reserved)):
        shut = g.bits[GUARD_LO, i] != ZERO or g.bits[GUARD_HI, i] != ZERO
        for half in (BUSY_LO, BUSY_HI):
            free.bits[half, i] = ALL if shut else ZERO
    fill_grid(w, free)
    fill_room(f, free, False)
    close_grid(f, w, g)
    turn = 0
    for j in order:
        o = options[j]
        if f.jobs[j, REFUSAL] != 0 or o < 0 or f.options[o, CLASS] < 0:
            continue
        earliest = max(f.jobs[j, EARLIEST], turn)
        start, first = NO_START, -1
        if earliest < f.steps:
            start, first = find(w, g, j, o, earliest, False)
        if start == NO_START:
            if in_turn and find(w, free, j, o, 0, False)[0] != NO_START:
                break
            continue
        g.place[j, START], g.place[j, FIRST], g.place[j, OPTION] = start, first, o
        put(w, g, j)
        if in_turn:
            turn = start
    return g.place

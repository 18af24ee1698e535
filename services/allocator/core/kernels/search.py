"""From facts to the finished grid: layout, greedy construction, local search over the order of jobs.

The grid is always legal: a candidate grid is built by placing jobs one after the other where they fit, and a rejected
candidate is undone exactly. The budget is a number of candidate grids, never time; randomness is a xorshift stream
from the seed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ALL, ZERO
from services.allocator.core.kernels.board import (
    ARRIVAL,
    BUSY_HI,
    BUSY_LO,
    CLASS,
    DENSITY,
    EARLIEST,
    GAIN,
    GPUS,
    GUARD_HI,
    GUARD_LO,
    PLACE_COLUMNS,
    START,
    STEPS,
    Grid,
)
from services.allocator.core.kernels.layout import lay_out, running_words
from services.allocator.core.kernels.place import mark, place_job

TIGHT_GPUS_MAX = 256  # above it the best-fit scan of all blocks costs more than it earns


@njit(cache=True)
def next_random(state):
    """Xorshift64 in place."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return x


@njit(cache=True)
def draw(state, n):
    """A number in 0..n-1 for n < 2**31."""
    return np.int64((next_random(state) >> np.uint64(33)) % np.uint64(n))


@njit(cache=True)
def value_order(f):
    """Jobs by descending best density, then descending size, then arrival."""
    jobs = f.jobs.shape[0]
    density, size = np.zeros(jobs, np.int64), np.zeros(jobs, np.int64)
    for j in range(jobs):
        for o in range(f.option_ptr[j], f.option_ptr[j + 1]):
            if f.options[o, CLASS] >= 0:
                density[j] = max(density[j], f.options[o, DENSITY])
                size[j] = max(size[j], f.options[o, GPUS])
    order = np.argsort(f.jobs[:, ARRIVAL], kind="mergesort")
    order = order[np.argsort(-size[order], kind="mergesort")]
    return order[np.argsort(-density[order], kind="mergesort")]


@njit(cache=True)
def margin_density(f, words, order):
    """Density of the job at which work in `order` first exceeds the free cells of the window; 0 if all fits."""
    free = 0
    for i in range(words.shape[1]):
        free += _clear_steps(words[BUSY_LO, i], words[BUSY_HI, i], f.steps)
    for j in order:
        density, work = np.int64(0), np.int64(0)
        for o in range(f.option_ptr[j], f.option_ptr[j + 1]):
            if f.options[o, CLASS] >= 0 and f.options[o, DENSITY] > density:
                density = f.options[o, DENSITY]
                work = f.options[o, GPUS] * min(f.options[o, STEPS], f.steps)
        free -= work
        if free < 0:
            return density
    return np.int64(0)


@njit(cache=True)
def _clear_steps(lo, hi, steps):
    """Number of clear bits below `steps`."""
    if lo == ALL and hi == ALL:
        return 0
    if lo == ZERO and hi == ZERO:
        return steps
    clear = 0
    for t in range(steps):
        word = lo if t < 64 else hi
        clear += 1 - np.int64((word >> np.uint64(t & 63)) & np.uint64(1))
    return clear


@njit(cache=True)
def build(f, g, order, forced, margin, tight):
    """Place all jobs in order into an empty grid; returns the total gain."""
    total = np.int64(0)
    for j in order:
        total += place_job(f, g, j, forced[j], margin, tight)
    return total


@njit(cache=True)
def improve(f, g, order, forced, margin, tight, total, iterations, random):
    """Local search: move a job forward or back, swap two, or force a size; keep what isn't worse. Returns the gain."""
    jobs = len(order)
    if jobs < 2:
        return total
    old_place, old_order = g.place.copy(), order.copy()
    for _ in range(iterations):
        a, b = draw(random, jobs), draw(random, jobs)
        kind = draw(random, 4)
        changed, old_forced = -1, np.int64(-1)
        if kind == 0:
            changed = order[a]
            old_forced = forced[changed]
            options = f.option_ptr[changed + 1] - f.option_ptr[changed]
            pick = draw(random, options + 1)
            forced[changed] = f.option_ptr[changed] + pick - 1 if pick > 0 else -1
            b = a
            if forced[changed] == old_forced:
                continue
        elif a == b:
            continue
        low = min(a, b)
        new_total = total
        for i in range(low, jobs):
            j = order[i]
            if g.place[j, START] >= 0:
                mark(f, g, j, False)
            old_order[i] = j
            old_place[j] = g.place[j]
            new_total -= g.place[j, GAIN]
        if kind == 1:
            order[a], order[b] = order[b], order[a]
        elif kind >= 2:
            _move(order, a, b)
        for i in range(low, jobs):
            new_total += place_job(f, g, order[i], forced[order[i]], margin, tight)
        if new_total >= total:
            total = new_total
            continue
        for i in range(low, jobs):
            if g.place[order[i], START] >= 0:
                mark(f, g, order[i], False)
        if changed >= 0:
            forced[changed] = old_forced
        for i in range(low, jobs):
            j = old_order[i]
            order[i] = j
            g.place[j] = old_place[j]
            if g.place[j, START] >= 0:
                mark(f, g, j, True)
    return total


@njit(cache=True)
def _move(order, source, target):
    """Take the entry at `source` out and insert it at `target`."""
    j = order[source]
    step = 1 if target > source else -1
    i = source
    while i != target:
        order[i] = order[i + step]
        i += step
    order[target] = j


@njit(cache=True)
def empty_grid(f):
    """A grid without any cell in use; guards are still to be filled (`close_grid` comes after)."""
    gpus, jobs, nodes = len(f.gpu_state), f.jobs.shape[0], len(f.node_first) - 1
    place = np.full((jobs, PLACE_COLUMNS), -1, np.int64)
    index = np.zeros((f.node_classes + 1, 2, nodes), np.uint64)
    return Grid(np.zeros((4, gpus), np.uint64), place, index, np.ones(nodes, np.uint8))


@njit(cache=True)
def close_grid(f, g):
    """Make busy words from finished guard words and running jobs."""
    for i in range(len(f.gpu_state)):
        g.words[BUSY_LO, i] = g.words[GUARD_LO, i]
        g.words[BUSY_HI, i] = g.words[GUARD_HI, i]
    running_words(f, g.words[BUSY_LO], g.words[BUSY_HI], False)


@njit(cache=True)
def solve(f, iterations, seed):
    """The fast mode. Returns job rows (start, first GPU, option, gain) and application segments."""
    g = empty_grid(f)
    segments = lay_out(f, g.words[GUARD_LO], g.words[GUARD_HI])
    close_grid(f, g)
    order = value_order(f)
    tight = len(f.gpu_state) <= TIGHT_GPUS_MAX
    forced = np.full(len(order), -1, np.int64)
    margin = margin_density(f, g.words, order)
    total = build(f, g, order, forced, margin, tight)
    if iterations > 0:
        random = np.empty(1, np.uint64)
        random[0] = np.uint64(seed) ^ np.uint64(0x9E3779B97F4A7C15)
        if random[0] == ZERO:
            random[0] = np.uint64(1)
        improve(f, g, order, forced, margin, tight, total, iterations, random)
    return g.place, segments

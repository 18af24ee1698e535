"""From facts to the finished grid: layout, greedy construction, local search over the order of jobs.

The grid is always legal: a candidate grid is built by placing jobs one after the other where they fit, and a rejected
candidate is undone exactly. The budget is a number of candidate grids, never time; randomness is a xorshift stream
from the seed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ZERO
from services.allocator.core.kernels.board import Grid
from services.allocator.core.kernels.layout import lay_out, running_words
from services.allocator.core.kernels.place import mark, place_job, unmark

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
    jobs = len(f.job_earliest)
    density, size = np.zeros(jobs, np.int64), np.zeros(jobs, np.int64)
    for j in range(jobs):
        for o in range(f.option_ptr[j], f.option_ptr[j + 1]):
            if f.option_class[o] >= 0:
                density[j] = max(density[j], f.option_density[o])
                size[j] = max(size[j], f.option_gpus[o])
    order = np.argsort(f.job_arrival, kind="mergesort")
    order = order[np.argsort(-size[order], kind="mergesort")]
    return order[np.argsort(-density[order], kind="mergesort")]


@njit(cache=True)
def margin_density(f, g, order):
    """Density of the job at which work in `order` first exceeds the free cells of the window; 0 if all fits."""
    free = 0
    for i in range(len(g.guard_lo)):
        for t in range(f.steps):
            word = (g.guard_lo[i] | g.batch_lo[i]) if t < 64 else (g.guard_hi[i] | g.batch_hi[i])
            free += 1 if (word >> np.uint64(t & 63)) & np.uint64(1) == ZERO else 0
    for j in order:
        density, work = np.int64(0), np.int64(0)
        for o in range(f.option_ptr[j], f.option_ptr[j + 1]):
            if f.option_class[o] >= 0 and f.option_density[o] > density:
                density = f.option_density[o]
                work = f.option_gpus[o] * min(f.option_steps[o], f.steps)
        free -= work
        if free < 0:
            return density
    return np.int64(0)


@njit(cache=True)
def build(f, g, order, forced, margin, tight):
    """Place all jobs in order into an empty grid; returns the total gain."""
    total = np.int64(0)
    for j in order:
        total += place_job(f, g, j, forced[j], margin, tight)
    return total


@njit(cache=True)
def clear(f, g, order, start_at):
    """Take jobs order[start_at:] out of the grid."""
    for i in range(start_at, len(order)):
        if g.start[order[i]] >= 0:
            unmark(f, g, order[i])


@njit(cache=True)
def improve(f, g, order, forced, margin, tight, total, iterations, random):
    """Local search: move a job forward or back, swap two, or force a size; keep what isn't worse. Returns the gain."""
    jobs = len(order)
    if jobs < 2:
        return total
    old_start, old_first, old_option = g.start.copy(), g.first.copy(), g.option.copy()
    old_gain, old_order = g.gain.copy(), order.copy()
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
        for i in range(low, jobs):
            j = order[i]
            if g.start[j] >= 0:
                unmark(f, g, j)
            old_order[i] = j
            old_start[j], old_first[j], old_option[j], old_gain[j] = g.start[j], g.first[j], g.option[j], g.gain[j]
        if kind == 1:
            order[a], order[b] = order[b], order[a]
        elif kind >= 2:
            _move(order, a, b)
        new_total = total
        for i in range(low, jobs):
            new_total -= old_gain[order[i]]
        for i in range(low, jobs):
            new_total += place_job(f, g, order[i], forced[order[i]], margin, tight)
        if new_total >= total:
            total = new_total
            continue
        clear(f, g, order, low)
        if changed >= 0:
            forced[changed] = old_forced
        for i in range(low, jobs):
            j = old_order[i]
            order[i] = j
            g.start[j], g.first[j], g.option[j], g.gain[j] = old_start[j], old_first[j], old_option[j], old_gain[j]
            if g.start[j] >= 0:
                mark(f, g, j)
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
    """A grid with running jobs only, and zeroed guards."""
    gpus, jobs = len(f.gpu_state), len(f.job_earliest)
    g = Grid(
        np.zeros(gpus, np.uint64),
        np.zeros(gpus, np.uint64),
        np.zeros(gpus, np.uint64),
        np.zeros(gpus, np.uint64),
        np.full(jobs, -1, np.int64),
        np.full(jobs, -1, np.int64),
        np.full(jobs, -1, np.int64),
        np.zeros(jobs, np.int64),
    )
    running_words(f, g.batch_lo, g.batch_hi, False)
    return g


@njit(cache=True)
def solve(f, iterations, seed):
    """The fast mode. Returns (start, first, option per job; segments; the grid's words)."""
    g = empty_grid(f)
    segments = lay_out(f, g.guard_lo, g.guard_hi)
    order = value_order(f)
    tight = len(f.gpu_state) <= TIGHT_GPUS_MAX
    forced = np.full(len(order), -1, np.int64)
    margin = margin_density(f, g, order)
    total = build(f, g, order, forced, margin, tight)
    if iterations > 0:
        random = np.empty(1, np.uint64)
        random[0] = np.uint64(seed) ^ np.uint64(0x9E3779B97F4A7C15)
        if random[0] == ZERO:
            random[0] = np.uint64(1)
        improve(f, g, order, forced, margin, tight, total, iterations, random)
    return g.start, g.first, g.option, segments

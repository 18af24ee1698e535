"""From facts to the finished grid: layout, greedy construction, local search over the order of jobs.

The grid is always legal: a candidate grid is built by placing jobs one after the other where they fit. The budget is a
number of candidate grids, never time; randomness is a xorshift stream from the seed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ONE, ZERO
from services.allocator.core.kernels.blocks import fill_grid
from services.allocator.core.kernels.board import (
    ARRIVAL,
    BUSY_HI,
    BUSY_LO,
    CLASS,
    DENSITY,
    FIRST,
    GAIN,
    GPUS,
    GUARD_HI,
    GUARD_LO,
    HOLD,
    OPTION,
    PLACE_COLUMNS,
    REFUSAL,
    START,
    STEPS,
    Grid,
    Work,
)
from services.allocator.core.kernels.caps import fill_room
from services.allocator.core.kernels.layout import LAYOUTS, lay_out, running_words
from services.allocator.core.kernels.near import fill_near
from services.allocator.core.kernels.place import place_job, put
from services.allocator.core.kernels.settle import settle, settle_all

FLAT_GPUS_MAX = 512  # above it scanning nodes first beats scanning all blocks
STARTS_MAX = 4  # different layouts and margins tried; more starts leave each too few candidates
ITERATIONS_PER_START_MIN = 16
SLACK_SHIFT = 8  # a candidate that has lost 0.4 % before the unchanged jobs follow rarely wins it back
CHECKPOINT_WORDS_MAX = 1 << 19  # 4 MiB of grid copies: more leaves the cache and costs more than placing again


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
def seeded(seed):
    """A fresh stream."""
    state = np.empty(1, np.uint64)
    state[0] = np.uint64(seed) ^ np.uint64(0x9E3779B97F4A7C15)
    if state[0] == ZERO:
        state[0] = ONE
    return state


@njit(cache=True)
def draw(state, n):
    """A number in 0..n-1 for n < 2**31."""
    return np.int64((next_random(state) >> np.uint64(33)) % np.uint64(n))


@njit(cache=True)
def value_order(f, wanted):
    """The `wanted` jobs that may be planned by descending best density, then descending size, then arrival."""
    count, jobs = 0, np.empty(f.jobs.shape[0], np.int64)
    density, size = np.zeros(f.jobs.shape[0], np.int64), np.zeros(f.jobs.shape[0], np.int64)
    for j in range(f.jobs.shape[0]):
        if not wanted[j] or f.jobs[j, REFUSAL] != 0:
            continue
        for o in range(f.option_ptr[j], f.option_ptr[j + 1]):
            if f.options[o, CLASS] >= 0:
                density[count] = max(density[count], f.options[o, DENSITY])
                size[count] = max(size[count], f.options[o, GPUS])
        if density[count] > 0:
            jobs[count] = j
            count += 1
        else:
            size[count] = 0
    order = np.argsort(f.jobs[:, ARRIVAL][jobs[:count]], kind="mergesort")
    order = order[np.argsort(-size[order], kind="mergesort")]
    order = order[np.argsort(-density[order], kind="mergesort")]
    return jobs[order]


@njit(cache=True)
def margin_density(f, g, order):
    """Density of the job at which work in `order` first exceeds the free cells of the window; 0 if all fits."""
    free = np.int64(0)
    for i in range(g.bits.shape[1]):
        free += _clear_steps(g.bits[BUSY_LO, i], g.bits[BUSY_HI, i], f.steps)
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
    if lo == ZERO and hi == ZERO:
        return np.int64(steps)
    clear = np.int64(0)
    for t in range(steps):
        word = lo if t < 64 else hi
        clear += 1 - np.int64((word >> np.uint64(t & 63)) & np.uint64(1))
    return clear


@njit(cache=True)
def build(w, g, order, forced, margin, tight):
    """Place all jobs in order into an empty grid; returns the total gain."""
    total = np.int64(0)
    for j in order:
        total += place_job(w, g, j, forced[j], margin, tight)
    return total


@njit(cache=True)
def improve(w, g, order, forced, margin, total, iterations, random):
    """Local search: move a job forward or back, or force a size; keep what isn't worse. Returns the total.

    Starts from the empty grid and the places of its jobs. `saved[p]` is the grid before the job at position p * stride
    was placed, so a candidate starts from the last copy before the first changed position. The grid's bits are scratch
    from here on: `g.place` is the result.
    """
    jobs = len(order)
    if jobs < 2 or iterations <= 0:
        return total
    stride = 1 + (jobs * g.scratch * g.bits.shape[1]) // CHECKPOINT_WORDS_MAX
    saved = np.empty(((jobs - 1) // stride + 1, g.scratch, g.bits.shape[1]), np.uint64)
    saved[0] = g.bits[: g.scratch]
    _save_from(w, g, order, saved, stride, 0)
    old_place, old_order = g.place.copy(), order.copy()
    slack = total >> SLACK_SHIFT
    for _ in range(iterations):
        a, b = draw(random, jobs), draw(random, jobs)
        changed, old_forced = -1, np.int64(-1)
        if draw(random, 4) == 0:
            b = a
            changed = order[a]
            old_forced = forced[changed]
            pick = draw(random, w.option_ptr[changed + 1] - w.option_ptr[changed] + 1)
            forced[changed] = w.option_ptr[changed] + pick - 1 if pick > 0 else -1
            if forced[changed] == old_forced:
                continue
        elif a == b:
            continue
        low, high = min(a, b), max(a, b)
        _restore(w, g, order, saved, stride, low)
        _move(order, a, b)
        change, done = _rebuild(w, g, order, forced, margin, old_place, low, high, slack)
        if change >= 0:
            total += change
            _copy_range(order, g.place, old_order, old_place, low, done)
            _restore(w, g, order, saved, stride, low)
            _save_from(w, g, order, saved, stride, low)
            continue
        if changed >= 0:
            forced[changed] = old_forced
        _copy_range(old_order, old_place, order, g.place, low, max(done, high + 1))
    return total


@njit(cache=True)
def _copy_range(order, place, to_order, to_place, low, high):
    """Copy positions low..high-1 and the places of the jobs there."""
    for i in range(low, high):
        to_order[i] = order[i]
        for c in range(PLACE_COLUMNS):
            to_place[order[i], c] = place[order[i], c]


@njit(cache=True)
def _restore(w, g, order, saved, stride, position):
    """Bring the grid to the state before the job at `position`."""
    g.bits[: saved.shape[1]] = saved[position // stride]
    for i in range(position // stride * stride, position):
        if g.place[order[i], START] >= 0:
            put(w, g, order[i])


@njit(cache=True)
def _save_from(w, g, order, saved, stride, position):
    """Put the placed jobs order[position:] into the grid again and save copies on the way."""
    last = (len(order) - 1) // stride * stride
    for i in range(position, last):
        if g.place[order[i], START] >= 0:
            put(w, g, order[i])
        if (i + 1) % stride == 0:
            saved[(i + 1) // stride] = g.bits[: saved.shape[1]]


@njit(cache=True)
def _rebuild(w, g, order, forced, margin, old_place, low, high, slack):
    """Place jobs order[low:] again; returns (change of the total, end of the positions tried). Negative: reject.

    Only positions low..high differ from the old order. If these jobs land where they were, the rest does, too; if
    they lose more than `slack`, the rest is not tried.
    """
    jobs, change, same = len(order), np.int64(0), True
    for i in range(low, jobs):
        j = order[i]
        gain = place_job(w, g, j, forced[j], margin, g.flat)
        change += gain - old_place[j, GAIN]
        same = (
            same
            and g.place[j, START] == old_place[j, START]
            and (gain == 0 or (g.place[j, FIRST] == old_place[j, FIRST] and g.place[j, OPTION] == old_place[j, OPTION]))
        )
        if i >= high:
            if same:
                return np.int64(0), i + 1
            if change < -slack:
                return change, i + 1
    return change, jobs


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
    gpus, jobs = len(f.gpu_state), f.jobs.shape[0]
    classes = 1
    holds = False
    for o in range(f.options.shape[0]):
        classes = max(classes, f.options[o, CLASS] + 1)
        holds = holds or f.options[o, HOLD] != f.options[o, STEPS]
    halves = 2 if f.two else 1
    flat = gpus <= FLAT_GPUS_MAX
    block = 4
    guard = block + halves * classes
    node = guard + (halves * classes if holds else 0)
    room = node + (0 if flat else halves * classes)
    scratch = room + (len(f.cap_gpus) * f.steps + gpus - 1) // max(1, gpus)
    domains = scratch + 2
    lacking = domains + min(1, len(f.domains))
    bits = np.zeros((lacking + f.lacking.shape[0], gpus), np.uint64)
    fill_near(f, bits, domains, lacking)
    return Grid(
        bits,
        np.full((jobs, PLACE_COLUMNS), -1, np.int64),
        f.steps,
        f.two,
        flat,
        classes,
        block,
        block + classes,
        guard if holds else -1,
        guard + classes if holds else -1,
        node,
        node + classes,
        room,
        scratch,
        domains if len(f.domains) > 0 else -1,
        lacking,
    )


@njit(cache=True)
def close_grid(f, w, g):
    """Derive busy words and everything below them from finished guard words and running jobs."""
    g.bits[BUSY_LO] = g.bits[GUARD_LO]
    g.bits[BUSY_HI] = g.bits[GUARD_HI]
    running_words(f, g.bits[BUSY_LO], g.bits[BUSY_HI], False)
    fill_grid(w, g)
    fill_room(f, g, True)


@njit(cache=True)
def work_of(f, finish_share):
    """The few facts that placing needs. `finish_share`: bonus for a job that ends inside the window, in hundredths of
    an average job's GPU-step; it settles near ties in favour of finished work and never shows in a plan's value."""
    density = np.int64(0)
    for o in range(f.options.shape[0]):
        density += f.options[o, DENSITY] // max(1, f.options.shape[0])
    bonus = density * (f.weight_sum[f.steps] // f.steps) // 100 * finish_share
    return Work(f.options, f.option_ptr, f.weight_sum, f.shape, bonus, f.job_caps)


@njit(cache=True)
def _first_margin(start):
    """Quarters of the full margin that a start builds with."""
    return (4, 3, 2, 0)[start % 4]


@njit(cache=True)
def _begin(f, w, start, order, full):
    """An empty grid under the layout of this start: (grid, segments, forced sizes, margin)."""
    g = empty_grid(f)
    segments = lay_out(f, g.bits[GUARD_LO], g.bits[GUARD_HI], start % LAYOUTS)
    close_grid(f, w, g)
    return g, segments, np.full(f.jobs.shape[0], -1, np.int64), full * _first_margin(start) // 4


@njit(cache=True)
def solve(f, iterations, seed, finish_share, settles=True):
    """The fast mode. Returns job rows (start, first GPU, option, gain) and application segments.

    The first start alone is the first legal grid. With a budget, the first half of it improves several starts that
    differ in layout and margin, the second half the best of them. `settles`: the last look at places (`settle.py`).
    """
    w = work_of(f, finish_share)
    everybody = np.ones(f.jobs.shape[0], np.bool_)
    order = value_order(f, everybody)
    g, segments, forced, margin = _begin(f, w, 0, order, np.int64(0))
    full = margin_density(f, g, order)
    margin = full
    if iterations <= 0 or len(order) < 2:
        build(w, g, order, forced, margin, g.flat)
        if settles:
            settle(f, w, g, order)
        return g.place, segments
    random = seeded(seed)
    starts = min(STARTS_MAX, 1 + iterations // ITERATIONS_PER_START_MIN)
    each = iterations // (2 * starts)
    empty = g.bits.copy()
    total = build(w, g, order, forced, margin, g.flat)
    g.bits[:] = empty
    total = improve(w, g, order, forced, margin, total, each if starts > 1 else 0, random)
    for start in range(1, starts):
        g2, segments2, forced2, margin2 = _begin(f, w, start, order, full)
        order2, empty2 = value_order(f, everybody), g2.bits.copy()
        total2 = build(w, g2, order2, forced2, margin2, g2.flat)
        g2.bits[:] = empty2
        total2 = improve(w, g2, order2, forced2, margin2, total2, each, random)
        if total2 - unmet_loss(f, segments2) > total - unmet_loss(f, segments):
            total, g, segments, order, forced, margin, empty = total2, g2, segments2, order2, forced2, margin2, empty2
    g.bits[:] = empty
    improve(w, g, order, forced, margin, total, iterations - (starts * each if starts > 1 else 0), random)
    if settles:
        g.bits[:] = empty
        settle_all(f, w, g, order)
    return g.place, segments


@njit(cache=True)
def unmet_loss(f, segments):
    """Penalty of what a layout leaves unmet, up to a constant of the problem: the served part with its sign turned."""
    served = np.int64(0)
    for s in range(segments.shape[0]):
        served += f.penalty[segments[s, 0]] * (segments[s, 3] - segments[s, 2])
    return -served

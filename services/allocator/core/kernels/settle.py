"""Of equally good places for jobs that start now, the one that leaves most: the last look at a finished grid.

Starts, sizes and everybody else's places stay, so a plan's value does, too. A job moves only to a place that is free in the finished
grid and better, in this order: nearer, less idle time around it, fewer blocks taken of the sizes in demand, fewer GPUs in them (the
measure of Weng et al., USENIX ATC 2023, but for a constant), lower in the pool. Blocks are counted as `fragmentation.block_counts` does,
in what is free as long as the job is to run: a run of free GPUs inside a node is worth a number by its length, a row of whole free nodes
one by its nodes, and what a place takes is a difference of worths.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ZERO, highest, span
from services.allocator.core.kernels.blocks import idle_around
from services.allocator.core.kernels.board import (
    BUSY_HI,
    BUSY_LO,
    CLASS,
    DATA,
    FIRST,
    GPUS,
    GUARD_HI,
    GUARD_LO,
    HOLD,
    OPTION,
    REFUSAL,
    RUNNING_GPUS,
    START,
    STEPS,
)
from services.allocator.core.kernels.near import farness
from services.allocator.core.kernels.shape import multi_block, multi_range, node_begin, node_of

SETTLED_MAX = 64
"""Jobs per plan, the largest first. More hardly ever start at once."""
COUNT_ONE = 1 << 32
"""Blocks count before GPUs. With DEMAND_MAX sums of both stay below 2**31 in pools of up to 512 GPUs."""
DEMAND_MAX = 4096
"""More jobs of one size count as so many."""


@njit(cache=True)
def settle(f, w, g, jobs):
    """Give those of `jobs` that start now their best places. The grid's busy and guard words are those of everything placed; words of
    blocks and nodes aren't kept up."""
    chosen = _starting_now(w, g, jobs)
    if not g.flat or len(chosen) == 0:  # in large pools it would cost more than a single event may
        return
    demand = _demand(f)
    worth = _worth_of_runs(f, demand)
    for j in chosen:
        o, first = g.place[j, OPTION], g.place[j, FIRST]
        steps = span(0, min(w.options[o, STEPS], g.steps), g.two)
        for i in range(first, first + w.options[o, GPUS]):
            g.bits[BUSY_LO, i] &= ~steps[0]
            g.bits[BUSY_HI, i] &= ~steps[1]
        first = _best_place(f, w, g, demand, worth, o, first, steps)
        g.place[j, FIRST] = first
        _mark(g, first, w.options[o, GPUS], steps)


@njit(cache=True)
def settle_all(f, w, g, jobs):
    """`settle` after a search, whose grid has none of the jobs in it any more."""
    for j in jobs:
        if g.place[j, START] >= 0:
            o, start = g.place[j, OPTION], g.place[j, START]
            _mark(
                g, g.place[j, FIRST], w.options[o, GPUS], span(start, min(start + w.options[o, STEPS], g.steps), g.two)
            )
    settle(f, w, g, jobs)


@njit(cache=True)
def _mark(g, first, size, steps):
    """Set a job's cells in the busy words alone."""
    for i in range(first, first + size):
        g.bits[BUSY_LO, i] |= steps[0]
        g.bits[BUSY_HI, i] |= steps[1]


@njit(cache=True)
def _starting_now(w, g, jobs):
    """Those that start in step 0, the largest first, at most SETTLED_MAX."""
    count, found, size = 0, np.empty(len(jobs), np.int64), np.empty(len(jobs), np.int64)
    for j in jobs:
        if g.place[j, START] == 0:
            found[count], size[count] = j, w.options[g.place[j, OPTION], GPUS]
            count += 1
    return found[:count][np.argsort(-size[:count], kind="mergesort")][:SETTLED_MAX]


@njit(cache=True)
def _demand(f):
    """By size class: waiting jobs that offer the size, and running jobs of it; one more for each size that fits inside a node, since
    what comes next is not known."""
    demand = np.zeros(f.shape[2], np.int64)
    for j in range(f.jobs.shape[0]):
        if f.jobs[j, REFUSAL] == 0:
            for o in range(f.option_ptr[j], f.option_ptr[j + 1]):
                if f.options[o, CLASS] >= 0:
                    demand[f.options[o, CLASS]] += 1
    for r in range(f.running.shape[0]):
        demand[highest(np.uint64(f.running[r, RUNNING_GPUS]))] += 1
    for k in range(len(demand)):
        demand[k] = min(demand[k] + (1 if k < f.shape[3] else 0), DEMAND_MAX)
    return demand


@njit(cache=True)
def _worth_of_runs(f, demand):
    """By length of a run of free GPUs inside a node: the blocks it has side by side, each as often as its size is in demand."""
    longest = 0
    for node in range(f.shape[0]):
        longest = max(longest, node_begin(f.shape, node + 1) - node_begin(f.shape, node))
    worth = np.zeros(longest + 1, np.int64)
    for length in range(1, longest + 1):
        for k in range(f.shape[2]):
            worth[length] += demand[k] * (length >> k) * (COUNT_ONE + (1 << k))
    return worth


@njit(cache=True)
def _best_place(f, w, g, demand, worth, o, now, steps):
    """First GPU of the best block for option row `o`, whose job is at `now` and out of the grid; `now` unless another is better."""
    size, end, data = w.options[o, GPUS], min(w.options[o, STEPS], g.steps), w.options[o, DATA]
    hold = span(0, min(w.options[o, HOLD], g.steps), g.two)
    chooses = g.domains >= 0 or data >= 0
    best, far = now, farness(g, now, size, data) if chooses else 0
    idle = idle_around(g, now, size, 0, end)
    taken = _taken(f, g, demand, worth, now, size, _around(f, g, now, steps), steps)
    around, first = (0, 0, 0, 0), -1
    while True:
        first = _next_free(f, g, w.options[o, CLASS], first + 1, size, steps, hold)
        if first < 0:
            return best
        this_far = farness(g, first, size, data) if chooses else 0
        if this_far > far:
            continue
        this_idle = idle_around(g, first, size, 0, end)
        if this_far == far and this_idle > idle:
            continue
        if first >= around[1]:
            around = _around(f, g, first, steps)
        this_taken = _taken(f, g, demand, worth, first, size, around, steps)
        if this_far < far or this_idle < idle or this_taken < taken:
            best, far, idle, taken = first, this_far, this_idle, this_taken


@njit(cache=True)
def _next_free(f, g, k, first, size, steps, hold):
    """First GPU, from `first` on, of a legal block of class k that is free in these steps and may be held in those, or -1."""
    while first + size <= g.bits.shape[1]:
        node = node_of(f.shape, first)
        end = node_begin(f.shape, node + 1)
        if first + size > end and not _is_block(f, k, node, first):
            first = end
            continue
        last = first + size - 1  # from behind: the next block begins behind the last GPU that isn't free
        while last >= first and _is_free(g, last, steps) and _may_be_held(g, last, hold):
            last -= 1
        if last < first:
            return first
        first = last + 1
    return -1


@njit(cache=True)
def _is_block(f, k, node, first):
    """Whether a block of several whole nodes of class k begins with this GPU."""
    if first != node_begin(f.shape, node):
        return False
    low, high = multi_range(f.shape, k)
    while low < high:  # candidates ascend
        middle = (low + high) // 2
        if multi_block(f.shape, middle)[0] < node:
            low = middle + 1
        else:
            high = middle
    return low < multi_range(f.shape, k)[1] and multi_block(f.shape, low)[0] == node


@njit(cache=True)
def _is_free(g, gpu, steps):
    return g.bits[BUSY_LO, gpu] & steps[0] == ZERO and g.bits[BUSY_HI, gpu] & steps[1] == ZERO


@njit(cache=True)
def _may_be_held(g, gpu, hold):
    return g.bits[GUARD_LO, gpu] & hold[0] == ZERO and g.bits[GUARD_HI, gpu] & hold[1] == ZERO


@njit(cache=True)
def _around(f, g, first, steps):
    """The run of free GPUs around a free one, inside its node, and the row of whole free nodes of one size around that: (first GPU, end,
    first node, end), the latter two equal if the node isn't whole."""
    node = node_of(f.shape, first)
    begin, end = node_begin(f.shape, node), node_begin(f.shape, node + 1)
    low, high = first, first + 1
    while low > begin and _is_free(g, low - 1, steps):
        low -= 1
    while high < end and _is_free(g, high, steps):
        high += 1
    if high - low < end - begin:
        return low, high, node, node
    before, after = node, node + 1
    while before > 0 and _is_whole(f, g, before - 1, end - begin, steps):
        before -= 1
    while after < f.shape[0] and _is_whole(f, g, after, end - begin, steps):
        after += 1
    return low, high, before, after


@njit(cache=True)
def _is_whole(f, g, node, size, steps):
    """Whether a node is of this size and free as a whole."""
    begin, end = node_begin(f.shape, node), node_begin(f.shape, node + 1)
    if end - begin != size:
        return False
    for gpu in range(begin, end):  # noqa: SIM110 (numba has no generators in `all`)
        if not _is_free(g, gpu, steps):
            return False
    return True


@njit(cache=True)
def _taken(f, g, demand, worth, first, size, around, steps):
    """What a free block takes away. `around`: of its first GPU."""
    low, high, row_low, row_high = around
    if first + size <= high:
        taken = worth[high - low] - worth[first - low] - worth[high - first - size]
        if row_low == row_high:
            return taken
        node = node_of(f.shape, first)
        return taken + _taken_of_rows(f, g, demand, node, node, row_low, row_high, steps)
    node, last = node_of(f.shape, first), node_of(f.shape, first + size - 1)
    taken = _taken_of_rows(f, g, demand, node, last, row_low, row_high, steps)
    for each in range(node, last + 1):
        taken += worth[node_begin(f.shape, each + 1) - node_begin(f.shape, each)]
    return taken


@njit(cache=True)
def _taken_of_rows(f, g, demand, first, last, low, high, steps):
    """What taking the whole free nodes first..last takes from rows of nodes; low..high-1 is the row of the first."""
    taken = np.int64(0)
    while True:
        size = node_begin(f.shape, low + 1) - node_begin(f.shape, low)
        before, after = max(first, low) - low, high - min(last + 1, high)
        for k in range(f.shape[2]):
            nodes = (1 << k) // size
            if nodes > 1 and nodes * size == 1 << k and demand[k] > 0:
                lost = (high - low) // nodes - before // nodes - after // nodes
                taken += demand[k] * lost * (COUNT_ONE + (1 << k))
        if high > last:
            return taken
        around = _around(f, g, node_begin(f.shape, high), steps)
        low, high = around[2], around[3]

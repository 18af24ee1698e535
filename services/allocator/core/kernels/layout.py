"""Which GPUs applications hold in which step, under the switch cap, around everything that can't move.

Counts first (floors of all, then demand by priority, inside the cap's envelope), then *segments*: each application's
counts split last-in-first-out into runs of one GPU from a start to an end step. Any choice of GPUs for the segments
costs exactly |change of count| switches, so the cap holds by construction. Long segments go to the top of the pool
first, which nests the short ones below and leaves the near nodes whole.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.kernels.bits import ALL, ZERO, first_set, span
from services.allocator.core.kernels.board import (
    APP_FLOOR,
    APP_PRIORITY,
    APP_SWITCH_LEFT,
    APP_SWITCH_MAX,
    RUNNING_FIRST,
    RUNNING_GPUS,
    RUNNING_HOLD,
    RUNNING_STEPS,
)

SEGMENT_COLUMNS = 4  # app, gpu, start, end
LAYOUTS = 3  # variants of the order in which segments choose their GPUs


@njit(cache=True)
def blocked_words(f, lo, hi):
    """Words in which nothing new may be placed at all: states other than usable, and reservations."""
    for g in range(len(f.gpu_state)):
        lo[g] = ZERO
        hi[g] = ZERO
        if f.gpu_state[g] != 0:
            lo[g] = ALL
            hi[g] = ALL
    for r in range(f.reservations.shape[0]):
        first, size = f.reservations[r, 0], f.reservations[r, 1]
        a, b = span(f.reservations[r, 2], f.reservations[r, 3], f.two)
        for g in range(first, first + size):
            lo[g] |= a
            hi[g] |= b


@njit(cache=True)
def running_words(f, lo, hi, hold):
    """Add running jobs' cells: remaining steps, or the held-until steps if `hold`."""
    for r in range(f.running.shape[0]):
        steps = f.running[r, RUNNING_HOLD if hold else RUNNING_STEPS]
        a, b = span(0, min(steps, f.steps), f.two)
        for g in range(f.running[r, RUNNING_FIRST], f.running[r, RUNNING_FIRST] + f.running[r, RUNNING_GPUS]):
            lo[g] |= a
            hi[g] |= b


@njit(cache=True)
def _held_until(f):
    """Per GPU the step at which its holder must give it up: reservations, unusable, or a running job on it."""
    gpus = len(f.gpu_state)
    until = np.full(gpus, f.steps, np.int64)
    for g in range(gpus):
        if f.gpu_state[g] == 2:
            until[g] = 0
    for r in range(f.reservations.shape[0]):
        if f.reservations[r, 2] < f.reservations[r, 3]:
            for g in range(f.reservations[r, 0], f.reservations[r, 0] + f.reservations[r, 1]):
                until[g] = min(until[g], f.reservations[r, 2])
    for r in range(f.running.shape[0]):
        for g in range(f.running[r, RUNNING_FIRST], f.running[r, RUNNING_FIRST] + f.running[r, RUNNING_GPUS]):
            until[g] = 0
    return until


@njit(cache=True)
def _by_priority(priority):
    """Application indices by descending priority, then file order."""
    count = len(priority)
    order = np.arange(count)
    for i in range(1, count):
        a = order[i]
        j = i - 1
        while j >= 0 and priority[order[j]] < priority[a]:
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = a
    return order


@njit(cache=True)
def _envelope(limit, held, cap, cap_first):
    """The largest counts within `limit` that change by at most the cap, starting from `held` at step -1.

    Falling demand lowers earlier steps, since no step may exceed its limit; only what was held before step 0 may stay
    above it for as long as the cap forces that.
    """
    steps = len(limit)
    limit[0] = min(limit[0], held + cap_first)
    for t in range(1, steps):
        limit[t] = min(limit[t], limit[t - 1] + cap)
    for t in range(steps - 2, -1, -1):
        limit[t] = min(limit[t], limit[t + 1] + cap)
    for t in range(steps):
        forced = held - cap_first - cap * t
        if forced <= limit[t]:
            if forced <= 0:
                break
        else:
            limit[t] = forced


@njit(cache=True)
def app_counts(f, available, held):
    """GPUs per application and step: floors first, then demand by priority, each inside its envelope."""
    apps, steps = f.demand.shape
    counts = np.zeros((apps, steps), np.int64)
    left = available.copy()
    order = _by_priority(f.apps[:, APP_PRIORITY])
    for a in order:
        for t in range(steps):
            counts[a, t] = min(f.apps[a, APP_FLOOR], f.demand[a, t], max(0, left[t]))
            left[t] -= counts[a, t]
    for a in order:
        for t in range(steps):
            left[t] += counts[a, t]
            counts[a, t] = min(f.demand[a, t], max(0, left[t]))
        _envelope(counts[a], held[a], f.apps[a, APP_SWITCH_MAX], f.apps[a, APP_SWITCH_LEFT])
        for t in range(steps):
            left[t] -= counts[a, t]
    return counts


@njit(cache=True)
def _segments_of(counts):
    """Split counts last-in-first-out into rows (app, -1, start, end). Rows of one app that start at 0 come longest first."""
    apps, steps = counts.shape
    total = 0
    for a in range(apps):
        before = 0
        for t in range(steps):
            total += max(0, counts[a, t] - before)
            before = counts[a, t]
    rows = np.empty((total, SEGMENT_COLUMNS), np.int64)
    stack = np.empty(total + 1, np.int64)
    n = 0
    for a in range(apps):
        depth = 0
        for t in range(steps + 1):
            want = counts[a, t] if t < steps else 0
            while depth < want:
                rows[n, 0], rows[n, 1], rows[n, 2], rows[n, 3] = a, -1, t, steps
                stack[depth] = n
                depth += 1
                n += 1
            while depth > want:
                depth -= 1
                rows[stack[depth], 3] = t
    return rows


@njit(cache=True)
def _keep_held(f, rows, until, counts):
    """Give held GPUs to the longest segments from step 0; returns rows with split-off remainders appended.

    A held GPU that must be given up early ends its segment there; the rest becomes a new segment where the cap leaves
    room for one more gain (the loss is forced and doesn't count).
    """
    gpus, apps = len(until), counts.shape[0]
    extra = np.empty((rows.shape[0], SEGMENT_COLUMNS), np.int64)
    extras = 0
    more = np.zeros(counts.shape, np.int64)
    for a in range(apps):
        cards = np.empty(gpus, np.int64)
        n = 0
        for g in range(gpus - 1, -1, -1):
            if f.held_app[g] == a and until[g] > 0:
                j = n
                while j > 0 and until[cards[j - 1]] < until[g]:
                    cards[j] = cards[j - 1]
                    j -= 1
                cards[j] = g
                n += 1
        i = 0
        for s in range(rows.shape[0]):
            if rows[s, 0] != a or rows[s, 2] != 0 or i >= n:
                continue
            g = cards[i]
            i += 1
            rows[s, 1] = g
            u = until[g]
            if u < rows[s, 3]:
                change = abs(counts[a, u] - counts[a, u - 1]) + more[a, u]
                if change + 1 <= f.apps[a, APP_SWITCH_MAX]:
                    more[a, u] += 1
                    extra[extras, 0], extra[extras, 1], extra[extras, 2], extra[extras, 3] = a, -1, u, rows[s, 3]
                    extras += 1
                rows[s, 3] = u
    return np.concatenate((rows, extra[:extras]))


@njit(cache=True)
def _place_segments(f, rows, lo, hi, variant):
    """Give every unplaced segment the topmost GPU that is free for it; returns the GPU-steps that found none.

    Variants order the segments: longest first (nests best), latest end first, earliest start first (never runs out of
    GPUs that are all open for the whole window).
    """
    count, gpus = rows.shape[0], len(lo)
    key = np.empty(count, np.int64)
    for s in range(count):
        shortness = f.steps - (rows[s, 3] - rows[s, 2])
        if variant == 0:
            key[s] = shortness * 256 + rows[s, 2]
        elif variant == 1:
            key[s] = (f.steps - rows[s, 3]) * 256 + shortness
        else:
            key[s] = rows[s, 2] * 256 + shortness
    missing = 0
    last_start, last_end, top = -1, -1, gpus - 1
    for s in np.argsort(key, kind="mergesort"):
        if rows[s, 1] >= 0:
            continue
        if rows[s, 2] != last_start or rows[s, 3] != last_end:
            last_start, last_end, top = rows[s, 2], rows[s, 3], gpus - 1
        a, b = span(last_start, last_end, f.two)
        while top >= 0 and ((lo[top] & a) != ZERO or (hi[top] & b) != ZERO):
            top -= 1
        if top < 0:
            missing += rows[s, 3] - rows[s, 2]
            continue
        rows[s, 1] = top
        lo[top] |= a
        hi[top] |= b
    return missing


@njit(cache=True)
def lay_out(f, guard_lo, guard_hi, variant):
    """Choose GPUs for all applications; fills the guard words and returns placed segments as rows.

    `guard` comes out as blocked cells plus the applications' cells.
    """
    gpus = len(f.gpu_state)
    blocked_words(f, guard_lo, guard_hi)
    if f.demand.shape[0] == 0:
        return np.empty((0, SEGMENT_COLUMNS), np.int64)
    until = _held_until(f)
    taken_lo, taken_hi = guard_lo.copy(), guard_hi.copy()
    running_words(f, taken_lo, taken_hi, True)
    available = np.zeros(f.steps, np.int64)
    held = np.zeros(f.demand.shape[0], np.int64)
    for g in range(gpus):
        own_until = 0
        if f.held_app[g] >= 0:
            own_until = until[g]
            held[f.held_app[g]] += 1 if own_until > 0 else 0
        _count_free(taken_lo[g], taken_hi[g], own_until, available)
    counts = app_counts(f, available, held)
    rows = _keep_held(f, _segments_of(counts), until, counts)
    for s in range(rows.shape[0]):
        if rows[s, 1] >= 0:
            a, b = span(rows[s, 2], rows[s, 3], f.two)
            taken_lo[rows[s, 1]] |= a
            taken_hi[rows[s, 1]] |= b
    best = rows.copy()
    missing = _place_segments(f, best, taken_lo.copy(), taken_hi.copy(), variant)
    if missing > 0:
        other = rows.copy()
        if _place_segments(f, other, taken_lo, taken_hi, LAYOUTS - 1) < missing:
            best = other
    return _placed(f, best, guard_lo, guard_hi)


@njit(cache=True)
def _count_free(lo, hi, own_until, available):
    """Add 1 to every step in which this GPU can serve an application (its holder before `own_until`)."""
    steps = len(available)
    for t in range(min(own_until, steps)):
        available[t] += 1
    if first_set(~lo, ~hi) >= steps:
        return
    for t in range(own_until, steps):
        word = lo if t < 64 else hi
        if (word >> np.uint64(t & 63)) & np.uint64(1) == ZERO:
            available[t] += 1


@njit(cache=True)
def _placed(f, rows, guard_lo, guard_hi):
    """Drop segments without a GPU and add the others to the guard words."""
    kept = 0
    for s in range(rows.shape[0]):
        if rows[s, 1] < 0:
            continue
        a, b = span(rows[s, 2], rows[s, 3], f.two)
        guard_lo[rows[s, 1]] |= a
        guard_hi[rows[s, 1]] |= b
        rows[kept] = rows[s]
        kept += 1
    return rows[:kept].copy()

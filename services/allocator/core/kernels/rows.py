"""Arrays of problems and plans that are worked out row by row: on a small pool a dozen calls of numpy cost more than planning.

Owns: option rows, gains, counts of held GPUs, open blocks. Integers only, so that every machine finds the same. What the numbers mean is
said where they are asked for: `core/problem.py`, `core/value.py`, `core/plan.py`, `core/waiting.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from services.allocator.core.columns import OptionColumn
from services.allocator.core.kernels.board import (
    CLASS,
    DATA,
    DENSITY,
    GPUS,
    HOLD,
    OPTION_EARLIEST,
    RUNNING_GPUS,
    RUNNING_PRIORITY,
    RUNNING_STEPS,
    STEPS,
)

OPTION_COLUMNS = len(OptionColumn)
EXACT_BITS = 24


@njit(cache=True)
def bit_length(value):
    """Of a number that is not negative."""
    bits = 0
    while value > 0:
        value >>= 1
        bits += 1
    return bits


@njit(cache=True)
def rounded_share(density, best, work):
    """density × best ÷ work rounded half up, without leaving int64: best <= work, so split off whole multiples.

    Work beyond 2**24 GPU-steps (no real job) loses its lowest bits on both sides of the fraction.
    """
    excess = max(0, bit_length(work) - EXACT_BITS)
    work, best = work >> excess, best >> excess
    whole, rest = density // work * best, density % work * best
    return whole + (2 * rest + work) // (2 * work)


@njit(cache=True)
def option_rows(pointers, offered, jobs, class_of_bits, steps, longest, unit):
    """The table of options. `offered`: GPUs, duration, hold per option; `jobs`: priority, row of data, earliest step per job; `unit`:
    density per thousandth of priority. A size that is no power of two gets 0 GPUs, for the caller to refuse."""
    table = np.zeros((offered.shape[0], OPTION_COLUMNS), np.int64)
    for j in range(len(pointers) - 1):
        best = np.int64(1) << 62
        for o in range(pointers[j], pointers[j + 1]):
            best = min(best, offered[o, 0] * min(max(offered[o, 1], 1), longest))
        for o in range(pointers[j], pointers[j + 1]):
            gpus, duration = offered[o, 0], min(max(offered[o, 1], 1), longest)
            if gpus < 1 or gpus & (gpus - 1) != 0:
                continue
            table[o, GPUS] = gpus
            table[o, CLASS] = class_of_bits[bit_length(gpus)]
            table[o, STEPS] = min(duration, steps + 1)
            table[o, HOLD] = min(max(duration, offered[o, 2]), steps + 1)
            table[o, DENSITY] = rounded_share(jobs[j, 0] * unit, best, gpus * duration)
            table[o, DATA] = jobs[j, 1]
            table[o, OPTION_EARLIEST] = max(0, jobs[j, 2])
    return table


@njit(cache=True)
def options_of(pointers, kept):
    """(pointers, rows) of the options of the jobs in rows `kept`, in their order."""
    kept_pointers = np.zeros(len(kept) + 1, np.int64)
    for at in range(len(kept)):
        kept_pointers[at + 1] = kept_pointers[at] + pointers[kept[at] + 1] - pointers[kept[at]]
    rows = np.empty(kept_pointers[-1], np.int64)
    for at in range(len(kept)):
        first = pointers[kept[at]]
        for row in range(kept_pointers[at], kept_pointers[at + 1]):
            rows[row] = first + row - kept_pointers[at]
    return kept_pointers, rows


@njit(cache=True)
def job_gains(start, option, options, weight_sum, steps):
    """Per queued job the gain of its cells inside the window; 0 where start is negative."""
    gains = np.zeros(len(start), np.int64)
    for j in range(len(start)):
        if start[j] >= 0:
            row = option[j]
            end = min(start[j] + options[row, STEPS], steps)
            gains[j] = options[row, DENSITY] * options[row, GPUS] * (weight_sum[end] - weight_sum[start[j]])
    return gains


@njit(cache=True)
def running_gain(running, weight_sum, steps, unit):
    """Gain of the running jobs' cells inside the window."""
    gain = np.int64(0)
    for r in range(running.shape[0]):
        cells = running[r, RUNNING_GPUS] * weight_sum[min(running[r, RUNNING_STEPS], steps)]
        gain += running[r, RUNNING_PRIORITY] * unit * cells
    return gain


@njit(cache=True)
def held_counts(segments, apps, steps):
    """GPUs held per application and step. Segment rows are application, GPU, start, end."""
    counts = np.zeros((apps, steps), np.int64)
    for s in range(segments.shape[0]):
        for step in range(max(0, segments[s, 2]), min(segments[s, 3], steps)):
            counts[segments[s, 0], step] += 1
    return counts


@njit(cache=True)
def has_open_block(open_now, until, hold, firsts, size):
    """Whether one of the blocks is open now, each of its GPUs for `hold` steps."""
    for i in range(len(firsts)):
        gpu, end = firsts[i], firsts[i] + size
        while gpu < end and open_now[gpu] and until[gpu] >= hold:
            gpu += 1
        if gpu == end:
            return True
    return False

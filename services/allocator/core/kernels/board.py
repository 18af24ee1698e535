"""The records of arrays that kernels exchange, and the names of rows and columns in them.

`Facts` is read-only input, one per problem. `Grid` is the working state. Hot inner kernels take only the arrays they
touch: numba passes a record by copying every array's header, which costs more than a block test.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.columns import AppColumn, JobColumn, OptionColumn, RunningColumn

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

# numba freezes plain integers; enum members inside index expressions compile far slower
EARLIEST, REFUSAL, ARRIVAL = int(JobColumn.EARLIEST), int(JobColumn.REFUSAL), int(JobColumn.ARRIVAL)
OPTION_EARLIEST = int(OptionColumn.EARLIEST)
GPUS, CLASS, STEPS = int(OptionColumn.GPUS), int(OptionColumn.CLASS), int(OptionColumn.STEPS)
HOLD, DENSITY, DATA = int(OptionColumn.HOLD), int(OptionColumn.DENSITY), int(OptionColumn.DATA)
RUNNING_FIRST, RUNNING_GPUS = int(RunningColumn.FIRST), int(RunningColumn.GPUS)
RUNNING_STEPS, RUNNING_HOLD = int(RunningColumn.STEPS), int(RunningColumn.HOLD)
RUNNING_PRIORITY = int(RunningColumn.PRIORITY)
APP_PRIORITY, APP_FLOOR = int(AppColumn.PRIORITY), int(AppColumn.FLOOR)
APP_SWITCH_MAX, APP_SWITCH_LEFT = int(AppColumn.SWITCH_MAX), int(AppColumn.SWITCH_LEFT)

# first rows of Grid.bits
BUSY_LO, BUSY_HI, GUARD_LO, GUARD_HI = 0, 1, 2, 3
# columns of Grid.place
START, FIRST, OPTION, GAIN = 0, 1, 2, 3
PLACE_COLUMNS = 4


class Facts(NamedTuple):
    """One problem's arrays; field meanings as in `problem.Problem` and `topology.Topology`."""

    steps: int
    two: bool
    gpu_state: Ints
    shape: Ints
    jobs: Ints
    option_ptr: Ints
    options: Ints
    running: Ints
    apps: Ints
    demand: Ints
    penalty: Ints  # fixed-point value of one unmet GPU-step per application
    held_app: Ints
    reservations: Ints
    weight_sum: Ints
    job_caps: Ints
    cap_gpus: Ints
    cap_used: Ints
    domains: Ints
    lacking: Ints


class Work(NamedTuple):
    """The few facts that placing a job needs. `finish_bonus`: see `search.work_of`."""

    options: Ints
    option_ptr: Ints
    weight_sum: Ints
    shape: Ints
    finish_bonus: np.int64
    job_caps: Ints


class Grid(NamedTuple):
    """The working state of one grid: two arrays, and where things lie in them.

    `place` rows: start (-1 = not in the window), first GPU, option row, gain (with bonus) of every job. `bits` is as wide as the
    pool; its rows are
    - busy (guard and batch cells) and guard (applications, reservations, closed GPUs) words per GPU, lo and hi;
    - from `block_lo`/`block_hi` one row per class: busy words of the block from GPU g on, all ones where none exists;
    - from `guard_lo`/`guard_hi` the same for guard words, present only if some hold is longer than its duration;
    - from `node_lo`/`node_hi` one row per class: steps in which node n has no free block; only in large pools;
    - from `room` GPUs left per cap and step, one after the other (`caps.py`); only where there are caps;
    - two rows of `scratch`;
    - from `domains`, if that isn't -1, a row of domain numbers, and from `lacking` one row of data that nodes lack per kind (`near.py`).
    The hi rows exist only for windows of more than 64 steps.
    """

    bits: Words
    place: Ints
    steps: int
    two: bool
    flat: bool
    classes: int
    block_lo: int
    block_hi: int
    guard_lo: int
    guard_hi: int
    node_lo: int
    node_hi: int
    room: int
    scratch: int
    domains: int
    lacking: int

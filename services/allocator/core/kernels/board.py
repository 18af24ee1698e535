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
GPUS, CLASS, STEPS = int(OptionColumn.GPUS), int(OptionColumn.CLASS), int(OptionColumn.STEPS)
HOLD, DENSITY = int(OptionColumn.HOLD), int(OptionColumn.DENSITY)
RUNNING_FIRST, RUNNING_GPUS = int(RunningColumn.FIRST), int(RunningColumn.GPUS)
RUNNING_STEPS, RUNNING_HOLD = int(RunningColumn.STEPS), int(RunningColumn.HOLD)
APP_PRIORITY, APP_FLOOR = int(AppColumn.PRIORITY), int(AppColumn.FLOOR)
APP_SWITCH_MAX, APP_SWITCH_LEFT = int(AppColumn.SWITCH_MAX), int(AppColumn.SWITCH_LEFT)

# rows of Grid.words
BUSY_LO, BUSY_HI, GUARD_LO, GUARD_HI = 0, 1, 2, 3
# columns of Grid.place
START, FIRST, OPTION, GAIN = 0, 1, 2, 3
PLACE_COLUMNS = 4


class Facts(NamedTuple):
    """One problem's arrays; field meanings as in `problem.Problem` and `topology.Topology`."""

    steps: int
    two: bool
    gpu_state: Ints
    node_first: Ints
    gpu_node: Ints
    multi_ptr: Ints
    multi_node: Ints
    multi_nodes: Ints
    node_classes: int
    jobs: Ints
    option_ptr: Ints
    options: Ints
    running: Ints
    apps: Ints
    demand: Ints
    held_app: Ints
    reservations: Ints
    weight_sum: Ints


class Grid(NamedTuple):
    """`words` rows: busy (guard and batch cells) and guard (applications, reservations, closed GPUs) per GPU.

    `place` rows: start (-1 = not in the window), first GPU, option row, gain of every job.
    `index[k, half, node]`: steps in which the node has no free block of class k; the last k: steps in which any of its
    GPUs is busy. Valid where `stale[node]` is 0.
    """

    words: Words
    place: Ints
    index: Words
    stale: NDArray[np.uint8]

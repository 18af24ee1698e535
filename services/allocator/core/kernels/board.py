"""The records of arrays that kernels exchange, so that no kernel has twenty arguments.

`Facts` is read-only input (one per problem). `Grid` is the working state: time words per GPU and each job's place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


class Facts(NamedTuple):
    """One problem's arrays; field meanings as in `problem.Problem`."""

    steps: int
    two: bool
    gpu_state: Ints
    node_first: Ints
    block_ptr: Ints
    block_first: Ints
    block_node: Ints
    job_earliest: Ints
    job_refusal: Ints
    job_arrival: Ints
    option_ptr: Ints
    option_gpus: Ints
    option_class: Ints
    option_steps: Ints
    option_hold: Ints
    option_density: Ints
    running_first: Ints
    running_gpus: Ints
    running_steps: Ints
    running_hold: Ints
    app_priority: Ints
    app_demand: Ints
    app_floor: Ints
    app_switch_max: Ints
    app_switch_left: Ints
    held_app: Ints
    reservations: Ints
    weight_sum: Ints


class Grid(NamedTuple):
    """Words of one grid. `batch`: running and planned jobs. `guard`: applications, reservations, unusable GPUs."""

    batch_lo: Words
    batch_hi: Words
    guard_lo: Words
    guard_hi: Words
    start: Ints  # per job, -1 = not in the window
    first: Ints
    option: Ints
    gain: Ints

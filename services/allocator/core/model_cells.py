"""Which cells (step, GPU) the facts leave open, and how many blocks of a size fit into what is open.

Shared by both formal models; owns no variables. Facts are running jobs, reservations and GPU states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.gpu_states import GpuState
from services.allocator.core.problem import Problem

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OpenCells:
    """Matrices of steps × GPUs. `batch`: no running job expected. `promise`: neither reserved nor closed, so that a
    planned job may hold it. `app`: some application may use it. `blocked`: an application there loses it unasked."""

    batch: Bools
    promise: Bools
    app: Bools
    blocked: Bools


def open_cells(problem: Problem) -> OpenCells:
    """What the facts leave open."""
    shape = (problem.steps, problem.gpus)
    running, running_hold, reserved = (np.zeros(shape, np.bool_) for _ in range(3))
    rows = zip(problem.running_first, problem.running_gpus, problem.running_steps, problem.running_hold, strict=True)
    for first, size, steps, hold in rows:
        running[:steps, first : first + size] = True
        running_hold[:hold, first : first + size] = True
    for first, size, start, end in problem.reservations.tolist():
        reserved[start:end, first : first + size] = True
    state = problem.gpu_state[None, :]
    promise = ~reserved & (state == GpuState.USABLE)
    blocked = reserved | running_hold | (state == GpuState.UNUSABLE)
    kept_only = (state == GpuState.HELD_ONLY) & (problem.held_app[None, :] < 0)
    return OpenCells(batch=~running & promise, promise=promise, app=~blocked & ~kept_only, blocked=blocked)


def class_capacity(problem: Problem, open_gpus: Bools, level: int) -> int:
    """Blocks of 2**level GPUs that fit side by side into the open GPUs, none across a node's border."""
    size, total = 1 << level, 0
    borders = problem.topology.node_first
    for node in range(len(borders) - 1):
        part = open_gpus[borders[node] : borders[node + 1]]
        closed = np.flatnonzero(~part)
        runs = np.diff(np.concatenate(([-1], closed, [len(part)]))) - 1
        total += int((runs // size).sum())
    return total


def class_weights(problem: Problem, level: int) -> Ints:
    """Per option: blocks of 2**level GPUs that it takes away wherever it lies (0 for smaller sizes)."""
    per_size: dict[int, int] = {}
    topology = problem.topology
    sizes = np.diff(topology.node_first)
    for k in range(level, topology.classes):
        blocks = topology.blocks(k)
        least = (1 << k) >> level
        for first in blocks.tolist():
            left, right = topology.node_of(first), topology.node_of(first + (1 << k) - 1)
            if left != right:
                least = min(least, int((sizes[left : right + 1] // (1 << level)).sum()))
        per_size[1 << k] = least
    return np.array([per_size.get(int(size), 0) for size in problem.option_gpus], dtype=np.int64)

"""How broken up free GPUs are, now and in the window: which blocks could be handed out, what typical jobs can't use of what is free,
and how much planned idle time is in gaps that no waiting job fits. Pure.

`free_fragments` follows the measure of Weng et al. (Beware of Fragmentation, USENIX ATC 2023), with contiguous blocks in place of
shares of a card. Read next: `migrations.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from services.allocator.core.free_runs import runs_of
from services.allocator.core.gpu_states import GpuState
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Problem

Free = Sequence[Sequence[bool]]
"""Per node, in pool order, per GPU whether it is free."""


def inside_counts(node: Sequence[bool], classes: int) -> list[int]:
    """Per size class how many blocks of it fit side by side into the node's free GPUs."""
    lengths = [length for _, length in runs_of(node)]
    return [sum(length >> k for length in lengths) for k in range(classes)]


def across_counts(sizes: Sequence[int], whole: Sequence[bool], classes: int) -> list[int]:
    """Per size class how many blocks of several whole free nodes fit side by side. Nodes of different sizes begin a new row."""
    counts = [0] * classes
    row = 0
    for at in range(len(sizes) + 1):
        goes_on = at < len(sizes) and whole[at] and (row == 0 or sizes[at] == sizes[at - 1])
        if not goes_on and row:
            for k in range(classes):
                nodes, rest = divmod(1 << k, sizes[at - 1])
                if nodes > 1 and not rest:
                    counts[k] += row // nodes
            row = 0
        if at < len(sizes) and whole[at]:
            row += 1
    return counts


def block_counts(free: Free) -> list[int]:
    """Per size class, up to the whole pool, how many blocks could be handed out side by side."""
    sizes = [len(node) for node in free]
    classes = max(1, sum(sizes)).bit_length()
    counts = across_counts(sizes, [all(node) and bool(node) for node in free], classes)
    for node, times in Counter(tuple(node) for node in free).items():  # most nodes of a large pool look alike
        counts = [known + times * more for known, more in zip(counts, inside_counts(node, classes), strict=True)]
    return counts


def free_fragments(free: Free, demand: Mapping[int, int]) -> float:
    """Free GPUs that a job drawn from `demand` (jobs by size) can't use, on average; 0 where nobody is known."""
    jobs = sum(demand.values())
    if not jobs:
        return 0.0
    total = sum(sum(node) for node in free)
    counts = block_counts(free)
    usable = sum(
        count * (counts[size.bit_length() - 1] * size if size.bit_length() <= len(counts) else 0)
        for size, count in demand.items()
    )
    return max(0.0, total - usable / jobs)


def gap_share(problem: Problem, plan: Plan) -> float:
    """Of the plan's idle GPU-steps the share in gaps that are shorter than every planned or waiting job, per GPU; 0 where nobody waits."""
    open_jobs = np.flatnonzero(problem.job_refusal == 0)
    offered = [row for job in open_jobs.tolist() for row in range(problem.option_ptr[job], problem.option_ptr[job + 1])]
    rows = [row for row in offered if problem.option_class[row] >= 0]  # sizes that the pool has
    if not rows:
        return 0.0
    shortest = int(problem.option_steps[rows].min())
    idle = _idle_cells(problem, plan)
    total = int(idle.sum())
    if not total or shortest <= 1:
        return 0.0
    edge = np.zeros((1, problem.gpus), np.int8)
    change = np.diff(np.concatenate((edge, idle.astype(np.int8), edge)), axis=0)
    begins, ends = np.argwhere(change.T == 1), np.argwhere(change.T == -1)
    lengths = ends[:, 1] - begins[:, 1]
    return float(lengths[lengths < shortest].sum() / total)


def _idle_cells(problem: Problem, plan: Plan) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """steps × GPUs: usable, and given to nobody."""
    idle = np.repeat((problem.gpu_state == GpuState.USABLE)[None, :], problem.steps, axis=0)
    for first, size, end in zip(
        problem.running_first.tolist(), problem.running_gpus.tolist(), problem.running_steps.tolist(), strict=True
    ):
        idle[:end, first : first + size] = False
    for first, size, start, end in problem.reservations.tolist():
        idle[start:end, first : first + size] = False
    for job in np.flatnonzero(plan.start >= 0).tolist():
        first, option, start = int(plan.first_gpu[job]), int(plan.option[job]), int(plan.start[job])
        end = start + int(problem.option_steps[option])
        idle[start:end, first : first + int(problem.option_gpus[option])] = False
    for _, gpu, start, end in plan.segments.tolist():
        idle[start:end, gpu] = False
    return idle

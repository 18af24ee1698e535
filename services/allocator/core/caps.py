"""Caps as facts of a planning problem: which group of jobs may use how many GPUs at once, and what its running jobs use.

What a cap does to a plan is in `kernels/caps.py` and `model.cap_rows`; where caps come from, in `quotas.py`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.columns import RunningColumn

if TYPE_CHECKING:
    from services.allocator.core.problem import Problem

CAPS_PER_JOB = 4  # organisation, team, user, queue

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cap:
    """A group of batch-like jobs (a team, a user) that uses at most so many GPUs of the pool in any step."""

    id: str
    gpus: int


def cap_rows(per_row: Sequence[tuple[int, ...]], caps: int) -> Ints:
    """Indices of caps per row, padded with -1; no columns where there are no caps."""
    rows = np.full((len(per_row), CAPS_PER_JOB if caps else 0), -1, np.int64)
    for row, indices in enumerate(per_row):
        if len(set(indices)) != len(indices) or len(indices) > rows.shape[1] or not all(0 <= i < caps for i in indices):
            raise ValueError(
                f"caps {indices} of row {row} must be at most {CAPS_PER_JOB} different indices below {caps}"
            )
        rows[row, : len(indices)] = indices
    return rows


def cap_usage(running: Ints, running_caps: Ints, caps: int, steps: int) -> Ints:
    """GPUs of running jobs per cap and step."""
    used = np.zeros((caps, steps), np.int64)
    for row, groups in zip(running.tolist(), running_caps.tolist(), strict=True):
        for group in groups:
            if group >= 0:
                used[group, : row[RunningColumn.STEPS]] += row[RunningColumn.GPUS]
    return used


def without_running(problem: Problem, names: Set[str]) -> Problem:
    """The problem as it would be had these running jobs ended."""
    kept = [row for row, name in enumerate(problem.running_ids) if name not in names]
    table, caps = problem.running_table[kept], problem.running_caps[kept]
    return replace(
        problem,
        running_ids=tuple(problem.running_ids[row] for row in kept),
        running_table=table,
        running_caps=caps,
        cap_used=cap_usage(table, caps, len(problem.cap_ids), problem.steps),
    )

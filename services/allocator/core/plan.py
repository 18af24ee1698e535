"""A plan: where and when every job and application goes. Plain arrays, comparable byte by byte.

Made by `heuristic.plan_fast`, by the baselines and by full mode; checked by `verify.verify_plan`, valued by `value`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.kernels.rows import held_counts
from services.allocator.core.problem import Problem
from services.allocator.core.reasons import Reason

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """`start`, `first_gpu`, `option` per queued job (-1: no place in the window; option is a row of the problem's
    option columns). `segments` rows are (application, GPU, start step, end step): the application holds that GPU in
    these steps. `value` is fixed point (`problem.value_one`). `reason` per job: `Reason`, 0 for a start at step 0.
    """

    mode: str
    start: Ints
    first_gpu: Ints
    option: Ints
    segments: Ints
    value: int
    reason: Ints

    def starts_now(self) -> Ints:
        """Indices of jobs that start at step 0."""
        return np.flatnonzero(self.start == 0)

    def app_gpus(self, app: int, step: int) -> list[int]:
        """GPUs the application holds in the step, ascending."""
        rows = self.segments
        mine = (rows[:, 0] == app) & (rows[:, 2] <= step) & (step < rows[:, 3])
        return sorted(int(gpu) for gpu in rows[mine, 1])

    def app_counts(self, problem: Problem) -> Ints:
        """GPUs held per application and step."""
        return app_counts(problem, self.segments)

    def reason_of(self, job: int) -> Reason:
        return Reason(int(self.reason[job]))


def app_counts(problem: Problem, segments: Ints) -> Ints:
    """GPUs held per application and step, by a plan's segments."""
    counts: Ints = held_counts(segments, problem.apps, problem.steps)
    return counts

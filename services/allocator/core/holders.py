"""Who holds what a waiting job could use, by name only: `waiting.blockers_of` for hundreds of jobs per decision.

Owns the quick way; `blockers_of` says the same in full and is what this is tested against. Read next: `commit.py`.
"""

from __future__ import annotations

import numpy as np

from services.allocator.core.plan import Plan
from services.allocator.core.problem import Ints, Problem


class Holders:
    """Answers for one problem and its plan. Jobs without a planned start all have the same answer."""

    def __init__(self, problem: Problem, plan: Plan, count_max: int) -> None:
        self._problem = problem
        self._plan = plan
        self._count_max = count_max
        self._planned = np.flatnonzero(plan.start >= 0)
        self._sizes: Ints = problem.option_gpus[plan.option[self._planned]]
        self._without_start: list[str] | None = None

    def of(self, row: int) -> list[str]:
        """The largest holders at step 0: of the planned block before its start, or of anything if nothing is planned."""
        start = int(self._plan.start[row])
        if start > 0:
            first = int(self._plan.first_gpu[row])
            return self._named(row, first, first + int(self._problem.option_gpus[self._plan.option[row]]), start)
        if self._without_start is None:
            self._without_start = self._named(row, 0, self._problem.gpus, self._problem.steps)
        return self._without_start

    def _named(self, row: int, first: int, end: int, window: int) -> list[str]:
        problem, plan = self._problem, self._plan
        found: list[tuple[int, str, str]] = []

        def add(kind: str, names: tuple[str, ...], rows: Ints, overlaps: Ints) -> None:
            found.extend((-gpus, kind, names[at]) for at, gpus in zip(rows.tolist(), overlaps.tolist(), strict=True))

        overlaps = _overlaps(problem.running_first, problem.running_gpus, first, end)
        holding = np.flatnonzero((overlaps > 0) & (problem.running_hold > 0))
        add("running", problem.running_ids, holding, overlaps[holding])
        starts, options = plan.start[self._planned], plan.option[self._planned]
        overlaps = _overlaps(plan.first_gpu[self._planned], self._sizes, first, end)
        before = np.flatnonzero(
            (overlaps > 0) & (starts < window) & (problem.option_steps[options] > 0) & (self._planned != row)
        )
        add("planned", problem.job_ids, self._planned[before], overlaps[before])
        if len(problem.reservations):
            _, _, since, until = problem.reservations.T
            overlaps = _overlaps(problem.reservations[:, 0], problem.reservations[:, 1], first, end)
            holding = np.flatnonzero((overlaps > 0) & (since < window) & (until > since))
            add("reservation", problem.reservation_ids, holding, overlaps[holding])
        if len(plan.segments):
            apps, gpus, since, _ = plan.segments.T
            counts = np.bincount(
                apps[(gpus >= first) & (gpus < end) & (since < window)], minlength=len(problem.app_ids)
            )
            holding = np.flatnonzero(counts)
            add("application", problem.app_ids, holding, counts[holding])
        return list(dict.fromkeys(name for _, _, name in sorted(found)))[: self._count_max]


def _overlaps(firsts: Ints, sizes: Ints, first: int, end: int) -> Ints:
    """GPUs that each block shares with [first, end); 0 or less: none."""
    overlaps: Ints = np.minimum(firsts + sizes, end) - np.maximum(firsts, first)
    return overlaps

"""Fast mode: problem in, legal plan out, deterministic for (problem, iterations, seed).

The work happens in `kernels/`; this file lays the problem out for them and turns their arrays into a `Plan`. Budgets
are candidate grids, never time. The first legal grid costs `iterations=0`.
"""

from __future__ import annotations

import numpy as np

from services.allocator.core.kernels.board import FIRST, OPTION, START, Facts
from services.allocator.core.kernels.search import solve
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Ints, Problem
from services.allocator.core.value import plan_value
from services.allocator.core.waiting import reasons_of

WORD_STEPS = 64
FINISH_SHARE = 75  # hundredths of an average GPU-step that a finished job is worth in near ties


def facts_of(problem: Problem) -> Facts:
    """The kernels' view of a problem. Shares the arrays, copies nothing."""
    return Facts(
        steps=problem.steps,
        two=problem.steps > WORD_STEPS,
        gpu_state=problem.gpu_state,
        shape=problem.topology.packed,
        jobs=problem.job_table,
        option_ptr=problem.option_ptr,
        options=problem.option_table,
        running=problem.running_table,
        apps=problem.app_table,
        demand=problem.app_demand,
        penalty=problem.app_penalty,
        held_app=problem.held_app,
        reservations=problem.reservations,
        weight_sum=problem.weight_sum,
    )


def plan_fast(problem: Problem, iterations: int, seed: int = 0) -> Plan:
    """Plan the window: first legal grid, then `iterations` candidate grids of local search."""
    place, segments = solve(facts_of(problem), iterations, seed, FINISH_SHARE)
    return finished_plan(problem, "fast", place, segments)


def finished_plan(problem: Problem, mode: str, place: Ints, segments: Ints) -> Plan:
    """A `Plan` with value and reasons from the bare grid: job rows of start, first GPU, option, gain."""
    start = np.ascontiguousarray(place[:, START])
    first = np.where(start >= 0, place[:, FIRST], -1)
    option = np.where(start >= 0, place[:, OPTION], -1)
    bare = Plan(mode, start, first, option, segments, 0, np.zeros(len(start), np.int64))
    value = plan_value(problem, start, option, bare.app_counts(problem))
    return Plan(mode, start, first, option, segments, value, reasons_of(problem, bare))

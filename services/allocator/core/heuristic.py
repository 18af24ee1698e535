"""Fast mode: problem in, legal plan out, deterministic for (problem, iterations, seed).

The work happens in `kernels/`; this file lays the problem out for them and turns their arrays into a `Plan`. Budgets
are candidate grids, never time. The first legal grid costs `iterations=0`.
"""

from __future__ import annotations

import numpy as np

from services.allocator.core.kernels.board import Facts
from services.allocator.core.kernels.search import solve
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Problem
from services.allocator.core.value import plan_value
from services.allocator.core.waiting import reasons_of

WORD_STEPS = 64


def facts_of(problem: Problem) -> Facts:
    """The kernels' view of a problem. Shares the arrays, copies nothing."""
    return Facts(
        steps=problem.steps,
        two=problem.steps > WORD_STEPS,
        gpu_state=problem.gpu_state,
        node_first=problem.topology.node_first,
        block_ptr=problem.topology.block_ptr,
        block_first=problem.topology.block_first,
        block_node=problem.topology.block_node,
        job_earliest=problem.job_earliest,
        job_refusal=problem.job_refusal,
        job_arrival=problem.job_arrival,
        option_ptr=problem.option_ptr,
        option_gpus=problem.option_gpus,
        option_class=problem.option_class,
        option_steps=problem.option_steps,
        option_hold=problem.option_hold,
        option_density=problem.option_density,
        running_first=problem.running_first,
        running_gpus=problem.running_gpus,
        running_steps=problem.running_steps,
        running_hold=problem.running_hold,
        app_priority=problem.app_priority,
        app_demand=problem.app_demand,
        app_floor=problem.app_floor,
        app_switch_max=problem.app_switch_max,
        app_switch_left=problem.app_switch_left,
        held_app=problem.held_app,
        reservations=problem.reservations,
        weight_sum=problem.weight_sum,
    )


def plan_fast(problem: Problem, iterations: int, seed: int = 0) -> Plan:
    """Plan the window: first legal grid, then `iterations` candidate grids of local search."""
    start, first, option, segments = solve(facts_of(problem), iterations, seed)
    return finished_plan(problem, "fast", start, first, option, segments)


def finished_plan(
    problem: Problem, mode: str, start: np.ndarray, first: np.ndarray, option: np.ndarray, segments: np.ndarray
) -> Plan:
    """A `Plan` with value and reasons from the bare grid."""
    bare = Plan(mode, start, first, option, segments, 0, np.zeros(len(start), np.int64))
    value = plan_value(problem, start, option, bare.app_counts(problem))
    return Plan(mode, start, first, option, segments, value, reasons_of(problem, bare))

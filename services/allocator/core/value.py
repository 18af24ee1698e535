"""The objective, once. Everything that states a value (heuristic, baselines, full mode, tests) uses these functions.

sum over batch-like cells of density × weight(step) − sum over applications and steps of ratio × priority × unmet GPUs,
exact in int64 fixed point; density = priority × useful share, where useful share = least GPU-steps over the offered
sizes ÷ GPU-steps at the chosen size, and 1 for running jobs. The penalty has no decay.
"""

from __future__ import annotations

import numpy as np

from services.allocator.core.fixed_point import PRIORITY_ONE
from services.allocator.core.kernels import rows
from services.allocator.core.plan import Plan
from services.allocator.core.problem import DENSITY_ONE, Ints, Problem

UNIT = DENSITY_ONE // PRIORITY_ONE


def job_gains(problem: Problem, start: Ints, option: Ints) -> Ints:
    """Fixed-point gain per queued job at these starts and options (0 where start is negative)."""
    gains: Ints = rows.job_gains(start, option, problem.option_table, problem.weight_sum, problem.steps)
    return gains


def running_gain(problem: Problem) -> int:
    """Fixed-point gain of the running jobs' cells inside the window."""
    return int(rows.running_gain(problem.running_table, problem.weight_sum, problem.steps, UNIT))


def unmet_gpu_steps(problem: Problem, counts: Ints) -> Ints:
    """Unmet GPUs per application and step, given GPUs held per application and step."""
    return np.maximum(0, problem.app_demand - counts)


def unmet_penalty(problem: Problem, unmet: Ints) -> int:
    """Fixed-point penalty of unmet GPU-steps."""
    return int(np.dot(problem.app_penalty, unmet.sum(axis=1)))


def plan_value(problem: Problem, start: Ints, option: Ints, counts: Ints) -> int:
    """The objective in fixed point; `counts` are GPUs held per application and step."""
    gain = int(job_gains(problem, start, option).sum()) + running_gain(problem)
    return gain - unmet_penalty(problem, unmet_gpu_steps(problem, counts)) if problem.apps else gain


def value_of(problem: Problem, plan: Plan) -> float:
    """A plan's value in the mission's units."""
    return plan.value / problem.value_one


def used_cells(problem: Problem, plan: Plan) -> int:
    """GPU-steps in use inside the window: queued, running and applications."""
    placed = np.flatnonzero(plan.start >= 0)
    ends = np.minimum(plan.start[placed] + problem.option_steps[plan.option[placed]], problem.steps)
    cells = int(np.sum(problem.option_gpus[plan.option[placed]] * (ends - plan.start[placed])))
    cells += int(np.sum(problem.running_gpus * np.minimum(problem.running_steps, problem.steps)))
    return cells + int(plan.app_counts(problem).sum())


def utilization(problem: Problem, plan: Plan) -> float:
    """Cells in use ÷ all cells of the window."""
    return used_cells(problem, plan) / max(1, problem.gpus * problem.steps)


def completed(problem: Problem, plan: Plan) -> int:
    """Jobs that end inside the window, running ones included."""
    placed = np.flatnonzero(plan.start >= 0)
    ends = plan.start[placed] + problem.option_steps[plan.option[placed]]
    return int(np.sum(ends <= problem.steps)) + int(np.sum(problem.running_steps <= problem.steps))

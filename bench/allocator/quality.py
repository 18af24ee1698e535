"""Value of fast mode on the published files, which carry the best known value of an exact solver and its bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.allocator.core.baselines import plan_fifo
from services.allocator.core.heuristic import default_iterations, plan_fast
from services.allocator.core.problem import Problem
from services.allocator.core.scenario import problem_of, read_scenario
from services.allocator.core.value import completed, used_cells, utilization, value_of
from services.allocator.core.verify import verify_plan

SCENARIOS = Path(__file__).parents[2] / "tests" / "data" / "scenarios"


def published_rows() -> list[dict[str, Any]]:
    """One row per published file."""
    rows = []
    for path in sorted(SCENARIOS.glob("*.json")):
        scenario = read_scenario(path.read_bytes())
        problem = problem_of(scenario)
        first, plan = plan_fast(problem, 0), plan_fast(problem, default_iterations(problem))
        best, fifo = scenario.reference["best_known"], scenario.reference["fifo"]
        plan_of_fifo = plan_fifo(problem)
        rows.append(
            {
                "name": scenario.name,
                "iterations": default_iterations(problem),
                "first_grid_of_best_known": value_of(problem, first) / best["value"],
                "value_of_best_known": value_of(problem, plan) / best["value"],
                "value_of_bound": value_of(problem, plan) / best["bound"],
                "gain_over_fifo": value_of(problem, plan) / fifo["value"] - 1,
                "utilization": utilization(problem, plan),
                "useful_utilization": useful_utilization(problem, plan),
                "utilization_fifo": fifo["utilization"],
                "useful_utilization_fifo": useful_utilization(problem, plan_of_fifo),
                "completed": completed(problem, plan),
                "completed_fifo": int(fifo["completed"]),
                "completed_best_known": int(best["completed"]),
                "violations": len(verify_plan(problem, plan)),
            }
        )
    return rows


def useful_utilization(problem: Problem, plan: Any) -> float:
    """Utilization with batch cells counted at their useful share (an inefficient size buys nothing here)."""
    wasted = 0.0
    for job in range(problem.jobs):
        start, row = int(plan.start[job]), int(plan.option[job])
        if start >= 0:
            offered = range(int(problem.option_ptr[job]), int(problem.option_ptr[job + 1]))
            best = min(int(problem.option_gpus[o] * problem.option_steps[o]) for o in offered)
            work = int(problem.option_gpus[row] * problem.option_steps[row])
            inside = min(int(problem.option_steps[row]), problem.steps - start) * int(problem.option_gpus[row])
            wasted += inside * (1 - best / work)
    return (used_cells(problem, plan) - wasted) / max(1, problem.gpus * problem.steps)

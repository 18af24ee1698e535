"""Value of fast mode on the published files and on many draws per family.

The published files carry the best known value of an exact solver. For our own draws the yardstick is the best value a
much longer search of our own found (`deep`), so the ratio says how much the short budget gives away, not the gap to
the optimum.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean, quantiles
from typing import Any

from bench.allocator.families import FAMILIES, HELD_OUT_FROM, draw
from services.allocator.core.baselines import plan_fifo
from services.allocator.core.heuristic import default_iterations, plan_fast
from services.allocator.core.problem import Problem
from services.allocator.core.scenario import problem_of, read_scenario
from services.allocator.core.value import completed, used_cells, utilization, value_of
from services.allocator.core.verify import verify_plan

SCENARIOS = Path(__file__).parents[2] / "tests" / "data" / "scenarios"
DEEP_FACTOR = 20  # the deep search gets this many times the default budget, from each of DEEP_SEEDS
DEEP_SEEDS = (11, 12, 13)


def published_rows() -> list[dict[str, Any]]:
    """One row per published file."""
    rows = []
    for path in sorted(SCENARIOS.glob("*.json")):
        scenario = read_scenario(path.read_bytes())
        problem = problem_of(scenario)
        first, plan = plan_fast(problem, 0), plan_fast(problem, default_iterations(problem))
        best, fifo = scenario.reference["best_known"], scenario.reference["fifo"]
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


def draw_rows(draws: int, held_out: bool) -> list[dict[str, Any]]:
    """One row per family: the distribution over `draws` draws."""
    rows = []
    first_seed = HELD_OUT_FROM if held_out else 0
    for name in FAMILIES:
        ratios, gains = [], []
        for seed in range(first_seed, first_seed + draws):
            problem = problem_of(draw(name, seed))
            budget = default_iterations(problem)
            value = value_of(problem, plan_fast(problem, budget))
            deep = max(value_of(problem, plan_fast(problem, budget * DEEP_FACTOR, s)) for s in DEEP_SEEDS)
            ratios.append(value / max(value, deep))
            gains.append(value / value_of(problem, plan_fifo(problem)) - 1)
        spread = quantiles(ratios, n=20)
        rows.append(
            {
                "family": name,
                "draws": draws,
                "first_seed": first_seed,
                "ratio_min": min(ratios),
                "ratio_p5": spread[0],
                "ratio_median": spread[9],
                "ratio_p95": spread[18],
                "ratio_mean": mean(ratios),
                "gain_over_fifo_mean": mean(gains),
                "gain_over_fifo_min": min(gains),
            }
        )
    return rows

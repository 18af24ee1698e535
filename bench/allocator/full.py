"""Value and bound of full mode on the published files. It depends on the machine's speed: rows say the limit, and the wall
and processor time really used."""

from __future__ import annotations

import time
from typing import Any

from bench.allocator.quality import SCENARIOS
from services.allocator.core.heuristic import default_iterations, plan_fast
from services.allocator.core.problem import Problem
from services.allocator.core.scenario import problem_of, read_scenario
from services.allocator.core.value import value_of
from services.allocator.core.verify import verify_plan
from services.allocator.shell.cp_sat import Limit
from services.allocator.shell.solver import plan_full


def full_rows(seconds: float) -> list[dict[str, Any]]:
    """One row per published file."""
    rows = []
    for path in sorted(SCENARIOS.glob("*.json")):
        scenario = read_scenario(path.read_bytes())
        best = scenario.reference["best_known"]
        row = _row(scenario.name, problem_of(scenario), seconds)
        row["value_of_best_known"] = row["value"] / best["value"]
        row["bound_of_best_known"] = row["bound"] / best["value"] if row["bound"] is not None else None
        row["reference_bound_of_best_known"] = best["bound"] / best["value"]
        rows.append(row)
    return rows


def _row(name: str, problem: Problem, seconds: float) -> dict[str, Any]:
    fast = plan_fast(problem, default_iterations(problem))
    begin, begin_cpu = time.perf_counter(), time.process_time()
    full = plan_full(problem, Limit(seconds))
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    value = value_of(problem, full.plan)
    bound = None if full.bound is None else full.bound / problem.value_one
    return {
        "name": name,
        "limit_s": seconds,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "value": value,
        "bound": bound,
        "value_of_bound": value / bound if bound else None,
        "gap": full.gap(problem),
        "optimal": full.optimal,
        "fast_of_full": value_of(problem, fast) / value if value else None,
        "rounds": full.rounds,
        "violations": len(verify_plan(problem, full.plan)),
    }

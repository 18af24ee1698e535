"""Decision times: arrays in memory → finished grid, in a warm process, beside a pure-Python reading and a plain solver in the same run.

Every time is the median of the calmest of a few rounds, wall time with the processor time of the thread beside it: on a
machine that others use, the processor time is the honest one, and the ratios are the portable ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.allocator.families import draw
from bench.allocator.large import large_problem
from services.allocator.core.columns import JobColumn
from services.allocator.core.gpu_states import GpuState
from services.allocator.core.heuristic import (
    FINISH_SHARE,
    RETRIES,
    default_iterations,
    facts_of,
    kept_rows,
    plan_fast,
    plan_repaired,
    solve,
)
from services.allocator.core.kernels.repair import repair
from services.allocator.core.model_cards import blocks_of, cards_model, plan_of
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Problem
from services.allocator.core.reasons import Reason
from services.allocator.core.scenario import problem_of
from services.allocator.core.verify import verify_plan
from services.allocator.shell import cp_sat
from tests.oracle.naive_planner import naive_plan

ROUNDS = 5
SOLVER_GPUS_MAX = 16  # in larger pools the plain exact model finds next to nothing
NAIVE_GPUS_MAX = 64  # the pure-Python reading of larger pools takes minutes
COLD_START = """
import time
begin = time.perf_counter()
from services.allocator.shell.warmup import use_kernel_cache, warm_up
use_kernel_cache()
warm_up()
print(time.perf_counter() - begin)
"""


def timed(work: Callable[[], Any], repeat: int) -> tuple[float, float]:
    """(wall, thread CPU) in milliseconds: medians of the calmest of `ROUNDS` rounds, since others may use the machine."""
    wall, cpu = [], []
    for _ in range(ROUNDS):
        walls, cpus = [], []
        for _ in range(max(1, repeat // ROUNDS)):
            a, b = time.perf_counter_ns(), time.thread_time_ns()
            work()
            cpus.append((time.thread_time_ns() - b) / 1e6)
            walls.append((time.perf_counter_ns() - a) / 1e6)
        wall.append(median(walls))
        cpu.append(median(cpus))
    return min(wall), min(cpu)


def boards() -> list[tuple[str, Problem, int]]:
    """(label, problem, repeats)."""
    rows = [(f"{name}, {gpus} GPUs", problem_of(draw(name, 1)), 101) for name, gpus in SMALL]
    rows += [(f"64 GPUs, 30 queued, {steps} steps", large_problem(64, 30, steps, 0), 51) for steps in (24, 96)]
    rows += [(f"1024 GPUs, 1000 queued, {steps} steps", large_problem(1024, 1000, steps, 0), 11) for steps in (24, 96)]
    rows += [
        (f"10240 GPUs, 10000 queued, {steps} steps", large_problem(10240, 10000, steps, 0), 3) for steps in (24, 96)
    ]
    return rows


SMALL = (
    ("training_heavy", 8),
    ("mixed_control", 8),
    ("uniform_priority", 8),
    ("inference_heavy", 16),
    ("batch_burst", 16),
    ("scale_64", 64),
)


def speed_rows(solver_s: float) -> list[dict[str, Any]]:
    """One row per board: first legal grid (before the last look at places), default budget with that look, verification, ratios to
    pure Python and to a solver of `solver_s`."""
    rows = []
    for label, problem, repeat in boards():
        facts, budget = facts_of(problem), default_iterations(problem)
        first = timed(lambda: solve(facts, 0, 0, FINISH_SHARE, False), repeat)  # noqa: B023
        full = timed(lambda: solve(facts, budget, 0, FINISH_SHARE), repeat)  # noqa: B023
        plan = plan_fast(problem, budget)
        row = {
            "board": label,
            "gpus": problem.gpus,
            "steps": problem.steps,
            "iterations": budget,
            "first_grid_ms": first[0],
            "first_grid_cpu_ms": first[1],
            "decision_ms": full[0],
            "decision_cpu_ms": full[1],
            "verify_ms": timed(lambda: verify_plan(problem, plan), min(repeat, 5))[0],  # noqa: B023
            "violations": len(verify_plan(problem, plan)),
        }
        if problem.gpus <= NAIVE_GPUS_MAX:
            naive = timed(lambda: naive_plan(problem), 3)  # noqa: B023
            row |= {"pure_python_first_grid_cpu_ms": naive[1], "times_faster_than_pure_python": naive[1] / first[1]}
        if problem.gpus <= SOLVER_GPUS_MAX and solver_s > 0:
            reached, solver_cpu_s = solver_value(problem, solver_s)
            row |= {
                "solver_cpu_s": solver_cpu_s,
                "solver_value_of_ours": reached / plan.value,
                "times_faster_than_solver": solver_cpu_s * 1000 / full[1],
            }
        rows.append(row)
    return rows


def solver_value(problem: Problem, seconds: float) -> tuple[int, float]:
    """What CP-SAT makes of the exact model alone, from nothing: the value of its best plan, and the processor seconds it took.

    Its limit is deterministic, so that a busy machine makes it slower but no worse.
    """
    floors = np.zeros((problem.apps, problem.steps), np.int64)
    cards = cards_model(problem, floors, blocks_of(problem), np.ones((problem.apps, problem.gpus), np.bool_))
    begin = time.process_time()
    outcome = cp_sat.solve(cards.model, cp_sat.Limit(seconds, deterministic=True), 1)
    cpu_s = time.process_time() - begin
    return plan_of(problem, cards, outcome.values).value if outcome.values is not None else 0, cpu_s


def steps_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """96 steps against 24, from the rows of `speed_rows`: first grids, and decisions with their (smaller) budgets."""
    found = []
    for short in rows:
        long = next((row for row in rows if row["board"] == short["board"].replace("24 steps", "96 steps")), None)
        if long is not None and long is not short:
            found.append(
                {
                    "board": short["board"].replace(", 24 steps", ""),
                    "first_grid_ratio": long["first_grid_cpu_ms"] / short["first_grid_cpu_ms"],
                    "decision_ratio": long["decision_cpu_ms"] / short["decision_cpu_ms"],
                }
            )
    return found


def incremental_rows() -> list[dict[str, Any]]:
    """Single events in the largest pool, against planning everything again: a job comes, a job ends, a node is lost."""
    problem = large_problem(10240, 10001, 24, 1)
    again = timed(lambda: solve(facts_of(problem), 0, 0, FINISH_SHARE), 3)
    plan, rows = plan_fast(problem, 0), []
    for event, (changed, earlier, retries) in _events(problem, plan).items():
        facts, kept = facts_of(changed), kept_rows(earlier.start, earlier.first_gpu, earlier.option)
        took = timed(lambda: repair(facts, kept, earlier.segments, len(kept), retries, FINISH_SHARE), 11)  # noqa: B023
        repaired = plan_repaired(changed, earlier, retries=retries)
        rows.append(
            {
                "event": event,
                "repair_ms": took[0],
                "repair_cpu_ms": took[1],
                "plan_again_cpu_ms": again[1],
                "value_of_planned_again": repaired.value / plan_fast(changed, 0).value,
                "violations": len(verify_plan(changed, repaired)),
            }
        )
    return rows


def _events(problem: Problem, plan: Plan) -> dict[str, tuple[Problem, Plan, int]]:
    """Event → (problem after it, plan before it, how many jobs without a place are tried again)."""
    known = replace(plan, start=plan.start[:-1], first_gpu=plan.first_gpu[:-1], option=plan.option[:-1])
    first = int(np.flatnonzero(plan.start == 0)[0])
    ended = replace(plan, start=np.where(np.arange(len(plan.start)) == first, -1, plan.start))
    refused = problem.job_table.copy()
    refused[first, JobColumn.REFUSAL] = Reason.NO_CAPACITY.value
    lost = problem.gpu_state.copy()
    lost[800:808] = GpuState.UNUSABLE
    return {
        "one job added": (problem, known, 0),
        "one job ended": (replace(problem, job_table=refused), ended, RETRIES),
        "one node lost": (replace(problem, gpu_state=lost), plan, 0),
    }


def cold_start_s(cache: Path, name: str) -> float:
    """Seconds of a new process from nothing to warm kernels with this kernel cache folder."""
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(cache / name), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", COLD_START], env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    return float(done.stdout)

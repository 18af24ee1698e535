"""Decision times: arrays in memory → finished grid, in a warm process, beside a pure-Python reading in the same run.

Every time is a median of wall times, with the CPU time of the thread beside it: on a machine that others use, the
CPU time is the honest one, and the ratio to the pure-Python reading the portable one.
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
from services.allocator.core.heuristic import (
    FINISH_SHARE,
    default_iterations,
    facts_of,
    plan_fast,
    plan_repaired,
    solve,
)
from services.allocator.core.kernels.repair import repair
from services.allocator.core.problem import Problem
from services.allocator.core.scenario import problem_of
from services.allocator.core.verify import verify_plan
from tests.oracle.naive_planner import naive_plan

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
    """(median wall, median thread CPU) in milliseconds."""
    wall, cpu = [], []
    for _ in range(repeat):
        a, b = time.perf_counter_ns(), time.thread_time_ns()
        work()
        cpu.append((time.thread_time_ns() - b) / 1e6)
        wall.append((time.perf_counter_ns() - a) / 1e6)
    return median(wall), median(cpu)


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


def speed_rows() -> list[dict[str, Any]]:
    """One row per board: first legal grid, default budget, verification, ratio to pure Python."""
    rows = []
    for label, problem, repeat in boards():
        facts, budget = facts_of(problem), default_iterations(problem)
        first = timed(lambda: solve(facts, 0, 0, FINISH_SHARE), repeat)  # noqa: B023
        full = timed(lambda: solve(facts, budget, 0, FINISH_SHARE), repeat)  # noqa: B023
        plan = plan_fast(problem, budget)
        row = {
            "board": label,
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
        rows.append(row)
    return rows


def incremental_row() -> dict[str, Any]:
    """One added job in the largest pool, against planning everything again."""
    problem = large_problem(10240, 10001, 24, 1)
    plan = plan_fast(problem, 0)
    before = replace(plan, start=plan.start[:-1], first_gpu=plan.first_gpu[:-1], option=plan.option[:-1])
    kept = np.ascontiguousarray(
        np.stack((before.start, before.first_gpu, before.option, np.zeros_like(before.start)), axis=1)
    )
    facts = facts_of(problem)
    added = timed(lambda: repair(facts, kept, before.segments, len(kept), FINISH_SHARE), 11)
    again = timed(lambda: solve(facts, 0, 0, FINISH_SHARE), 3)
    return {
        "board": "10240 GPUs, 10000 queued, 24 steps, one job added",
        "repair_ms": added[0],
        "repair_cpu_ms": added[1],
        "plan_again_ms": again[0],
        "violations": len(verify_plan(problem, plan_repaired(problem, before))),
    }


def cold_start_s(cache: Path, name: str) -> float:
    """Seconds of a new process from nothing to warm kernels with this kernel cache folder."""
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(cache / name), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", COLD_START], env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    return float(done.stdout)

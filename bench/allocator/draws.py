"""Many draws per family: value of fast and full mode against the bound and the best known plan, a row per draw.

Rows are kept by family and seed, so that a run may stop and go on, and so that figures of single draws can be looked up.
Seeds from `HELD_OUT_FROM` on are held out and reported apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import mean, quantiles
from typing import Any

from bench.allocator.families import FAMILIES, HELD_OUT_FROM, draw
from bench.allocator.quality import useful_utilization
from services.allocator.core.baselines import plan_fifo
from services.allocator.core.heuristic import default_iterations, plan_fast
from services.allocator.core.scenario import problem_of
from services.allocator.core.value import completed, utilization, value_of
from services.allocator.core.verify import verify_plan
from services.allocator.shell.cp_sat import Limit
from services.allocator.shell.solver import plan_full

LOOSE = 0.998
"""A draw whose full-mode value is at least this share of its proven bound needs no longer look."""
LONG_FACTOR = 6
"""The longer look at the others: is it the bound that is loose, or the plan?"""

MEASURED = ("fast_of_best", "fast_of_bound", "full_of_best", "full_of_bound")

Row = dict[str, Any]


def measure_draws(
    seeds: Sequence[int], seconds: float, known: Sequence[Row], keep: Callable[[list[Row]], None]
) -> list[Row]:
    """Rows of these seeds of every family; those in `known` aren't measured again. `keep` is called after each new one."""
    rows = {(row["family"], row["seed"]): row for row in known}
    for seed in seeds:
        for family in FAMILIES:
            if (family, seed) in rows:
                continue
            row = rows[family, seed] = _row(family, seed, seconds)
            words = [f"{name} {row[name]:.4f}" for name in ("fast_of_best", "full_of_best", "full_of_bound")]
            print(f"{family}/{seed}: {', '.join(words)}", flush=True)
            keep(list(rows.values()))
    return list(rows.values())


def _row(family: str, seed: int, seconds: float) -> Row:
    """One draw. `best` is the best plan anybody here found, `bound` the lowest bound anybody here proved."""
    problem = problem_of(draw(family, seed))
    fifo, fast = plan_fifo(problem), plan_fast(problem, default_iterations(problem))
    begin, begin_cpu = time.perf_counter(), time.process_time()
    full = plan_full(problem, Limit(seconds))
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    best, bound, long_s = full.plan, full.bound, 0.0
    if bound is None or full.plan.value < LOOSE * bound:
        long_s = LONG_FACTOR * seconds
        longer = plan_full(problem, Limit(long_s), full.plan)
        best = longer.plan
        bound = longer.bound if bound is None else min(bound, longer.bound or bound)
    assert bound is not None
    return {
        "family": family,
        "seed": seed,
        "held_out": seed >= HELD_OUT_FROM,
        "limit_s": seconds,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "long_s": long_s,
        "optimal": full.optimal,
        "first_of_best": plan_fast(problem, 0).value / best.value,
        "fast_of_best": fast.value / best.value,
        "full_of_best": full.plan.value / best.value,
        "fast_of_bound": fast.value / bound,
        "full_of_bound": full.plan.value / bound,
        "best_of_bound": best.value / bound,
        "gain_over_fifo": value_of(problem, fast) / value_of(problem, fifo) - 1,
        "utilization": utilization(problem, fast),
        "useful_utilization": useful_utilization(problem, fast),
        "utilization_fifo": utilization(problem, fifo),
        "useful_utilization_fifo": useful_utilization(problem, fifo),
        "completed": completed(problem, fast),
        "completed_fifo": completed(problem, fifo),
        "violations": len(verify_plan(problem, fast)) + len(verify_plan(problem, full.plan)),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, P5, median, P95, mean of at least one value."""
    cuts = quantiles(values, n=20, method="inclusive") if len(values) > 1 else list(values) * 19
    return {"min": min(values), "p5": cuts[0], "median": cuts[9], "p95": cuts[18], "mean": mean(values)}


def spreads(rows: Sequence[Row], measure: str, held_out: bool) -> list[Row]:
    """A measure's distribution per family, and over all of them."""
    chosen = [row for row in rows if row["held_out"] == held_out]
    found = []
    for family in (*FAMILIES, "all"):
        values = [row[measure] for row in chosen if family in (row["family"], "all")]
        if values:
            found.append({"family": family, "draws": len(values), **spread(values)})
    return found

"""Jobs that accept several pools, the slow and obvious way: every assignment tried, every pool's optimum by trying everything.

The worth of a plan in the currency in which pools compare: a job's gain times its least work anywhere ÷ its least work here.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np

from services.allocator.core.plan import Plan
from services.allocator.core.pool_choice import without_queued
from services.allocator.core.pose import Posed
from services.allocator.core.value import job_gains
from tests.oracle.brute_force import brute_force


def least_works(everybody: dict[str, Posed]) -> dict[str, dict[str, int]]:
    """Least GPU-steps by job and pool, where the pool can form one of its sizes and refuses it not."""
    found: dict[str, dict[str, int]] = {}
    for pool, posed in everybody.items():
        problem = posed.problem
        for row, job_id in enumerate(problem.job_ids):
            options = range(int(problem.option_ptr[row]), int(problem.option_ptr[row + 1]))
            works = [
                int(problem.option_gpus[o] * problem.option_steps[o]) for o in options if problem.option_class[o] >= 0
            ]
            if works and not problem.job_refusal[row]:
                found.setdefault(job_id, {})[pool] = min(works)
    return found


def worth(plans: dict[str, tuple[Posed, Plan]], works: dict[str, dict[str, int]]) -> Fraction:
    """Of these plans together."""
    total = Fraction(0)
    for pool, (posed, plan) in plans.items():
        unit = posed.problem.weight_one
        total += Fraction(plan.value, unit)
        gains = job_gains(posed.problem, plan.start, plan.option).tolist()
        for job_id, gain in zip(posed.problem.job_ids, gains, strict=True):
            if gain and len(works[job_id]) > 1:
                total -= Fraction(gain, unit) * (1 - Fraction(min(works[job_id].values()), works[job_id][pool]))
    return total


def best_worth(everybody: dict[str, Posed], works: dict[str, dict[str, int]]) -> Fraction:
    """The best any assignment with any legal plans can have. Densities are rounded down, by less than a thousandth."""
    choices = [[(job_id, pool) for pool in pools] for job_id, pools in sorted(works.items()) if len(pools) > 1]
    best, known = None, dict[tuple[str, frozenset[str]], Fraction]()
    for assignment in product(*choices):
        total = Fraction(0)
        for pool, posed in everybody.items():
            others = frozenset(job_id for job_id, chosen in assignment if chosen != pool)
            if (pool, others) not in known:
                known[pool, others] = _optimum(without_queued(posed, others), pool, works)
            total += known[pool, others]
        best = total if best is None else max(best, total)
    assert best is not None
    return best


def _optimum(posed: Posed, pool: str, works: dict[str, dict[str, int]]) -> Fraction:
    problem = posed.problem
    table = problem.option_table.copy()
    for row, job_id in enumerate(problem.job_ids):
        rows = slice(int(problem.option_ptr[row]), int(problem.option_ptr[row + 1]))
        if len(works.get(job_id, {})) > 1:
            density = problem.option_density[rows]
            table[rows, _density_column()] = density * min(works[job_id].values()) // works[job_id][pool]
    return Fraction(brute_force(replace(problem, option_table=np.ascontiguousarray(table))), problem.weight_one)


def _density_column() -> int:
    from services.allocator.core.columns import OptionColumn

    return int(OptionColumn.DENSITY)

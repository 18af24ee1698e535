"""The plan of a problem that was planned just before: many decisions, such as those on reports that a job started, change nothing in it.

Planning is a function of problem, budget and seed, so remembering its last answer changes no decision. Kept per pool in the index of
the state, which is derived and never stored. Refuses: problems that are alike but not equal. Read next: `pool_choice.py`.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any

from services.allocator.core.heuristic import plan_fast
from services.allocator.core.index import Index
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Problem

_ARRAYS = attrgetter(*(each.name for each in fields(Problem) if each.type == "Ints"))
_OTHERS = attrgetter(*(each.name for each in fields(Problem) if each.type != "Ints"))


def plan_or_last(index: Index, pool: str, problem: Problem, iterations: int, seed: int) -> Plan:
    """`plan_fast(problem, iterations, seed)`, remembered if it was asked for the same last."""
    last = index.planned.get(pool)
    if last is not None:
        before, budget, stream, plan = last
        if (budget, stream) == (iterations, seed) and is_same(before, problem):
            return plan
    plan = plan_fast(problem, iterations, seed)
    index.planned[pool] = (problem, iterations, seed, plan)
    return plan


def is_same(one: Problem, other: Problem) -> bool:
    """Whether two problems are equal in every fact."""
    if _OTHERS(one) != _OTHERS(other):
        return False
    return all(_equal(mine, yours) for mine, yours in zip(_ARRAYS(one), _ARRAYS(other), strict=True))


def _equal(mine: Any, yours: Any) -> bool:
    return mine is yours or (mine.shape == yours.shape and mine.tobytes() == yours.tobytes())

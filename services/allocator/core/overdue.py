"""Overdue jobs go first, one after the other by submission: nobody else is planned in their way, whatever it is worth. Pure.

In the objective an overdue job weighs more than all that isn't overdue, but weights can be outbid: a long large job is put off for
many short small ones, again and again. So where a plan has an overdue job later than it could start if nobody but those overdue
before it waited, the plan is made again around the earliest places of all overdue jobs. A plan that delays none is left as it is.
What follows from that: docs/policy.md, "The longest wait". Read next: `commit.py` (who calls), `pins.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from services.allocator.core.columns import JobColumn
from services.allocator.core.heuristic import plan_compared, plan_fast
from services.allocator.core.pins import Pin, with_held, with_pins
from services.allocator.core.plan import Plan
from services.allocator.core.pose import Posed
from services.allocator.core.problem import Problem
from services.allocator.core.reasons import Reason
from services.allocator.core.standing import OVERDUE_PRIORITY
from services.allocator.core.verify import verify_plan

HELD_MAX = 16
"""Overdue jobs that get a place of their own per decision and pool, the earliest submitted first; each costs a plan of one job."""


def overdue_first(posed: Posed, problem: Problem, plan: Plan, budget: int, seed: int) -> Plan:
    """`plan`, or one that lets no overdue job of the problem wait for anybody else. `problem`: that of `posed`, perhaps with pins."""
    rows = np.flatnonzero((problem.job_priority >= OVERDUE_PRIORITY) & (problem.job_refusal == Reason.NONE)).tolist()
    if not rows or all(plan.start[row] == 0 for row in rows):
        return plan
    rows.sort(key=lambda row: (posed.queued[row].submitted_ms, posed.queued[row].arrival))
    held: list[Pin] = []
    for row in rows[:HELD_MAX]:
        alone = plan_compared(_only(with_pins(problem, held), row), 0, seed)
        if alone.start[row] >= 0:
            held.append(
                Pin(problem.job_ids[row], row, int(alone.option[row]), int(alone.first_gpu[row]), int(alone.start[row]))
            )
    if all(0 <= plan.start[pin.row] <= pin.step for pin in held):
        return plan
    rest = with_pins(problem, held)
    found = with_held(problem, plan_fast(rest, budget, seed), held)
    return plan if verify_plan(problem, found) else found


def _only(problem: Problem, row: int) -> Problem:
    """The problem of one queued job beside what runs and the applications."""
    table = problem.job_table.copy()
    others = np.arange(problem.jobs) != row
    table[others, JobColumn.REFUSAL] = int(Reason.PLANNED_LATER)
    return replace(problem, job_table=table)

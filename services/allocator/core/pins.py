"""Jobs held to a place in a plan: the problem of everybody else, and the plan of both together. Pure.

For jobs that keep what they were promised (`planned_starts.py`) and for overdue ones (`overdue.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from services.allocator.core.columns import JobColumn
from services.allocator.core.heuristic import finished_plan, kept_rows
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Ints, Problem
from services.allocator.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Pin:
    """A queued job's row in the problem, with a place it may be held to: option row, first GPU, step."""

    job_id: str
    row: int
    option: int
    first: int
    step: int


def cap_used(problem: Problem, held: list[Pin]) -> Ints:
    used = problem.cap_used.copy()
    for pin in held:
        for cap in problem.job_caps[pin.row].tolist():
            if cap >= 0:
                used[cap, pin.step : pin.step + int(problem.option_steps[pin.option])] += problem.option_gpus[
                    pin.option
                ]
    return used


def with_pins(problem: Problem, held: list[Pin]) -> Problem:
    """The problem of everybody else: held jobs are out of it, their blocks reserved as long as they may hold them."""
    table = problem.job_table.copy()
    rows = []
    for pin in held:
        table[pin.row, JobColumn.REFUSAL] = int(Reason.PLANNED_LATER)
        end = min(problem.steps, pin.step + int(problem.option_hold[pin.option]))
        rows.append((pin.first, int(problem.option_gpus[pin.option]), pin.step, end))
    return replace(
        problem,
        job_table=table,
        reservation_ids=(*problem.reservation_ids, *(pin.job_id for pin in held)),
        reservations=np.concatenate((problem.reservations, np.array(rows, dtype=np.int64).reshape(-1, 4))),
        cap_used=cap_used(problem, held),
    )


def with_held(problem: Problem, plan: Plan, held: list[Pin]) -> Plan:
    """The others' plan with the held jobs on their places."""
    start, first, option = plan.start.copy(), plan.first_gpu.copy(), plan.option.copy()
    for pin in held:
        start[pin.row], first[pin.row], option[pin.row] = pin.step, pin.first, pin.option
    promised = np.array([pin.row for pin in held], dtype=np.int64)
    return finished_plan(problem, plan.mode, kept_rows(start, first, option), plan.segments, promised)

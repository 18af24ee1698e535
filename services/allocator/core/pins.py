"""Jobs held to a place in a plan: the problem of everybody else, and the plan of both together. Pure.

For jobs that keep what they were promised (`planned_starts.py`) and for those with a claim (`claims.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.columns import JobColumn
from services.allocator.core.gpu_states import GpuState
from services.allocator.core.heuristic import finished_plan, kept_rows
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Ints, Problem
from services.allocator.core.reasons import Reason

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pin:
    """A queued job's row in the problem, with a place it may be held to: option row, first GPU, step. `step` may be the end of the
    window: then it has no place in it, and only its block is held.

    `closed`: nobody else may hold its block from this step on. It is `step`, or less: steps count from now, and the last one before the
    job's moment may be over after it.
    """

    job_id: str
    row: int
    option: int
    first: int
    step: int
    closed: int


def cap_used(problem: Problem, held: list[Pin], *, closed: bool = False) -> Ints:
    """GPUs used of each cap per step with the held jobs; `closed`: as others see it."""
    used = problem.cap_used.copy()
    for pin in held:
        begin, end = pin.closed if closed else pin.step, pin.step + int(problem.option_steps[pin.option])
        for cap in problem.job_caps[pin.row].tolist():
            if cap >= 0:
                used[cap, begin:end] += problem.option_gpus[pin.option]
    return used


def with_pins(problem: Problem, held: list[Pin]) -> Problem:
    """The problem of everybody else: held jobs are out of it, their blocks reserved from `closed` on as long as they may hold them."""
    table = problem.job_table.copy()
    rows = []
    for pin in held:
        table[pin.row, JobColumn.REFUSAL] = int(Reason.PLANNED_LATER)
        end = min(problem.steps, pin.step + int(problem.option_hold[pin.option]))
        rows.append((pin.first, int(problem.option_gpus[pin.option]), pin.closed, end))
    return replace(
        problem,
        job_table=table,
        reservation_ids=(*problem.reservation_ids, *(pin.job_id for pin in held)),
        reservations=np.concatenate((problem.reservations, np.array(rows, dtype=np.int64).reshape(-1, 4))),
        cap_used=cap_used(problem, held, closed=True),
    )


def with_held(problem: Problem, plan: Plan, held: list[Pin]) -> Plan:
    """The others' plan with the held jobs on their places."""
    start, first, option = plan.start.copy(), plan.first_gpu.copy(), plan.option.copy()
    for pin in (pin for pin in held if pin.step < problem.steps):
        start[pin.row], first[pin.row], option[pin.row] = pin.step, pin.first, pin.option
    blocks = [(pin.first, int(problem.option_gpus[pin.option]), pin.closed) for pin in held]
    promised = np.array(blocks, dtype=np.int64).reshape(-1, 3)
    return finished_plan(problem, plan.mode, kept_rows(start, first, option), plan.segments, promised)


def is_respected(problem: Problem, plan: Plan, held: list[Pin]) -> bool:
    """Whether the plan has the last of the held jobs no later than it is held to, and whoever starts now leaves its block in time. The
    other held jobs may be in its way: they come before it."""
    pin, before = held[-1], {other.row for other in held}
    start = int(plan.start[pin.row])
    if start == 0:
        return True
    if pin.step < problem.steps and not 0 < start <= pin.step:
        return False
    return not any(row not in before for row in outlasting(problem, plan, pin))


def outlasting(problem: Problem, plan: Plan, pin: Pin) -> list[int]:
    """Rows of the jobs that start now on the block of a held job and may hold it longer than others may."""
    rows = plan.starts_now()
    options, firsts = plan.option[rows], plan.first_gpu[rows]
    last = pin.first + int(problem.option_gpus[pin.option])
    meets = (firsts < last) & (firsts + problem.option_gpus[options] > pin.first)
    found: list[int] = rows[meets & (problem.option_hold[options] > pin.closed) & (rows != pin.row)].tolist()
    return found


def taken_from(problem: Problem, plan: Plan, option: int, step: int) -> Bools:
    """By GPU, whether a job of this option can't have it from the step on: what runs is still there, or the GPU is closed, reserved
    or an application's in the plan before the job has left."""
    end = step + int(problem.option_hold[option])
    taken: Bools = problem.gpu_state != GpuState.USABLE
    late = problem.running_steps > step
    for first, size in zip(problem.running_first[late].tolist(), problem.running_gpus[late].tolist(), strict=True):
        taken[first : first + size] = True
    for first, size, since, until in problem.reservations.tolist():
        if since < end and until > step:
            taken[first : first + size] = True
    rows = plan.segments
    taken[rows[(rows[:, 2] < end) & (rows[:, 3] > step), 1]] = True
    return taken


def has_room(problem: Problem, row: int, option: int, step: int) -> bool:
    """Whether the groups of a job may hold its GPUs from the step on."""
    caps = [cap for cap in problem.job_caps[row].tolist() if cap >= 0]
    used = problem.cap_used[caps, step : step + int(problem.option_steps[option])]
    return not (used + problem.option_gpus[option] > problem.cap_gpus[caps][:, None]).any()

"""Jobs with a claim go first, one after the other: nobody else is planned in their way, whatever it is worth. Pure.

A claim have overdue jobs, by submission, then jobs inside their team's guarantee, by submission. In the objective both weigh more
than everybody else, but weights can be outbid: a long large job is put off for many short small ones, again and again. So each is
given the earliest place beside what runs and the claims before it, and its block is *closed* to all others from the whole step on
that lies before the moment at which what holds it now was placed to have left: counted in whole steps from now on, anything longer
could outlast that moment, a little at a time without end. A plan that respects all claims is left as it is.

What follows from that, with the proof: docs/policy.md, "The longest wait". Read next: `commit.py` (who calls), `pins.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from services.allocator.core.columns import JobColumn, OptionColumn
from services.allocator.core.config import Policy
from services.allocator.core.gpu_states import GpuState
from services.allocator.core.heuristic import plan_compared, plan_fast
from services.allocator.core.pins import Bools, Pin, has_room, is_respected, taken_from, with_held, with_pins
from services.allocator.core.plan import Plan
from services.allocator.core.pose import Posed
from services.allocator.core.problem import Ints, Problem
from services.allocator.core.reasons import Reason
from services.allocator.core.verify import verify_plan

Values = TypeVar("Values", Ints, Bools)

CLAIMED_MAX = 16
"""Jobs that get a place of their own per decision and pool; each costs a plan of one job. The others are planned together after them,
still before everybody else."""
ROUNDED_STEPS = 3
"""Steps in which a block may begin to be free in the plan that is ready no later than the planner's choice: ends are rounded up to
steps, once for what runs and once for a claim before it."""


def claims_first(posed: Posed, problem: Problem, plan: Plan, budget: int, policy: Policy) -> Plan:
    """`plan`, or one that lets no claim of the problem wait for anybody else. `problem`: that of `posed`, perhaps with pins."""
    rows = _claimants(posed, problem)
    if not rows or all(plan.start[row] == 0 for row in rows):
        return plan
    held = _Claims(posed, problem, policy).placed(rows)
    if all(is_respected(problem, plan, held[: at + 1]) for at in range(len(held))):
        return plan
    found = with_held(problem, plan_fast(with_pins(problem, held), budget, policy.seed), held)
    return plan if verify_plan(problem, found) else found


def _claimants(posed: Posed, problem: Problem) -> list[int]:
    """Rows of jobs with a claim that may start: overdue ones, then those inside a guarantee; the earliest submitted first."""
    tiers = posed.claims.tiers
    if not tiers:
        return []
    rows = [
        row for row, name in enumerate(problem.job_ids) if name in tiers and problem.job_refusal[row] == Reason.NONE
    ]
    return sorted(
        rows, key=lambda row: (-tiers[problem.job_ids[row]], posed.queued[row].submitted_ms, posed.queued[row].arrival)
    )


class _Claims:
    """The places of all claims in one problem, found one after the other."""

    def __init__(self, posed: Posed, problem: Problem, policy: Policy) -> None:
        self._posed, self._problem, self._policy = posed, problem, policy
        self._room = dict(posed.claims.room)
        """By team, GPUs of its guarantee that nobody has yet, and of those what jobs still to come need at least."""
        self._due: dict[str, int] = {}
        self._inside = frozenset(row for row, name in enumerate(problem.job_ids) if name in posed.claims.inside)
        self._pins: list[Pin] = []
        self._held: list[tuple[int, int, int, int]] = []
        """Of each of them: GPUs from and to, step, and when the job has left them, in milliseconds from now."""
        self._reserved: list[list[int]] = problem.reservations.tolist()
        self._left_ms = np.zeros(problem.gpus, np.int64)
        rows = zip(problem.running_ids, problem.running_first.tolist(), problem.running_gpus.tolist(), strict=True)
        for name, first, size in rows:
            block = self._left_ms[first : first + size]
            np.maximum(block, posed.left_ms.get(name, 0), out=block)

    def placed(self, rows: list[int]) -> list[Pin]:
        for row in rows:
            if row in self._inside:
                self._due[self._team(row)] = self._due.get(self._team(row), 0) + self._smallest(row)
        for row in rows[:CLAIMED_MAX]:
            self._claim(row)
        if len(rows) > CLAIMED_MAX:
            self._claim_together(rows[CLAIMED_MAX:])
        return self._pins

    def _claim(self, row: int) -> None:
        """The earliest place; of blocks that come free in the same step the one that does so first, so that the moment never moves later
        where the planner's choice among them changes. What is overdue waits for no larger size than it needs."""
        beside = with_pins(self._problem, self._pins)
        alone = plan_compared(_only(beside, {row: self._most(row)}), 0, self._policy.seed)
        if alone.start[row] != 0 and self._is_overdue(row) and len(self._posed.queued[row].spec.sizes) > 1:
            alone = plan_compared(_only(beside, {row: self._smallest(row)}), 0, self._policy.seed)
        if alone.start[row] < 0:
            self._claim_beyond(row)
            return
        if alone.start[row] == 0:
            self._keep(Pin(beside.job_ids[row], row, int(alone.option[row]), int(alone.first_gpu[row]), 0, 0), 0)
        else:
            self._keep(*self._soonest(beside, row, alone))

    def _soonest(self, beside: Problem, row: int, alone: Plan) -> tuple[Pin, int]:
        """The place that is ready first, to the millisecond, and when that is; the planner's own unless another one is."""
        option, first, begin = int(alone.option[row]), int(alone.first_gpu[row]), int(alone.start[row])
        size, firsts = int(beside.option_gpus[option]), beside.topology.blocks(int(beside.option_class[option]))
        best: tuple[int, int, int] | None = None
        for step in range(begin, min(begin + ROUNDED_STEPS, beside.steps)):
            if step > begin and not has_room(beside, row, option, step):
                continue
            ready = self._ready(alone, size, step)
            if best is None:
                best = int(ready[first]), step, first
            ready = np.where(_block_max(taken_from(beside, alone, option, step), size), 1 << 62, ready)[firsts]
            at = int(np.argmin(ready))
            if ready[at] < best[0]:
                best = int(ready[at]), step, int(firsts[at])
        assert best is not None, "the planner's own place is one"
        ready_ms, step, first = best
        return Pin(
            beside.job_ids[row], row, option, first, step, self._closed(beside, row, size, step, ready_ms)
        ), ready_ms

    def _claim_together(self, rows: list[int]) -> None:
        wanted = {row: 0 if self._is_overdue(row) else self._smallest(row) for row in rows}
        beside = with_pins(self._problem, self._pins)
        plan = plan_compared(_only(beside, wanted), 0, self._policy.seed)
        for row in (row for row in rows if plan.start[row] >= 0):
            option, first, step = int(plan.option[row]), int(plan.first_gpu[row]), int(plan.start[row])
            self._keep(Pin(beside.job_ids[row], row, option, first, step, step), step * self._policy.step_ms)

    def _claim_beyond(self, row: int) -> None:
        """No place in the window because of what runs: of the block that comes free first nobody takes more than the window."""
        problem, steps = self._problem, self._problem.steps
        most = self._smallest(row) if self._is_overdue(row) else self._most(row)
        best: tuple[int, int, int] | None = None
        unusable = np.concatenate(([0], np.cumsum(problem.gpu_state != GpuState.USABLE)))
        for option in range(int(problem.option_ptr[row]), int(problem.option_ptr[row + 1])):
            size, level = int(problem.option_gpus[option]), int(problem.option_class[option])
            if level < 0 or (most and size > most):
                continue
            firsts = problem.topology.blocks(level)
            firsts = firsts[unusable[firsts + size] == unusable[firsts]]
            ready = _block_max(self._left_ms, size)[firsts]
            if len(firsts):
                at = int(np.lexsort((firsts, ready))[0])
                best = min(best or (1 << 62, 0, 0), (int(ready[at]), option, int(firsts[at])))
        closed = -1 if best is None else min(steps - 1, best[0] // self._policy.step_ms)
        if best is not None and closed > steps - ROUNDED_STEPS:  # else something else is in its way
            self._keep(Pin(problem.job_ids[row], row, best[1], best[2], steps, closed), best[0])

    def _closed(self, beside: Problem, row: int, size: int, step: int, ready_ms: int) -> int:
        """From which step on its block is closed to others: whole steps before it is ready; where it waits for the maximum of a group, a
        step before that has room."""
        closed = min(step, ready_ms // self._policy.step_ms)
        for cap in (cap for cap in beside.job_caps[row].tolist() if cap >= 0):
            full = np.flatnonzero(beside.cap_used[cap, :step] + size > beside.cap_gpus[cap])
            closed = max([closed, *full.tolist()])
        return closed

    def _ready(self, alone: Plan, size: int, step: int) -> Ints:
        """By first GPU of `size` consecutive ones: when all have left them who are there before `step`, in milliseconds from now."""
        ready, step_ms = self._left_ms.copy(), self._policy.step_ms
        for first, last, begin, left_ms in self._held:
            if begin < step:
                block = ready[first:last]
                np.maximum(block, left_ms, out=block)
        for first, gpus, _, end in self._reserved:
            if end <= step:
                block = ready[first : first + gpus]
                np.maximum(block, end * step_ms, out=block)
        before = alone.segments[alone.segments[:, 3] <= step]
        np.maximum.at(ready, before[:, 1], before[:, 3] * step_ms)
        return _block_max(ready, size)

    def _keep(self, pin: Pin, ready_ms: int) -> None:
        self._pins.append(pin)
        size, hold = self._problem.option_table[pin.option, [OptionColumn.GPUS, OptionColumn.HOLD]].tolist()
        self._held.append((pin.first, pin.first + size, pin.step, ready_ms + hold * self._policy.step_ms))
        if pin.row in self._inside:
            team = self._team(pin.row)
            self._due[team] = self._due[team] - self._smallest(pin.row)
            self._room[team] = self._room.get(team, 0) - size

    def _most(self, row: int) -> int:
        """The largest size it may claim; 0: any. Inside a guarantee: what leaves room for those of its team that are, too."""
        if self._is_overdue(row):
            return 0
        team, least = self._team(row), self._smallest(row)
        return max(least, self._room.get(team, 0) - self._due[team] + least)

    def _is_overdue(self, row: int) -> bool:
        return self._problem.job_ids[row] in self._posed.claims.overdue

    def _team(self, row: int) -> str:
        return self._posed.queued[row].spec.team

    def _smallest(self, row: int) -> int:
        return min(self._posed.queued[row].spec.sizes)


def _block_max(values: Values, size: int) -> Values:
    """The largest of each `size` (a power of two) consecutive values, by the first."""
    width = 1
    while width < size:
        values = np.maximum(values[:-width], values[width:])
        width *= 2
    return values


def _only(problem: Problem, wanted: Mapping[int, int]) -> Problem:
    """The problem of some queued jobs beside what runs and the applications; `wanted`: the largest size of each, 0 for any."""
    table, options = problem.job_table.copy(), problem.option_table
    others = np.ones(problem.jobs, np.bool_)
    others[list(wanted)] = False
    table[others, JobColumn.REFUSAL] = int(Reason.PLANNED_LATER)
    for row, most in wanted.items():
        rows = slice(int(problem.option_ptr[row]), int(problem.option_ptr[row + 1]))
        if most and (options[rows, OptionColumn.GPUS] > most).any():
            options = options.copy()
            options[rows, OptionColumn.CLASS][options[rows, OptionColumn.GPUS] > most] = -1
    return replace(problem, job_table=table, option_table=options)

"""Why each job that doesn't start now waits, and who holds what it waits for.

The grid of the finished plan decides, so the reason always agrees with the plan it is published with. Nothing here
chooses anything. The codes and their sentences are in `reasons.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.allocator.core.columns import OptionColumn
from services.allocator.core.gpu_states import CardState, GpuState
from services.allocator.core.kernels.rows import has_open_block
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Ints, Problem
from services.allocator.core.reasons import Reason

_SHAPE_COLUMNS = [OptionColumn.CLASS, OptionColumn.HOLD]
_WITHHELD = (("free_or_reserved", Reason.RESERVED), ("free_or_withheld", Reason.TO_BE_CUT))
"""What to say where a block is free but for what operators ordered: a reservation ends by itself, so it is named where it alone stands
in the way; an order to cut cards is named where nothing fits without them."""
BLOCKERS_MAX = 8  # ids named per job: enough to act on, small enough for an event


def reasons_of(problem: Problem, plan: Plan, promised: Ints | None = None) -> Ints:
    """A `Reason` per queued job; NONE where the job starts at step 0. `promised`: blocks that were held for jobs (`pins.py`), as rows of
    first GPU, size, and the step from which they are closed to others."""
    reasons: Ints = problem.job_refusal.copy()
    waiting = np.flatnonzero((reasons == Reason.NONE) & (plan.start != 0))
    if len(waiting) == 0:
        return reasons
    now = Openings(problem, plan, promised)
    known: dict[tuple[int, ...], int] = {}
    pointers, table = problem.option_ptr.tolist(), problem.option_table[:, _SHAPE_COLUMNS].tolist()
    planned, earliest = (plan.start > 0).tolist(), problem.job_earliest.tolist()
    capped = _capped_now(problem, plan)
    for job in waiting.tolist():
        rows = [(k, hold) for k, hold in table[pointers[job] : pointers[job + 1]] if k >= 0]
        if capped[job] and rows and earliest[job] == 0 and now.any_gpu:
            reasons[job] = Reason.QUOTA_EXCEEDED
            continue
        shape = (earliest[job], planned[job], *(value for row in rows for value in row))
        if shape not in known:
            known[shape] = int(_reason(problem, now, rows, earliest[job], planned[job]))
        reasons[job] = Reason.CUT_UNDER_WAY if planned[job] and now.is_coming(plan, job) else known[shape]
    return reasons


def _capped_now(problem: Problem, plan: Plan) -> list[bool]:
    """Per queued job whether a cap alone keeps even its smallest formable size from starting now."""
    if not len(problem.cap_gpus):
        return [False] * problem.jobs
    left = problem.cap_gpus - problem.cap_used[:, 0]
    for job in np.flatnonzero(plan.start == 0).tolist():
        for cap in problem.job_caps[job].tolist():
            if cap >= 0:
                left[cap] -= problem.option_gpus[plan.option[job]]
    smallest = np.full(problem.jobs, problem.gpus + 1, np.int64)
    job_of = np.repeat(np.arange(problem.jobs), np.diff(problem.option_ptr))
    formable = problem.option_class >= 0
    np.minimum.at(smallest, job_of[formable], problem.option_gpus[formable])
    room = np.where(problem.job_caps >= 0, np.append(left, 0)[problem.job_caps], problem.gpus + 1).min(axis=1)
    capped: list[bool] = (room < smallest).tolist()
    return capped


class Openings:
    """Per GPU, what happens from step 0 on: the first step taken by applications, reservations and batch jobs."""

    def __init__(self, problem: Problem, plan: Plan, promised: Ints | None = None) -> None:
        steps, gpus = problem.steps, problem.gpus
        self.guard = np.full(gpus, steps, np.int64)  # first step of an application
        if len(plan.segments):
            np.minimum.at(self.guard, plan.segments[:, 1], plan.segments[:, 2])
        self.reserved = np.full(gpus, steps, np.int64)
        for first, size, start, end in problem.reservations.tolist():
            if end > start:
                block = self.reserved[first : first + size]
                np.minimum(block, start, out=block)
        self.batch = np.full(gpus, steps, np.int64)
        for first, size in zip(problem.running_first.tolist(), problem.running_gpus.tolist(), strict=True):
            self.batch[first : first + size] = 0
        for job in np.flatnonzero(plan.start >= 0).tolist():
            first = int(plan.first_gpu[job])
            block = self.batch[first : first + int(problem.option_gpus[plan.option[job]])]
            np.minimum(block, plan.start[job], out=block)
        cards = problem.card_state if len(problem.card_state) else np.full(gpus, CardState.HERE, np.int64)
        self._coming, self._problem = cards == CardState.COMING, problem
        usable = (problem.gpu_state == GpuState.USABLE) & ~self._coming
        under_work = (problem.gpu_state == GpuState.HELD_ONLY) & (self.batch == 0)
        # What runs on broken GPUs may take its node's other GPUs with it: they are not like any that will come free.
        sound = usable
        if under_work.any():
            sound = usable & ~np.isin(problem.topology.gpu_node, problem.topology.gpu_node[under_work])
        idle = usable & (self.guard > 0) & (self.batch > 0)
        self.any_gpu = bool((problem.gpu_state != GpuState.UNUSABLE).any())
        self.free_count = int((idle & (self.reserved > 0)).sum())
        # per mask: GPUs that are open at step 0, and the step from which each is needed by somebody else
        always = np.full(gpus, steps, np.int64)
        self._masks = {
            "usable": (usable, always),
            "on_sound_node": (sound, always),
            "usable_or_coming": (usable | self._coming, always),
            "usable_or_cut": (usable | self._coming | (cards == CardState.ELSEWHERE), always),
            "free": (idle & (self.reserved > 0), np.minimum(self.guard, self.reserved)),
            "free_or_reserved": (idle & (cards != CardState.TO_BE_CUT), self.guard),
            "free_or_withheld": (idle, self.guard),
        }
        self.promised = promised is not None
        if promised is not None:
            until = self._masks["free"][1].copy()
            for first, size, closed in promised.tolist():
                block = until[first : first + size]
                np.minimum(block, closed, out=block)
            self._masks["unpromised"] = (self._masks["free"][0], until)
        self._topology, self._steps = problem.topology, steps
        self._known: dict[tuple[str, int, int], bool] = {}

    def is_coming(self, plan: Plan, job: int) -> bool:
        """Whether a planned job is to start on slots that aren't there yet."""
        first = int(plan.first_gpu[job])
        return bool(self._coming[first : first + int(self._problem.option_gpus[plan.option[job]])].any())

    def has_block(self, mask: str, k: int, hold: int = 0) -> bool:
        """Whether a block of class k lies in the mask and stays open for `hold` steps."""
        hold = min(hold, self._steps)
        key = (mask, k, hold)
        if key not in self._known:
            open_now, until = self._masks[mask]
            firsts = self._topology.blocks(k)
            self._known[key] = bool(has_open_block(open_now, until, hold, firsts, 1 << k))
        return self._known[key]


def _reason(problem: Problem, now: Openings, rows: list[tuple[int, int]], earliest: int, planned: bool) -> Reason:
    """The first of the known causes that applies, from the most to the least permanent. Rows: (size class, hold)."""
    if not rows and problem.gpus:
        return Reason.SIZE_EXCEEDS_POOL
    if not now.any_gpu:
        return Reason.NO_CAPACITY
    if earliest >= problem.steps:
        return Reason.BEYOND_WINDOW
    if earliest > 0:
        return Reason.NOT_BEFORE
    if not any(now.has_block("usable", k) for k, _ in rows):
        if any(now.has_block("usable_or_coming", k) for k, _ in rows):
            return Reason.CUT_UNDER_WAY
        cut = any(now.has_block("usable_or_cut", k) for k, _ in rows)
        return Reason.CUT_FOR_ANOTHER_POOL if cut else Reason.NODE_DEGRADED
    if not any(now.has_block("free", k) for k, _ in rows):
        for mask, reason in _WITHHELD:
            if any(now.has_block(mask, k) for k, _ in rows):
                return reason
        if not any(now.has_block("on_sound_node", k) for k, _ in rows):
            return Reason.NODE_DEGRADED
        short = now.free_count < min(1 << k for k, _ in rows)
        return Reason.WAITING_FOR_GPUS if short else Reason.FRAGMENTED
    if not any(now.has_block("free", k, hold) for k, hold in rows):
        for mask, reason in _WITHHELD:
            if any(now.has_block(mask, k, hold) for k, hold in rows):
                return reason
        return Reason.APPLICATION_RETURN
    if now.promised and not any(now.has_block("unpromised", k, hold) for k, hold in rows):
        return Reason.PROMISED
    return Reason.PLANNED_LATER if planned else Reason.BEHIND_PRIORITY


@dataclass(frozen=True, slots=True)
class Blocker:
    """Who holds GPUs a waiting job could use. `kind` is running, planned, application or reservation."""

    kind: str
    id: str
    gpus: int
    until_step: int  # first step after its hold, capped at the window


def blockers_of(problem: Problem, plan: Plan, job: int, limit: int = BLOCKERS_MAX) -> tuple[Blocker, ...]:
    """Who stands in the way of this job at step 0, largest holders first.

    For a planned job: whoever holds the GPUs of its planned block before its start; otherwise everyone holding GPUs.
    """
    window, block = problem.steps, range(problem.gpus)
    if plan.start[job] > 0:
        first, window = int(plan.first_gpu[job]), int(plan.start[job])
        block = range(first, first + int(problem.option_gpus[plan.option[job]]))
    found: list[Blocker] = []

    def add(kind: str, name: str, first: int, size: int, start: int, end: int) -> None:
        overlap = len(range(max(first, block.start), min(first + size, block.stop)))
        if overlap > 0 and start < window and end > start:
            found.append(Blocker(kind, name, overlap, min(end, problem.steps)))

    for name, first, size, left in zip(
        problem.running_ids,
        problem.running_first.tolist(),
        problem.running_gpus.tolist(),
        problem.running_hold.tolist(),
        strict=True,
    ):
        add("running", name, first, size, 0, left)
    for other in np.flatnonzero(plan.start >= 0).tolist():
        if other != job:
            start, row = int(plan.start[other]), int(plan.option[other])
            size = int(problem.option_gpus[row])
            end = start + int(problem.option_steps[row])
            add("planned", problem.job_ids[other], int(plan.first_gpu[other]), size, start, end)
    for row, name in enumerate(problem.reservation_ids):
        first, size, start, end = problem.reservations[row].tolist()
        add("reservation", name, first, size, start, end)
    held: dict[int, tuple[int, int]] = {}
    for app, gpu, start, end in plan.segments.tolist():
        if gpu in block and start < window:
            gpus, until = held.get(app, (0, 0))
            held[app] = (gpus + 1, max(until, end))
    found.extend(Blocker("application", problem.app_ids[app], *held[app]) for app in sorted(held))
    found.sort(key=lambda blocker: (-blocker.gpus, blocker.kind, blocker.id))
    return tuple(found[:limit])

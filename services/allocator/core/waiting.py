"""Why each job that doesn't start now waits, and who holds what it waits for.

The grid of the finished plan decides, so the reason always agrees with the plan it is published with. Nothing here
chooses anything. The codes and their sentences are in `reasons.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.allocator.core.plan import Plan
from services.allocator.core.problem import GpuState, Ints, Problem
from services.allocator.core.reasons import Reason

BLOCKERS_MAX = 8  # ids named per job: enough to act on, small enough for an event


def reasons_of(problem: Problem, plan: Plan) -> Ints:
    """A `Reason` per queued job; NONE where the job starts at step 0."""
    reasons = np.where(problem.job_refusal != 0, problem.job_refusal, Reason.NONE)
    waiting = np.flatnonzero((reasons == Reason.NONE) & (plan.start != 0))
    if len(waiting) == 0:
        return reasons
    now = _Now(problem, plan)
    known: dict[tuple[int, ...], int] = {}
    for job in waiting.tolist():
        rows = range(int(problem.option_ptr[job]), int(problem.option_ptr[job + 1]))
        earliest, planned = int(problem.job_earliest[job]), int(plan.start[job]) > 0
        shape = (
            earliest,
            planned,
            *(int(problem.option_class[o]) for o in rows),
            *(int(problem.option_hold[o]) for o in rows),
        )
        if shape not in known:
            known[shape] = int(_reason(problem, now, rows, earliest, planned))
        reasons[job] = known[shape]
    return reasons


class _Now:
    """Per GPU, what happens from step 0 on: the first step taken by applications, reservations and batch jobs."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
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
        self.unusable = problem.gpu_state != GpuState.USABLE
        self.taken_now = (self.guard == 0) | (self.batch == 0)
        self.free = ~self.taken_now & ~self.unusable & (self.reserved > 0)


def _blocks_all(problem: Problem, k: int, ok: np.ndarray) -> np.ndarray:
    """First GPUs of the blocks of class k in which every GPU is `ok`."""
    firsts = problem.topology.block_first[problem.topology.block_ptr[k] : problem.topology.block_ptr[k + 1]]
    sums = np.concatenate(([0], np.cumsum(ok)))
    return firsts[sums[firsts + (1 << k)] - sums[firsts] == (1 << k)]


def _reason(problem: Problem, now: _Now, rows: range, earliest: int, planned: bool) -> Reason:
    """The first of the known causes that applies, from the most to the least permanent."""
    if bool(np.all(problem.gpu_state == GpuState.UNUSABLE)):
        return Reason.NO_CAPACITY
    options = [o for o in rows if problem.option_class[o] >= 0]
    if not options:
        return Reason.SIZE_EXCEEDS_POOL
    if earliest >= problem.steps:
        return Reason.BEYOND_WINDOW
    if earliest > 0:
        return Reason.NOT_BEFORE
    classes = [int(problem.option_class[o]) for o in options]
    if not any(len(_blocks_all(problem, k, ~now.unusable)) for k in classes):
        return Reason.NODE_DEGRADED
    if int(now.free.sum()) < min(1 << k for k in classes):
        return Reason.WAITING_FOR_GPUS
    if not any(len(_blocks_all(problem, k, now.free)) for k in classes):
        free_but_reserved = ~now.taken_now & ~now.unusable
        if any(len(_blocks_all(problem, k, free_but_reserved)) for k in classes):
            return Reason.RESERVED
        return Reason.FRAGMENTED
    holds = [int(problem.option_hold[o]) for o in options]
    until = now.guard
    if not _fits_until(problem, classes, holds, now.free, np.minimum(until, now.reserved)):
        if _fits_until(problem, classes, holds, now.free, until):
            return Reason.RESERVED
        return Reason.APPLICATION_RETURN
    return Reason.PLANNED_LATER if planned else Reason.BEHIND_PRIORITY


def _fits_until(problem: Problem, classes: list[int], holds: list[int], free: np.ndarray, until: Ints) -> bool:
    """Whether some offered size finds a free block that nobody needs back before its hold ends."""
    for k, hold in zip(classes, holds, strict=True):
        ok = free & (until >= min(hold, problem.steps))
        if len(_blocks_all(problem, k, ok)):
            return True
    return False


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

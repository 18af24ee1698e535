"""FIFO and priority backfill: what a pool does without a planner. The yardsticks of every comparison.

Each application reserves its peak for the whole window, from the top of the pool, in order of mention; a reserved
GPU that demand doesn't use stays idle. FIFO: jobs in arrival order at their requested size, earliest start, then
lowest GPU, none before an earlier arrival. Priority backfill: by descending priority, then arrival, any start that fits.
"""

from __future__ import annotations

import numpy as np

from services.allocator.core.gpu_states import GpuState
from services.allocator.core.heuristic import facts_of, finished_plan
from services.allocator.core.kernels.queue import queue_in_order
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Ints, Problem


def plan_fifo(problem: Problem) -> Plan:
    """Arrival order, nobody overtakes."""
    return _queued(problem, "fifo", np.argsort(problem.job_arrival, kind="stable"), in_turn=True)


def plan_backfill(problem: Problem) -> Plan:
    """Priority order, then arrival; every gap may be used."""
    order = np.lexsort((problem.job_arrival, -problem.job_priority))
    return _queued(problem, "backfill", order, in_turn=False)


def _queued(problem: Problem, mode: str, order: Ints, *, in_turn: bool) -> Plan:
    reserved_by = reserve_peaks(problem)
    options = requested_options(problem)
    place = queue_in_order(facts_of(problem), reserved_by >= 0, order, options, in_turn)
    return finished_plan(problem, mode, place, _segments(problem, reserved_by))


def requested_options(problem: Problem) -> Ints:
    """Per job the option row of its requested size, or -1."""
    rows = np.full(problem.jobs, -1, np.int64)
    for job in range(problem.jobs):
        for row in range(int(problem.option_ptr[job]), int(problem.option_ptr[job + 1])):
            if problem.option_gpus[row] == problem.job_requested[job]:
                rows[job] = row
    return rows


def reserve_peaks(problem: Problem) -> Ints:
    """Per GPU the application that reserves it, or -1: peaks from the top, around running jobs and closed GPUs."""
    closed = problem.gpu_state != GpuState.USABLE
    for first, size in zip(problem.running_first.tolist(), problem.running_gpus.tolist(), strict=True):
        closed[first : first + size] = True
    for first, size, start, end in problem.reservations.tolist():
        closed[first : first + size] |= end > start
    open_gpus = np.flatnonzero(~closed)[::-1]
    reserved_by = np.full(problem.gpus, -1, np.int64)
    at = 0
    for app in range(problem.apps):
        peak = int(problem.app_demand[app].max())
        reserved_by[open_gpus[at : at + peak]] = app
        at += peak
    return reserved_by


def _segments(problem: Problem, reserved_by: Ints) -> Ints:
    """Demand served on the reserved GPUs, highest GPU first, as segment rows."""
    rows: list[tuple[int, int, int, int]] = []
    for app in range(problem.apps):
        for depth, gpu in enumerate(np.flatnonzero(reserved_by == app)[::-1].tolist(), start=1):
            used = np.concatenate(([0], problem.app_demand[app] >= depth, [0])).astype(np.int64)
            edges = np.flatnonzero(np.diff(used))
            rows.extend((app, gpu, int(s), int(e)) for s, e in zip(edges[::2], edges[1::2], strict=True))
    return np.array(rows, dtype=np.int64).reshape(-1, 4)

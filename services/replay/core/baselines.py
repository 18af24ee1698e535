"""The policies gpugrid is compared with, in continuous time on the same day: FIFO and priority backfill.

Both hold every application's daily peak all day, from the top of the pool (in hindsight: the peak of the day itself, so
they never miss demand), run every job at its requested size and look only when a job arrives or ends. Neither needs, or
gets, any duration: FIFO starts nobody before an earlier arrival; backfill goes through the queue by priority, then
arrival, and starts whatever fits now. Read next: `outcome.py`, `tests/oracle/replay_policies.py` (the same, naively).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from services.replay.core.blocks import FreeBlocks
from services.replay.core.day import Day, DayJob
from services.replay.core.outcome import Attempt, End, Hold, Outcome, outcome

FIFO = "fifo"
BACKFILL = "priority_backfill"

Starts = Callable[[list[DayJob], FreeBlocks], Iterable[tuple[DayJob, int]]]
"""Which queued jobs (in arrival order) start now, and at which first GPU. Each must be taken before the next is asked for."""


def fifo(day: Day) -> Outcome:
    """mission's baseline: arrival order, no priorities, no job starts before an earlier arrival."""
    return outcome(day, FIFO, _run(day, _head_only), _peak_holds(day))


def priority_backfill(day: Day) -> Outcome:
    """By descending priority, then arrival; any start that fits."""
    return outcome(day, BACKFILL, _run(day, _any_that_fits), _peak_holds(day))


def attempts_of(day: Day, policy: str) -> list[Attempt]:
    """The attempts behind the outcome of `policy` (FIFO or BACKFILL)."""
    return _run(day, {FIFO: _head_only, BACKFILL: _any_that_fits}[policy])


def _peak_holds(day: Day) -> list[Hold]:
    return [Hold(app.app_id, day.start_ms, app.peak_gpus) for app in day.apps]


def _head_only(queue: list[DayJob], free: FreeBlocks) -> Iterable[tuple[DayJob, int]]:
    for job in queue:
        first = free.lowest(job.requested)
        if first is None:
            return
        yield job, first


def _any_that_fits(queue: list[DayJob], free: FreeBlocks) -> Iterable[tuple[DayJob, int]]:
    fails = (
        free.gpus + 1
    )  # the smallest size found not to fit: nothing of that size or above does, until something ends
    for job in sorted(queue, key=lambda entry: -entry.spec.priority):  # stable: arrival order within a priority
        if job.requested >= fails:
            continue
        first = free.lowest(job.requested)
        if first is None:
            fails = job.requested
        else:
            yield job, first


def _run(day: Day, starts: Starts) -> list[Attempt]:
    """Play the day. At one moment ends come first, then arrivals, then starts."""
    free = FreeBlocks(day.gpus, day.node_gpus, sum(app.peak_gpus for app in day.apps))
    arrivals = sorted(day.jobs, key=lambda job: job.arrival_ms)
    running: list[tuple[int, int, int]] = []  # (end_ms, first GPU, size)
    queue: list[DayJob] = []
    attempts: list[Attempt] = []
    position = 0
    while position < len(arrivals) or running:
        now_ms = min(
            arrivals[position].arrival_ms if position < len(arrivals) else running[0][0],
            running[0][0] if running else arrivals[position].arrival_ms,
        )
        if now_ms >= day.end_ms:
            break
        while running and running[0][0] <= now_ms:
            _, first, size = heapq.heappop(running)
            free.release(first, size)
        while position < len(arrivals) and arrivals[position].arrival_ms <= now_ms:
            queue.append(arrivals[position])
            position += 1
        started: set[str] = set()
        for job, first in starts(queue, free):
            free.take(first, job.requested)
            attempt = _attempt(job, now_ms)
            attempts.append(attempt)
            heapq.heappush(running, (attempt.end_ms or now_ms, first, job.requested))
            started.add(job.job_id)
        queue = [job for job in queue if job.job_id not in started]
    return attempts


def _attempt(job: DayJob, start_ms: int) -> Attempt:
    """The job at its requested size, ended by itself or at its declared limit."""
    run_s, limit_s = job.run_s[job.requested], job.spec.time_limit_s
    end = End.TIMED_OUT if limit_s < run_s else End.COMPLETED
    return Attempt(job.job_id, start_ms, start_ms + round(min(run_s, limit_s) * 1000), job.requested, end)

"""The schedulers gpugrid is compared with, in continuous time on the same day: five simple ones, one loop.

All hold every application's daily peak all day, from the top of the pool (in hindsight: the peak of the day itself, so
they never miss demand), run every job at its requested size on the lowest free block, and look when a job arrives or ends.
- FIFO starts nobody before an earlier arrival. Best-effort FIFO goes through the queue in that order and starts what fits.
- Priority backfill goes through it by priority, then arrival; shortest-predicted-first by the P50 it is told.
- EASY is FIFO, but the job at the head gets a block promised at the earliest moment at which the P90s of those who run let
  one become free; later arrivals start if they fit now and end before that moment by their P90, or keep off that block.
FIFO, best-effort FIFO and priority backfill need, and get, no durations. Read next: `outcome.py`,
`tests/oracle/replay_policies.py` (the same, naively).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.replay.core.blocks import FreeBlocks, block_of
from services.replay.core.day import Day, DayJob
from services.replay.core.outcome import Attempt, End, Hold, Outcome, outcome

FIFO = "fifo"
BEST_EFFORT = "best_effort_fifo"
BACKFILL = "priority_backfill"
EASY = "easy_backfill"
SHORTEST = "shortest_predicted"
OVERDUE_STRETCH = 0.25
"""A job past its P90 is expected to need this share of its elapsed time more: what gpugrid's planner assumes, too."""


class Watch(Protocol):
    """Told of every event of the run, in order; answers with what is believed of durations."""

    def arrived(self, job: DayJob, now_ms: int) -> None: ...

    def started(self, job: DayJob, first: int, now_ms: int) -> None: ...

    def ended(self, job: DayJob, end: End, now_ms: int) -> None: ...

    def expected_s(self, job: DayJob, gpus: int) -> tuple[float, float]: ...


class Unwatched:
    """For schedulers that ask for no durations."""

    def arrived(self, job: DayJob, now_ms: int) -> None:
        """Nobody learns."""

    def started(self, job: DayJob, first: int, now_ms: int) -> None:
        """Nobody learns."""

    def ended(self, job: DayJob, end: End, now_ms: int) -> None:
        """Nobody learns."""

    def expected_s(self, job: DayJob, gpus: int) -> tuple[float, float]:
        raise LookupError(f"this scheduler knows no durations, but asked for that of {job.job_id}")


@dataclass(slots=True)
class Scene:
    """One moment: the queue in arrival order, the free GPUs, who runs where since when. `promised`: per head of the queue the
    first moment EASY promised it."""

    now_ms: int
    launch_ms: int
    queue: list[DayJob]
    free: FreeBlocks
    running: dict[str, tuple[DayJob, int, int]]
    watch: Watch
    promised: dict[str, int] = field(default_factory=dict)


Starts = Callable[[Scene], Iterator[tuple[DayJob, int]]]
"""Which queued jobs start now, and at which first GPU. Each must be taken before the next is asked for."""


@dataclass(frozen=True, slots=True)
class Block:
    """Somebody holds these GPUs (bits) from … until."""

    gpus: int
    from_ms: int
    until_ms: int


@dataclass(slots=True)
class Played:
    """What a scheduler did: attempts and holds for the outcome, blocks for fragmentation, EASY's promises."""

    attempts: list[Attempt]
    holds: list[Hold]
    blocks: list[Block]
    promised: dict[str, int]


def fifo(day: Day) -> Outcome:
    """mission's baseline: arrival order, no priorities, no job starts before an earlier arrival."""
    return _outcome(day, FIFO)


def priority_backfill(day: Day) -> Outcome:
    """By descending priority, then arrival; any start that fits."""
    return _outcome(day, BACKFILL)


def _outcome(day: Day, scheduler: str) -> Outcome:
    played = play(day, scheduler)
    return outcome(day, scheduler, played.attempts, played.holds)


def attempts_of(day: Day, scheduler: str) -> list[Attempt]:
    """The attempts behind the outcome of a scheduler that needs no durations."""
    return play(day, scheduler).attempts


def play(day: Day, scheduler: str | Starts, watch: Watch | None = None, *, launch_s: float = 0.0) -> Played:
    """Play the day under one of SCHEDULERS, or another one. At one moment ends come first, then arrivals, then starts.

    A job holds its GPUs from the decision on and runs `launch_s` later.
    """
    starts = SCHEDULERS[scheduler] if isinstance(scheduler, str) else scheduler
    reserved = sum(app.peak_gpus for app in day.apps)
    launch_ms = round(launch_s * 1000)
    scene = Scene(day.start_ms, launch_ms, [], FreeBlocks(day.gpus, day.node_gpus, reserved), {}, watch or Unwatched())
    played = Played([], [Hold(app.app_id, day.start_ms, app.peak_gpus) for app in day.apps], [], scene.promised)
    if reserved:
        played.blocks.append(Block(block_of(day.gpus - reserved, reserved), day.start_ms, day.end_ms))
    arrivals = sorted(day.jobs, key=lambda job: job.arrival_ms)
    ends: list[tuple[int, int, DayJob, End]] = []  # (end_ms, first GPU, …)
    position = 0
    while position < len(arrivals) or ends:
        scene.now_ms = min([job.arrival_ms for job in arrivals[position : position + 1]] + [end[0] for end in ends[:1]])
        if scene.now_ms >= day.end_ms:
            break
        while ends and ends[0][0] <= scene.now_ms:
            _, first, job, end = heapq.heappop(ends)
            scene.free.release(first, job.requested)
            del scene.running[job.job_id]
            scene.watch.ended(job, end, scene.now_ms)
        while position < len(arrivals) and arrivals[position].arrival_ms <= scene.now_ms:
            scene.queue.append(arrivals[position])
            scene.watch.arrived(arrivals[position], scene.now_ms)
            position += 1
        started: set[str] = set()
        for job, first in starts(scene):
            scene.free.take(first, job.requested)
            attempt = _attempt(job, scene.now_ms + launch_ms)
            until_ms = attempt.end_ms or scene.now_ms
            scene.running[job.job_id] = (job, first, attempt.start_ms)
            scene.watch.started(job, first, attempt.start_ms)
            played.attempts.append(attempt)
            played.blocks.append(Block(block_of(first, job.requested), scene.now_ms, until_ms))
            heapq.heappush(ends, (until_ms, first, job, attempt.end))
            started.add(job.job_id)
        scene.queue = [job for job in scene.queue if job.job_id not in started]
    return played


def _attempt(job: DayJob, start_ms: int) -> Attempt:
    """The job at its requested size, ended by itself or at its declared limit."""
    run_s, limit_s = job.run_s[job.requested], job.spec.time_limit_s
    end = End.TIMED_OUT if limit_s < run_s else End.COMPLETED
    return Attempt(job.job_id, start_ms, start_ms + round(min(run_s, limit_s) * 1000), job.requested, end)


def _head_only(scene: Scene) -> Iterator[tuple[DayJob, int]]:
    for job in scene.queue:
        first = scene.free.lowest(job.requested)
        if first is None:
            return
        yield job, first


def _that_fit(scene: Scene, order: list[DayJob]) -> Iterator[tuple[DayJob, int]]:
    """In this order, whatever fits."""
    fails = scene.free.gpus + 1  # the smallest size found not to fit: nothing of that size or above does either
    for job in order:
        if job.requested >= fails:
            continue
        first = scene.free.lowest(job.requested)
        if first is None:
            fails = job.requested
        else:
            yield job, first


def _best_effort(scene: Scene) -> Iterator[tuple[DayJob, int]]:
    return _that_fit(scene, list(scene.queue))


def _by_priority(scene: Scene) -> Iterator[tuple[DayJob, int]]:
    return _that_fit(scene, sorted(scene.queue, key=lambda job: -job.spec.priority))  # stable: arrival order within one


def _shortest(scene: Scene) -> Iterator[tuple[DayJob, int]]:
    order = sorted(scene.queue, key=lambda job: scene.watch.expected_s(job, job.requested)[0])
    return _that_fit(scene, order)


def _easy(scene: Scene) -> Iterator[tuple[DayJob, int]]:
    return easy_in_order(scene, scene.queue)


def easy_in_order(scene: Scene, order: Sequence[DayJob]) -> Iterator[tuple[DayJob, int]]:
    """EASY backfill over the queue in any order: its head gets a promise, later ones what doesn't delay it."""
    ahead = 0
    for job in order:
        first = scene.free.lowest(job.requested)
        if first is None:
            break
        yield job, first
        ahead += 1
    if ahead == len(order):
        return
    shadow_ms, kept = _promise(scene, order[ahead])
    fails = scene.free.gpus + 1
    for job in order[ahead + 1 :]:
        if job.requested >= fails:
            continue
        free_first = scene.free.lowest(job.requested)
        if free_first is None:
            fails = job.requested
            continue
        ends_ms = scene.now_ms + scene.launch_ms + scene.watch.expected_s(job, job.requested)[1] * 1000
        kept_off = free_first if ends_ms <= shadow_ms else scene.free.lowest_in(scene.free.free & ~kept, job.requested)
        if kept_off is not None:
            yield job, kept_off


def _promise(scene: Scene, head: DayJob) -> tuple[float, int]:
    """(when the head can start by the P90s of those who run, the GPUs kept for it)."""
    free = scene.free.free
    leaving = sorted(
        (expected_end_ms(scene, job, start_ms), first, job.requested) for job, first, start_ms in scene.running.values()
    )
    for end_ms, first, size in leaving:
        free |= block_of(first, size)
        found = scene.free.lowest_in(free, head.requested)
        if found is not None:
            scene.promised.setdefault(head.job_id, round(end_ms))
            return end_ms, block_of(found, head.requested)
    return float("inf"), 0  # it fits nowhere, ever: nobody has to keep off


def expected_end_ms(scene: Scene, job: DayJob, start_ms: int) -> float:
    """When a running job will have ended by its P90; once that is past, later by a share of what it has run."""
    elapsed_s = max(scene.now_ms - start_ms, 0) / 1000
    p90_s = scene.watch.expected_s(job, job.requested)[1]
    left_s = p90_s - elapsed_s if elapsed_s < p90_s else elapsed_s * OVERDUE_STRETCH
    return max(start_ms, scene.now_ms) + max(left_s, 0.0) * 1000


SCHEDULERS: dict[str, Starts] = {
    FIFO: _head_only,
    BEST_EFFORT: _best_effort,
    BACKFILL: _by_priority,
    EASY: _easy,
    SHORTEST: _shortest,
}
INFORMED = (EASY, SHORTEST)
"""The ones that ask for durations, so that they run once per level of information."""

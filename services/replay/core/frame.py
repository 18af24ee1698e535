"""One frame of the live view as plain data: cells of GPUs × time, the queue with reasons, the applications, the numbers.

Built from an observation at one moment; the terminal (`shell/demo_view.py`) only draws it. Columns cover the whole day:
left of now what happened, right of now what is expected (P50 of what runs) and, where a plan is given, what is planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from schemas.status import NodeGpus
from services.replay.core.day import Day, DayApp
from services.replay.core.latency import Hop, latencies
from services.replay.core.observation import Block, Observation
from services.replay.core.outcome import Attempt, End, Hold, Outcome, outcome

IDLE = -1


class Phase(IntEnum):
    """What a cell tells: it happened, it runs and is expected to go on, or it is planned."""

    PAST = 0
    EXPECTED = 1
    PLANNED = 2


@dataclass(frozen=True, slots=True)
class PlannedSpan:
    """The plan gives GPUs (grid numbers) to a job or an application for a while."""

    owner: str
    gpus: tuple[int, ...]
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One waiting job."""

    job_id: str
    kind: str
    gpus: int
    priority: int
    waited_s: float
    reason: str
    planned_in_s: float | None


@dataclass(frozen=True, slots=True)
class AppRow:
    """One application now."""

    app_id: str
    held: int
    demand: float
    floor: int


@dataclass(frozen=True, slots=True)
class Frame:
    """`owners`: what the cells' numbers mean; `kinds`: per owner, its kind or "application"."""

    day: Day
    now_ms: int
    cells: NDArray[np.int32]
    phases: NDArray[np.int8]
    owners: tuple[str, ...]
    kinds: tuple[str, ...]
    queue: tuple[QueueRow, ...]
    apps: tuple[AppRow, ...]
    arrived: int
    running: int
    completed: int
    utilization_now: float
    so_far: Outcome
    decisions: int
    hops: dict[str, Hop]
    notice: str = ""

    @property
    def progress(self) -> float:
        """Share of the day that is over."""
        return min(max((self.now_ms - self.day.start_ms) / (self.day.end_ms - self.day.start_ms), 0.0), 1.0)

    @property
    def now_column(self) -> int:
        """The column of the present; the number of columns once the day is over."""
        return int(self.progress * self.cells.shape[1])


def frame(
    observation: Observation, now_ms: int, columns: int, plan: tuple[PlannedSpan, ...] = (), notice: str = ""
) -> Frame:
    """The frame at `now_ms` with `columns` columns over the day."""
    day = observation.day
    owners = [app.app_id for app in day.apps] + [job.job_id for job in day.jobs]
    kinds = ["application"] * len(day.apps) + [job.spec.kind.value for job in day.jobs]
    cells, phases = _cells(observation, now_ms, columns, plan, {owner: number for number, owner in enumerate(owners)})
    attempts = observation.attempts()
    elapsed = _elapsed(day, now_ms)
    measured = outcome(elapsed, "gpugrid", _until(attempts, now_ms), _held_until(observation.holds, now_ms))
    return Frame(
        day=day,
        now_ms=now_ms,
        cells=cells,
        phases=phases,
        owners=tuple(owners),
        kinds=tuple(kinds),
        queue=_queue(observation, now_ms),
        apps=tuple(_app_row(observation, app, now_ms) for app in day.apps),
        arrived=sum(job.arrival_ms <= now_ms for job in day.jobs),
        running=observation.running(),
        completed=sum(attempt.end is End.COMPLETED for attempt in attempts),
        utilization_now=_utilization_now(observation, now_ms),
        so_far=measured,
        decisions=observation.decisions,
        hops=latencies(observation.marks.values()),
        notice=notice,
    )


def demand_at(day: Day, app: DayApp, now_ms: int) -> float:
    """GPUs' worth of load at a moment of the day."""
    demand = app.demand_gpus()
    index = (now_ms - day.start_ms) // (app.window_s * 1000)
    return demand[min(max(index, 0), len(demand) - 1)]


def _elapsed(day: Day, now_ms: int) -> Day:
    """The part of the day that is over, as a day; at least a minute, so that shares are defined."""
    hours = max(min(now_ms, day.end_ms) - day.start_ms, 60_000) / 3_600_000
    jobs = tuple(job for job in day.jobs if job.arrival_ms < now_ms)
    return Day(day.name, day.seed, day.start_ms, hours, day.gpus, day.node_gpus, day.cluster, day.pool, jobs, day.apps)


def _until(attempts: list[Attempt], now_ms: int) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.start_ms < now_ms]


def _held_until(holds: list[Hold], now_ms: int) -> list[Hold]:
    return [hold for hold in holds if hold.time_ms <= now_ms]


def _cells(
    observation: Observation,
    now_ms: int,
    columns: int,
    plan: tuple[PlannedSpan, ...],
    number: dict[str, int],
) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    day = observation.day
    cells = np.full((day.gpus, columns), IDLE, np.int32)
    phases = np.full((day.gpus, columns), Phase.PAST, np.int8)
    width_ms = (day.end_ms - day.start_ms) / columns
    middles = day.start_ms + (np.arange(columns) + 0.5) * width_ms

    def fill(owner: str, gpus: list[int], since_ms: float, until_ms: float, phase: Phase) -> None:
        first, last = np.searchsorted(middles, (since_ms, until_ms))
        if last > first and gpus:
            cells[gpus, first:last] = number[owner]
            phases[gpus, first:last] = phase

    for span in plan:
        if span.owner in number:
            fill(span.owner, list(span.gpus), max(span.start_ms, now_ms), span.end_ms, Phase.PLANNED)
    for block in [*observation.past, *observation.blocks.values()]:
        if block.owner not in number:
            continue
        gpus = _grid_numbers(day, block.nodes)
        fill(block.owner, gpus, block.since_ms, min(block.until_ms or now_ms, now_ms), Phase.PAST)
        if block.until_ms is None:
            expected_ms = max(block.until_p50_ms or 0, now_ms + 2 * width_ms) if block.until_p50_ms else now_ms
            fill(block.owner, gpus, now_ms, max(expected_ms, now_ms), Phase.EXPECTED)
    return cells, phases


def _grid_numbers(day: Day, nodes: tuple[NodeGpus, ...]) -> list[int]:
    """Grid numbers of GPUs of nodes named n00, n01, … in pool order."""
    return [int(part.node[1:]) * day.node_gpus + index for part in nodes for index in part.gpus]


def _queue(observation: Observation, now_ms: int) -> tuple[QueueRow, ...]:
    rows = []
    for job in observation.day.jobs:
        wait = observation.waits.get(job.job_id)
        if wait is None or job.job_id in observation.blocks:
            continue
        planned_ms = wait.planned_start_p50_ms
        rows.append(
            QueueRow(
                job_id=job.job_id,
                kind=job.spec.kind.value,
                gpus=job.requested,
                priority=job.spec.priority,
                waited_s=max(now_ms - job.arrival_ms, 0) / 1000,
                reason=wait.reason,
                planned_in_s=None if planned_ms is None else max(planned_ms - now_ms, 0) / 1000,
            )
        )
    rows.sort(key=lambda row: (-row.priority, -row.waited_s, row.job_id))
    return tuple(rows)


def _gpus_of(block: Block | None) -> int:
    return sum(len(part.gpus) for part in block.nodes) if block is not None else 0


def _app_row(observation: Observation, app: DayApp, now_ms: int) -> AppRow:
    held = _gpus_of(observation.blocks.get(app.app_id))
    return AppRow(app.app_id, held, demand_at(observation.day, app, now_ms), app.spec.floor_gpus)


def _utilization_now(observation: Observation, now_ms: int) -> float:
    day = observation.day
    apps = {app.app_id: app for app in day.apps}
    working = 0.0
    for owner, block in observation.blocks.items():
        gpus = _gpus_of(block)
        working += min(gpus, demand_at(day, apps[owner], now_ms)) if owner in apps else gpus
    return working / day.gpus

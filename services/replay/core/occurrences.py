"""What happens on a day, as the events that services would hear of it: nodes, applications, loads, jobs, starts, ends.

Owns nothing but the wording. `rolling.py` plays them to gpugrid's allocator, `Learner` plays a simple scheduler's run to a
forecaster, so that each scheduler's forecasts come from what happened under it. Read next: `beliefs.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.base import Event
from schemas.demand import DemandObserved
from schemas.executions import JobCompleted, JobStarted, JobStopped, NodeReported, StopCause
from schemas.jobs import ApplicationAccepted, JobAccepted, JobSpec
from schemas.nodes import GpuState, Health, NodeStateChanged
from services.replay.core.beliefs import Beliefs
from services.replay.core.catalog import GPU_MEMORY_MIB, node_names
from services.replay.core.day import Day, DayApp, DayJob
from services.replay.core.outcome import End
from services.replay.core.site import PLAIN, Site

TICK_MS = 60_000
"""Time alone changes forecasts: the forecaster is asked once a minute."""


def beginnings(day: Day, site: Site = PLAIN) -> list[Event]:
    """All nodes are there, say which data they keep, and all applications are let in."""
    gpus = [GpuState(index=index, uuid="", memory_total_mib=GPU_MEMORY_MIB) for index in range(day.node_gpus)]
    nodes: list[Event] = [
        NodeStateChanged(
            node=name,
            cluster=day.cluster,
            pool=day.pool,
            time_ms=day.start_ms,
            health=Health.USABLE,
            gpus=gpus,
            order=place,
            incarnation=1,
            rack=site.rack_of(name),
        )
        for place, name in enumerate(node_names(day))
    ]
    kept: list[Event] = [
        NodeReported(
            node=name,
            cluster=day.cluster,
            time_ms=day.start_ms,
            applied=0,
            epoch=0,
            boot_id=name,
            running=[],
            datasets=sorted(names),
        )
        for name, names in sorted(site.kept.items())
    ]
    return [*nodes, *kept] + [
        ApplicationAccepted(
            app_id=app.app_id,
            cluster=day.cluster,
            pool=day.pool,
            accepted_ms=day.start_ms,
            digest="",
            spec=app.spec,
        )
        for app in day.apps
    ]


def loads(day: Day) -> list[tuple[int, DemandObserved]]:
    """The load of every window, at the window's end."""
    found = [_observed(day, app, index, load) for app in day.apps for index, load in enumerate(app.loads)]
    return [(event.time_ms, event) for event in found]


def past(day: Day, jobs: Iterable[DayJob]) -> list[tuple[int, Event]]:
    """What a forecaster heard before the day, by time: earlier loads, and earlier jobs as if each had started at once. The pool is
    empty when the day starts, so jobs that would still run are left out."""
    found: list[tuple[int, Event]] = [
        (event.time_ms, event)
        for app in day.apps
        for index, load in enumerate(app.history)
        for event in [_observed(day, app, index - len(app.history), load)]
    ]
    node = node_names(day)[0]
    for job in jobs:
        start_ms, limit_s = job.arrival_ms, job.spec.time_limit_s
        run_s = job.run_s[job.requested]
        end_ms = start_ms + round(min(run_s, limit_s) * 1000)
        end = End.TIMED_OUT if limit_s < run_s else End.COMPLETED
        if end_ms >= day.start_ms:
            continue
        found.append((start_ms, accepted(day, job, job.spec)))
        found.append((start_ms, started(day, job.job_id, 1, node, list(range(job.requested)), start_ms)))
        found.append((end_ms, over(day, job.job_id, 1, node, start_ms, end_ms, end)))
    return sorted(found, key=lambda entry: entry[0])


def accepted(day: Day, job: DayJob, spec: JobSpec) -> JobAccepted:
    """The job as intake lets it in."""
    return JobAccepted(
        job_id=job.job_id,
        cluster=day.cluster,
        pools=[day.pool],
        submitted_ms=job.arrival_ms,
        accepted_ms=job.arrival_ms,
        digest="",
        spec=spec,
    )


def started(day: Day, job_id: str, attempt: int, node: str, gpus: list[int], start_ms: int) -> JobStarted:
    """One node's part of a job runs."""
    return JobStarted(
        job_id=job_id,
        attempt=attempt,
        node=node,
        cluster=day.cluster,
        time_ms=start_ms,
        wall_ms=start_ms,
        gpus=gpus,
        sequence=1,
    )


def over(day: Day, job_id: str, attempt: int, node: str, start_ms: int, end_ms: int, end: End) -> Event:
    """One node's part of a job ended: completed, or stopped at its declared limit."""
    run_s = (end_ms - start_ms) / 1000
    if end is End.COMPLETED:
        return JobCompleted(job_id=job_id, attempt=attempt, node=node, cluster=day.cluster, time_ms=end_ms, run_s=run_s)
    return JobStopped(
        job_id=job_id,
        attempt=attempt,
        node=node,
        cluster=day.cluster,
        time_ms=end_ms,
        cause=StopCause.TIME_LIMIT,
        run_s=run_s,
    )


def made_room(
    day: Day, job_id: str, attempt: int, node: str, left_ms: int, ran_s: float, fraction: float
) -> JobStopped:
    """One node's part of a job saved its work and left, because the rules gave its place to another."""
    return JobStopped(
        job_id=job_id,
        attempt=attempt,
        node=node,
        cluster=day.cluster,
        time_ms=left_ms,
        cause=StopCause.PREEMPTED,
        checkpointed=True,
        fraction=fraction,
        run_s=ran_s,
    )


class Learner:
    """Tells a run's beliefs what a simple scheduler does (`baselines.Watch`)."""

    def __init__(self, day: Day, beliefs: Beliefs) -> None:
        self._day = day
        self._beliefs = beliefs
        self._nodes = node_names(day)
        self._where: dict[str, tuple[list[tuple[str, list[int]]], int]] = {}
        self._ticked_ms = day.start_ms

    def arrived(self, job: DayJob, now_ms: int) -> None:
        self._tick(now_ms)
        self._beliefs.tell(accepted(self._day, job, self._beliefs.spec(job)), now_ms)

    def started(self, job: DayJob, first: int, now_ms: int) -> None:
        size = self._day.node_gpus
        nodes: dict[str, list[int]] = {}
        for gpu in range(first, first + job.requested):
            nodes.setdefault(self._nodes[gpu // size], []).append(gpu % size)
        self._where[job.job_id] = (list(nodes.items()), now_ms)
        for node, gpus in nodes.items():
            self._beliefs.tell(started(self._day, job.job_id, 1, node, gpus, now_ms), now_ms)

    def ended(self, job: DayJob, end: End, now_ms: int) -> None:
        self._tick(now_ms)
        nodes, start_ms = self._where.pop(job.job_id)
        for node, _ in nodes:
            self._beliefs.tell(over(self._day, job.job_id, 1, node, start_ms, now_ms, end), now_ms)

    def expected_s(self, job: DayJob, gpus: int) -> tuple[float, float]:
        return self._beliefs.expected_s(job, gpus)

    def _tick(self, now_ms: int) -> None:
        if now_ms - self._ticked_ms >= TICK_MS:
            self._ticked_ms = now_ms
            self._beliefs.tick(now_ms)


def _observed(day: Day, app: DayApp, index: int, load: float) -> DemandObserved:
    """The load of window `index` (negative: before the day)."""
    return DemandObserved(
        app_id=app.app_id,
        cluster=day.cluster,
        time_ms=day.start_ms + (index + 1) * app.window_s * 1000,
        window_s=app.window_s,
        load=load,
        per_gpu=app.per_gpu,
    )

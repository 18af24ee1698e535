"""What the topics say about jobs, nodes and placements, folded into one picture. Pure.

Owns: newest wins per key, amendments folded into the accepted job, unreadable records counted. Refuses: the decision log
(see `decision_log`). Read next: `sentences`, `tables`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from schemas.base import Event
from schemas.codec import DecodeError, Envelope, decode_record
from schemas.commands import DrainNode, ForgetNode, UndrainNode
from schemas.forecasts import DurationForecast, SizeForecast
from schemas.jobs import (
    ApplicationAccepted,
    ApplicationSpec,
    JobAccepted,
    JobAmended,
    JobSpec,
)
from schemas.nodes import NodeForgotten, NodeStateChanged
from schemas.placements import Assignment, Desired, NodePlaced
from schemas.records import Record
from schemas.status import FINAL_STATES, JobState, JobStatusChanged
from services.console.read import newest_per_key

FACT_TOPICS = ("jobs", "job-status", "placements", "node-states", "commands")
"""What `jobs`, `why` and `grid` read."""
ACCEPTED = "accepted"
"""Shown for a job that intake let in and no decision has named yet."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job or application as the topics show it. `status` None: no decision has named it yet.

    `position` is its place in the queue now: statuses are written when a job changes, not when the queue before it does.
    `pools`: as intake let it in, the preferred one first; `speeds` beside it.
    """

    job_id: str
    status: JobStatusChanged | None = None
    job: JobSpec | None = None
    application: ApplicationSpec | None = None
    cluster: str | None = None
    submitted_ms: int | None = None
    accepted_ms: int | None = None
    priority: int | None = None
    time_limit_s: float | None = None
    traceparent: str = ""
    forecast: DurationForecast | None = None
    arrival: int = 0
    position: int | None = None
    pools: tuple[str, ...] = ()
    speeds: Mapping[str, float] = field(default_factory=dict)
    speeds_from: str = ""

    @property
    def spec(self) -> JobSpec | ApplicationSpec | None:
        return self.job or self.application

    @property
    def state(self) -> str:
        return self.status.state.value if self.status else ACCEPTED

    @property
    def is_application(self) -> bool:
        return self.application is not None or bool(self.status and self.status.application)

    @property
    def final(self) -> bool:
        return self.status is not None and self.status.state in FINAL_STATES

    @property
    def gpus_held(self) -> int:
        """GPUs placed now; 0 for what waits or has ended."""
        if self.status is None or self.final:
            return 0
        return sum(len(part.gpus) for part in self.status.placed)

    def waits_for(self, pool: str, *, first: bool = False) -> bool:
        """Whether it waits for this pool: the one it is planned in, else any that it accepts (`first`: the preferred one)."""
        accepted = self.pools or (tuple(self.job.pools) if self.job is not None else ())
        planned = None if self.status is None else self.status.pool
        if planned is not None:
            return planned == pool
        return not accepted or pool in (accepted[:1] if first else accepted)

    def run_forecast(self) -> SizeForecast | None:
        """Total run time at the size it was given, as last forecast, in the pool it got."""
        held = self.gpus_held
        if self.forecast is None or not held:
            return None
        size = next((size for size in self.forecast.sizes if size.gpus == held), None)
        speed = 1.0 if self.status is None else self.speeds.get(self.status.pool or "", 1.0)
        if size is None or speed == 1.0:
            return size
        return msgspec.structs.replace(size, p50_s=size.p50_s / speed, p90_s=size.p90_s / speed)

    def expected_end_ms(self) -> int | None:
        """Start plus the P50 of its duration; None while unknown."""
        size = self.run_forecast()
        if size is None or self.status is None or self.status.started_ms is None:
            return None
        return self.status.started_ms + round(size.p50_s * 1000)


@dataclass(slots=True)
class World:
    """Everything the console knows at one moment. `unreadable` counts records that are no events."""

    jobs: dict[str, JobView] = field(default_factory=dict)
    placements: dict[str, NodePlaced] = field(default_factory=dict)
    nodes: dict[str, NodeStateChanged] = field(default_factory=dict)
    node_partition: dict[str, int] = field(default_factory=dict)
    draining: dict[str, DrainNode] = field(default_factory=dict)
    unreadable: int = 0
    complete: bool = True

    def is_draining(self, node: NodeStateChanged) -> bool:
        """Itself, or the machine that it is a part of."""
        return node.node in self.draining or node.machine in self.draining

    def absent(self, node: str) -> frozenset[int]:
        """Slots that aren't there at present: their cards are cut for another pool."""
        placed = self.placements.get(node)
        return frozenset() if placed is None else frozenset(placed.absent)

    def pool_nodes(self, pool: str | None) -> list[NodeStateChanged]:
        """Nodes of a pool (or all) in the pool's GPU order."""
        chosen = [node for node in self.nodes.values() if pool is None or node.pool == pool]
        return sorted(chosen, key=lambda node: (node.cluster, node.pool, node.order, node.node))

    def assignments(self) -> Iterable[tuple[NodePlaced, Assignment]]:
        """Every assignment that shall run, by node."""
        for _, placed in sorted(self.placements.items()):
            for assignment in placed.assignments:
                if assignment.desired is Desired.RUN:
                    yield placed, assignment

    def holder_of(self) -> dict[tuple[str, int], str]:
        """(node, local GPU) → who holds it: everything placed there, stops in progress included."""
        held: dict[tuple[str, int], str] = {}
        for node, placed in sorted(self.placements.items()):
            for assignment in placed.assignments:
                for gpu in assignment.gpus:
                    held[node, gpu] = assignment.job_id
        return held


def readable(record: Record) -> Envelope | None:
    """The event of a record, or None for a tombstone or something that is no event."""
    if record.value is None:
        return None
    try:
        return decode_record(record)
    except DecodeError:
        return None


def world_of(records: Mapping[str, Sequence[Record]], *, complete: bool = True) -> World:
    """Fold the records of FACT_TOPICS (and `forecasts`, if there) into one picture."""
    fold = WorldFold()
    for record in records.get("jobs", ()):
        fold.take(record)
    for topic in ("job-status", "placements", "node-states"):
        for record in newest_per_key(records.get(topic, ())).values():
            fold.take(record)
    for record in records.get("commands", ()):
        fold.take(record)
    for job_id, record in newest_per_key(records.get("forecasts", ())).items():
        if job_id in fold.world.jobs:
            fold.take(record)
    fold.world.complete = complete
    number_queue(fold.world)
    return fold.world


EARLY_MAX = 20_000
"""Forecasts kept for jobs not seen yet: topics are read side by side, so some come first; most belong to jobs long gone."""


@dataclass(slots=True)
class WorldFold:
    """The same picture, record by record, in offset order per partition. Positions in the queue come from `number_queue`."""

    world: World = field(default_factory=World)
    _early: dict[str, DurationForecast] = field(default_factory=dict)

    def take(self, record: Record) -> Event | None:
        """Fold one record; the event it carried, or None for a tombstone or something that is no event."""
        if record.value is None:
            return None
        envelope = readable(record)
        if envelope is None:
            self.world.unreadable += 1
            return None
        self.fold(envelope, record.partition)
        return envelope.event

    def fold(self, envelope: Envelope, partition: int) -> None:
        """Fold one event; others than those of FACT_TOPICS and forecasts change nothing."""
        world, event = self.world, envelope.event
        match event:
            case JobAccepted() | ApplicationAccepted() | JobAmended():
                self._fold_job(envelope)
            case JobStatusChanged():
                view = world.jobs.get(event.job_id, JobView(event.job_id))
                world.jobs[event.job_id] = replace(
                    view,
                    status=event,
                    submitted_ms=view.submitted_ms if view.submitted_ms is not None else event.submitted_ms,
                    cluster=view.cluster or event.cluster,
                    traceparent=view.traceparent or envelope.traceparent,
                )
            case NodePlaced():
                world.placements[event.node] = event
            case NodeStateChanged():
                world.nodes[event.node] = event
                world.node_partition[event.node] = partition
            case NodeForgotten():
                world.nodes.pop(event.node, None)
                world.node_partition.pop(event.node, None)
                world.draining.pop(event.node, None)
            case DrainNode():
                world.draining[event.node] = event
            case UndrainNode() | ForgetNode():
                world.draining.pop(event.node, None)  # whoever comes back is a new node
            case DurationForecast():
                if event.job_id in world.jobs:
                    world.jobs[event.job_id] = replace(world.jobs[event.job_id], forecast=event)
                else:
                    self._early[event.job_id] = event
                    if len(self._early) > EARLY_MAX:
                        del self._early[next(iter(self._early))]

    def _fold_job(self, envelope: Envelope) -> None:
        event, jobs = envelope.event, self.world.jobs
        if isinstance(event, JobAccepted):
            known = jobs.get(event.job_id, JobView(event.job_id))
            if known.job is None:
                jobs[event.job_id] = replace(
                    known,
                    job=event.spec,
                    cluster=event.cluster,
                    submitted_ms=event.submitted_ms,
                    accepted_ms=event.accepted_ms,
                    arrival=len(jobs),
                    priority=event.spec.priority,
                    time_limit_s=event.spec.time_limit_s,
                    traceparent=envelope.traceparent or known.traceparent,
                    forecast=self._early.pop(event.job_id, known.forecast),
                    pools=tuple(event.pools),
                    speeds=event.speeds,
                    speeds_from=event.speeds_from,
                )
        elif isinstance(event, ApplicationAccepted):
            known = jobs.get(event.app_id, JobView(event.app_id))
            jobs[event.app_id] = replace(
                known,
                application=event.spec,
                cluster=event.cluster,
                accepted_ms=event.accepted_ms,
                priority=event.spec.priority,
                traceparent=envelope.traceparent or known.traceparent,
            )
        elif isinstance(event, JobAmended) and event.job_id in jobs:
            known = jobs[event.job_id]
            jobs[event.job_id] = replace(
                known,
                priority=event.priority if event.priority is not None else known.priority,
                time_limit_s=event.time_limit_s if event.time_limit_s is not None else known.time_limit_s,
            )


def number_queue(world: World) -> None:
    """Positions per cluster: by priority, then arrival, as the allocator numbers them."""
    queued = [view for view in world.jobs.values() if view.status and view.status.state is JobState.QUEUED and view.job]
    queued.sort(key=lambda view: (view.cluster or "", -(view.priority or 0), view.arrival))
    places: dict[str, int] = {}
    for view in queued:
        cluster = view.cluster or ""
        places[cluster] = places.get(cluster, 0) + 1
        world.jobs[view.job_id] = replace(view, position=places[cluster])


def state_named(text: str) -> str:
    """A state's public name from what a person typed; ValueError lists the names."""
    names = [ACCEPTED, *(state.value for state in JobState)]
    wanted = text.strip().lower().replace("-", "_")
    if wanted in names:
        return wanted
    raise ValueError(f"{text!r} is no state; states are {', '.join(names)}")

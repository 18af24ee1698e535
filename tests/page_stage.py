"""A made-up cluster on a memory bus with the page in front of it: for the page's tests, of any size, without Kafka or planner.

`Stage` publishes events as the services would; `crowd` fills a pool of any size with running and waiting jobs.
"""

from __future__ import annotations

import msgspec

from schemas.base import Event
from schemas.decisions import DecisionMade, Placed, RecordKind, Scaled, Waits
from schemas.demand import DemandObserved
from schemas.executions import JobStarted
from schemas.forecasts import DemandForecast
from schemas.messages import message
from schemas.placements import Assignment, Desired, NodePlaced
from schemas.registry import topic_of
from schemas.status import JobState, JobStatusChanged, NodeGpus
from services.console.session import Session
from services.runtime.bus.memory import MemoryBus, MemoryProducer
from services.runtime.bus.port import BusError
from services.runtime.clock import WallClock
from tests import build

HOUR_MS = 3_600_000
NOW_MS = build.START_MS + 6 * HOUR_MS
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
KEYED = ("job-events", "job-status", "node-telemetry", "dead-letters")
KINDS = ("training", "batch_inference", "quantization", "debug")


class StageClock(WallClock):
    """Domain time stands where the test puts it."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ms = NOW_MS

    def now_ms(self) -> int:
        return self.at_ms


class Stage:
    """One cluster `c0`. `away`: the broker can't be reached."""

    def __init__(self) -> None:
        self.bus = MemoryBus(build.topic_partitions())
        self.clock = StageClock()
        self.session = Session(make_bus=self._bus, make_clock=lambda: self.clock)
        self.away = False
        self._sequence = 0
        self._last_id = ""
        self._producer: MemoryProducer | None = None
        self._assigned: dict[str, list[Assignment]] = {}

    def _bus(self, address: str) -> MemoryBus:
        if self.away:
            raise BusError("the broker is away")
        return self.bus

    async def publish(self, *events: Event) -> None:
        if self._producer is None:
            self._producer = self.bus.producer("stage")
            await self._producer.start()
        for event in events:
            key = _key(event)
            time_ms = getattr(event, "time_ms", self.clock.at_ms)
            await self._producer.send(
                message(
                    event,
                    key=key,
                    id=f"{key}/{type(event).__name__}/{time_ms}",
                    source="/stage",
                    time_ms=time_ms,
                    traceparent=TRACEPARENT,
                    partition=None if topic_of(event) in KEYED else 0,
                )
            )

    async def decide(self, *effects: Placed | Scaled | Waits, at_ms: int) -> None:
        """One accepted decision."""
        self._sequence += 1
        name = f"d{self._sequence}"
        await self.publish(
            DecisionMade(
                cluster=build.CLUSTER,
                sequence=self._sequence,
                id=name,
                parent=self._last_id,
                epoch=1,
                kind=RecordKind.DECISION,
                writer="stage",
                now_ms=at_ms,
                wall_ms=at_ms,
                effects=list(effects),
            )
        )
        self._last_id = name

    async def place(
        self, job_id: str, node: str, gpus: list[int], at_ms: int, *, p50_s: float = 7200.0, sizes: tuple[int, ...] = ()
    ) -> None:
        """A job is let in, placed and starts."""
        spec = build.accepted(job_id, *(sizes or (len(gpus),)), at_ms=at_ms - 600_000, **_owner(job_id))
        await self.publish(spec)
        await self.decide(_placed(job_id, node, gpus, p50_s), at_ms=at_ms)
        started = replace_gpus(build.started(job_id, node, at_ms + 2_000), gpus)
        await self.publish(started, self._assign(job_id, node, gpus), _running(job_id, node, gpus, at_ms))

    def _assign(self, job_id: str, node: str, gpus: list[int]) -> NodePlaced:
        """The node's desired state with one assignment more."""
        own = self._assigned.setdefault(node, [])
        own.append(Assignment(job_id=job_id, attempt=1, desired=Desired.RUN, gpus=gpus))
        return NodePlaced(
            node=node,
            cluster=build.CLUSTER,
            pool=build.POOL,
            sequence=self._sequence,
            epoch=1,
            time_ms=NOW_MS,
            assignments=list(own),
        )

    async def wait(
        self,
        job_id: str,
        *sizes: int,
        reason: str = "waiting_for_gpus",
        at_ms: int,
        planned_ms: int | None = None,
        **changed,
    ) -> None:
        """A job is let in and waits."""
        await self.publish(
            build.accepted(job_id, *sizes, at_ms=at_ms, **(_owner(job_id) | changed)),
            waiting_status(job_id, reason, at_ms, planned_ms),
        )

    async def application(self, app_id: str, node: str, gpus: list[int], needed: float) -> None:
        """An application with six hours of load behind it and a forecast ahead."""
        start_ms, step_ms, cluster = build.START_MS, 600_000, build.CLUSTER
        placed = [NodeGpus(node=node, gpus=gpus)]
        await self.publish(build.application(app_id, floor=1, peak=8))
        await self.decide(Scaled(app_id=app_id, pool=build.POOL, placed=placed, switched=len(gpus)), at_ms=start_ms)
        await self.publish(self._assign(app_id, node, gpus))
        ahead = {"p50": [needed] * 96, "p90": [needed * 1.3] * 96}
        await self.publish(
            DemandForecast(
                app_id=app_id, cluster=cluster, made_ms=start_ms, start_ms=start_ms, step_s=900, model="stage", **ahead
            )
        )
        for step in range(1, 37):
            time_ms, load = start_ms + step * step_ms, needed * (1 + 0.2 * (step % 3))
            await self.publish(
                DemandObserved(app_id=app_id, cluster=cluster, time_ms=time_ms, window_s=600.0, load=load, per_gpu=1.0)
            )
        await self.publish(
            JobStatusChanged(
                job_id=app_id,
                state=JobState.RUNNING,
                time_ms=start_ms,
                sequence=1,
                cluster=cluster,
                application=True,
                started_ms=start_ms,
                placed=placed,
            )
        )


def _key(event: Event) -> str:
    return getattr(event, "job_id", None) or getattr(event, "app_id", None) or getattr(event, "node", "") or "c0"


def _owner(job_id: str) -> dict[str, object]:
    number = sum(job_id.encode())
    return {"team": f"team-{number % 7}", "user": f"user-{number % 23}", "priority": number % 9 + 1}


def _placed(job_id: str, node: str, gpus: list[int], p50_s: float) -> Placed:
    return Placed(
        job_id=job_id,
        attempt=1,
        pool=build.POOL,
        gpus=len(gpus),
        placed=[NodeGpus(node=node, gpus=gpus)],
        p50_s=p50_s,
        p90_s=2 * p50_s,
    )


def _running(job_id: str, node: str, gpus: list[int], at_ms: int) -> JobStatusChanged:
    return JobStatusChanged(
        job_id=job_id, state=JobState.RUNNING, time_ms=at_ms, sequence=1, cluster=build.CLUSTER, submitted_ms=at_ms - 600_000,
        started_ms=at_ms + 2_000, attempt=1, placed=[NodeGpus(node=node, gpus=gpus)],
    )  # fmt: skip


def waiting_status(job_id: str, reason: str, at_ms: int, planned_ms: int | None = None) -> JobStatusChanged:
    return JobStatusChanged(
        job_id=job_id, state=JobState.QUEUED, time_ms=at_ms, sequence=1, cluster=build.CLUSTER, reason=reason, submitted_ms=at_ms,
        planned_start_p50_ms=planned_ms, planned_start_p90_ms=planned_ms,
    )  # fmt: skip


def replace_gpus(started: JobStarted, gpus: list[int]) -> JobStarted:
    return msgspec.structs.replace(started, gpus=gpus)


async def crowd(stage: Stage, *, nodes: int, waiting: int) -> None:
    """`nodes` of 8 GPUs, each with six hours of finished work in quarter-hour pieces and four jobs running; `waiting` jobs queue."""
    await stage.publish(*(build.node(f"n{number:03d}", order=number) for number in range(nodes)))
    for number in range(nodes):
        name = f"n{number:03d}"
        for pair in range(4):
            await stage.place(f"run-{number}-{pair}", name, [2 * pair, 2 * pair + 1], NOW_MS - (1 + pair) * HOUR_MS)
    for number in range(waiting):
        reason = ("waiting_for_gpus", "fragmented", "planned_later")[number % 3]
        planned_ms = NOW_MS + number * 1000 if number % 2 else None
        at_ms = NOW_MS - (waiting - number) * 1000
        await stage.wait(f"wait-{number:05d}", 1 << number % 4, reason=reason, at_ms=at_ms, planned_ms=planned_ms)

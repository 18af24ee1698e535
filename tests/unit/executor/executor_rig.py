"""A memory bus, an executor on it, and the allocator's side played by hand. Shared by the executor's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from schemas.base import Event
from schemas.codec import Envelope, decode_record
from schemas.jobs import CheckpointMode, CheckpointPolicy
from schemas.messages import message
from schemas.placements import Assignment, Desired, NodePlaced
from schemas.topics import TOPICS
from services.executor.shell.drivers.cutting import Cutter, SharedMachine
from services.executor.shell.drivers.port import Driver
from services.executor.shell.drivers.simulated import SimulatedDriver
from services.executor.shell.journal_store import JournalStore, MemoryJournal
from services.executor.shell.loop import Executor, Settings
from services.runtime.bus.memory import MemoryBus
from services.runtime.clock import Clock
from services.runtime.tracing import Spans
from services.runtime.virtual import VirtualClock, run_virtual

CLUSTER = "c0"
START_MS = 1_800_000_000_000
SAVES = CheckpointPolicy(mode=CheckpointMode.SIGNAL, wait_s=30.0)


def assignment(job_id: str, *gpus: int, attempt: int = 1, run_s: float = 100.0, **changed) -> Assignment:
    """A simulated job that runs `run_s` on as many GPUs as it gets."""
    labels = {"simulated/run_s": msgspec.json.encode({str(len(gpus)): run_s}).decode()}
    labels.update(changed.pop("labels", {}))
    fields = {"desired": Desired.RUN, "template": "simulated", "labels": labels}
    return Assignment(job_id=job_id, attempt=attempt, gpus=list(gpus), **(fields | changed))


def placed(sequence: int, *assignments: Assignment, node: str = "n00", epoch: int = 1) -> NodePlaced:
    return NodePlaced(
        node=node,
        cluster=CLUSTER,
        pool="h100",
        sequence=sequence,
        epoch=epoch,
        time_ms=0,
        assignments=list(assignments),
    )


class Rig:
    """`journals` outlive the executors, as files do."""

    def __init__(self, clock: Clock, *, nodes: tuple[str, ...] = ("n00",), bus: MemoryBus | None = None) -> None:
        self.clock = clock
        self.nodes = nodes
        self.bus = bus or MemoryBus({topic.name: topic.partitions for topic in TOPICS}, clock=clock)
        self.journals: dict[str, MemoryJournal] = {name: MemoryJournal() for name in nodes}
        self.driver: Driver = SimulatedDriver(clock)
        self.spans: Spans | None = None
        self.shared: SharedMachine | None = None
        self.cutter: Cutter | None = None
        self.dataset_folder = ""
        self.stop = asyncio.Event()
        self.executor: Executor | None = None
        self.task: asyncio.Task[None] | None = None

    async def start(self, *, stop_jobs: bool = False, journal_of: Callable[[str], JournalStore] | None = None) -> None:
        settings = Settings(
            nodes=self.nodes,
            cluster=CLUSTER,
            partition=0,
            client_id="executor",
            stop_jobs_on_exit=stop_jobs,
            shared=self.shared,
            dataset_folder=self.dataset_folder,
        )
        self.stop = asyncio.Event()
        opened = journal_of or (lambda name: self.journals[name])
        self.executor = Executor(
            settings, self.bus, self.clock, self.driver, opened, spans=self.spans, cutter=self.cutter
        )
        self.task = asyncio.get_running_loop().create_task(self.executor.run(self.stop))
        await self.executor.ready.wait()

    async def crash(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def leave(self) -> None:
        assert self.task is not None
        self.stop.set()
        await self.task

    async def place(self, *placements: NodePlaced) -> None:
        producer = self.bus.producer("allocator")
        await producer.start()
        for each in placements:
            identity = f"{each.node}/{each.epoch}/{each.sequence}"
            await producer.send(
                message(each, key=each.node, id=identity, source="/gpugrid/allocator", time_ms=0, partition=0)
            )
        await producer.stop()

    def envelopes(self) -> list[Envelope]:
        return [decode_record(record) for record in self.bus.records("executions")]

    def said(self, job_id: str | None = None) -> list[str]:
        """Types of what was reported, in order, about one job or all (node reports left out)."""
        found = []
        for envelope in self.envelopes():
            about = getattr(envelope.event, "job_id", None)
            if about is not None and job_id in (None, about):
                found.append(envelope.type.split(".")[1])
        return found

    def events(self, kind: type[Event]) -> list[Event]:
        return [envelope.event for envelope in self.envelopes() if isinstance(envelope.event, kind)]

    async def wait_s(self, duration_s: float) -> None:
        """Let domain time pass."""
        await self.clock.sleep_until(self.clock.now_ms() + round(duration_s * 1000))


def virtually(scenario, *, speed: float = 1.0):
    """Run `scenario(rig)` in virtual time and return its result."""

    async def main(clock: VirtualClock):
        rig = Rig(clock)
        result = await scenario(rig)
        if rig.task is not None and not rig.task.done():
            await rig.crash()
        return result if result is not None else rig

    return run_virtual(main, START_MS, speed=speed)

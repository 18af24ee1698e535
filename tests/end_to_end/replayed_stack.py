"""A few hours of a bundled day on the real stack, and what its topics say afterwards. For tests that disturb it meanwhile.

The day is chosen so that its outcome doesn't depend on timing: every job ends well before its limit and finds room in the
end, so all complete in their first attempt whatever is killed. When they do so, and where, may differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from deploy.local.broker import EmbeddedBroker
from deploy.local.broker_process import broker_process
from deploy.local.service_processes import Surroundings, service_processes
from deploy.local.specification import ProcessSpec
from deploy.local.supervisor import Hooks, Supervisor
from schemas.codec import decode_record
from schemas.decisions import DecisionMade
from schemas.executions import JobCompleted, JobFailed, JobStarted, JobStopped
from schemas.records import Record
from schemas.status import FINAL_STATES, JobState, JobStatusChanged
from services.allocator.core.config import Policy
from services.allocator.core.reader import read
from services.allocator.core.state import State
from services.replay.core.catalog import PARTITION, catalog_of, node_names, toml_of
from services.replay.core.day import Day
from services.replay.core.schedule import Publication, arrivals, history, registrations
from services.replay.core.workload import build_day
from services.replay.shell.bundled import bundled_trace, day_of_seed
from services.replay.shell.live import Pacer
from services.replay.shell.publisher import Publisher
from services.runtime.bus.kafka import KafkaBus
from services.runtime.bus.port import BusError
from services.runtime.hop import read_to_end
from services.runtime.scaled_clock import ClockControl, ScaledClock

SEED, GPUS, HOURS, LOAD, SPEED = 0, 16, 3.0, 4.0, 720.0
RUN_S_MAX = 3_000.0
LIMIT_MARGIN = 1.3
HISTORY_WINDOWS = 96
"""Of the applications' load before the day: enough for a forecast, and quickly read."""
TOPICS = ("decisions", "executions", "job-status", "dead-letters")
DONE_WAIT_S = 400.0
"""A replay takes 40 s alone, several times that on a machine that is busy with much else."""
POLL_S = 0.3

Disturb = Callable[["Stack"], Awaitable[None]]


def short_day() -> Day:
    """Jobs of the bundled day that end soon and whose declared limit can't be reached."""
    trace = bundled_trace()
    day = build_day(trace, day_of_seed(trace, SEED), SEED, gpus=GPUS, hours=HOURS, load=LOAD)
    jobs = tuple(
        job
        for job in day.jobs
        if max(job.run_s.values()) <= RUN_S_MAX and job.spec.time_limit_s > LIMIT_MARGIN * max(job.run_s.values())
    )
    apps = tuple(replace(app, history=app.history[-HISTORY_WINDOWS:]) for app in day.apps)
    return replace(day, jobs=jobs, apps=apps)


@dataclass(frozen=True)
class Stack:
    """What a disturbance may use."""

    supervisor: Supervisor
    clock: ScaledClock
    bus: KafkaBus
    day: Day

    async def until(self, condition: Callable[[], bool], what: str, wait_s: float = DONE_WAIT_S) -> None:
        deadline_s = time.monotonic() + wait_s
        while not condition():
            self.supervisor.check()
            assert time.monotonic() < deadline_s, what
            await asyncio.sleep(0.05)

    async def running_pid(self, name: str) -> int:
        """Of a process that may be on its way back: never 0, which in `os.kill` means everybody here."""
        await self.until(lambda: self.supervisor.pid(name) != 0, f"{name} doesn't run")
        pid = self.supervisor.pid(name)
        return pid if pid else await self.running_pid(name)

    async def owner_pid(self) -> int:
        """Process id of the allocator that wrote the newest decision."""
        records = await everything(self.bus, ("decisions",))
        newest = decode_record(records[-1]).event
        assert isinstance(newest, DecisionMade)
        return int(newest.writer.rpartition("-")[2])


@dataclass
class Seen:
    """What the topics say after the run."""

    finals: dict[str, JobState] = field(default_factory=dict)
    shown: dict[str, JobState] = field(default_factory=dict)
    starts: dict[str, set[tuple[int, str]]] = field(default_factory=dict)
    spans: list[tuple[str, str, tuple[int, ...], int, int]] = field(default_factory=list)
    without_reason: list[str] = field(default_factory=list)
    decided_twice: list[str] = field(default_factory=list)
    accepted: int = 0
    rejected: int = 0
    writers: set[str] = field(default_factory=set)
    dead_letters: int = 0


async def replay(
    run_dir: Path, disturb: Disturb | None = None, *, publications: Sequence[Publication] = (), allocators: int = 1
) -> Seen:
    """Run the short day to the last job's end and read the topics. `publications`: instead of the day's arrivals."""
    day = short_day()
    async with _started(day, run_dir, allocators) as (stack, pacer):
        publisher = Publisher(stack.bus, stack.clock)
        await publisher.publish([*history(day, PARTITION), *registrations(day)], wait=False)
        pacer.begin()
        upstream = asyncio.ensure_future(publisher.publish(publications or arrivals(day, PARTITION)))
        disturbing = asyncio.ensure_future(disturb(stack)) if disturb is not None else None
        try:
            await _all_final(stack)
            if disturbing is not None:
                await disturbing
            await upstream
        finally:
            for task in (upstream, disturbing):
                if task is not None:
                    task.cancel()
            await publisher.close()
        pacer.end()
        records = await everything(stack.bus, TOPICS)
    return seen(records, day)


@contextlib.asynccontextmanager
async def _started(day: Day, run_dir: Path, allocators: int) -> AsyncIterator[tuple[Stack, Pacer]]:
    run_dir.mkdir(parents=True)
    catalog_path, clock_path = run_dir / "catalog.toml", run_dir / "clock"
    catalog_path.write_text(toml_of(catalog_of(day)))
    control = ClockControl.create(clock_path, start_ms=day.start_ms, speed=SPEED, paused=True)
    pacer = Pacer(control)
    broker = EmbeddedBroker(run_dir / "kafka")
    kafka = broker_process(broker)
    around = Surroundings(
        run_dir=run_dir,
        bootstrap=broker.address,
        catalog=catalog_path,
        cluster=day.cluster,
        pool=day.pool,
        nodes=tuple(node_names(day)),
        clock=f"scaled:{clock_path}",
    )
    specs = service_processes(around)
    for number in range(1, allocators):
        specs.append(_another_allocator(around, number))
    hooks = Hooks(on_disturbed=pacer.disturbed, on_recovered=pacer.recovered)
    supervisor = Supervisor("replayed", run_dir, [kafka, *specs], hooks)
    supervisor.begin()
    clock = ScaledClock(clock_path)
    stack = Stack(supervisor, clock, KafkaBus(broker.address), day)
    try:
        await stack.until(lambda: supervisor.state == "ready", "the stack never became ready")
        yield stack, pacer
    finally:
        await asyncio.to_thread(supervisor.stop)
        clock.close()
        control.close()


def _another_allocator(around: Surroundings, number: int) -> ProcessSpec:
    """One more member of the group; which of them owns the cluster is the group's business."""
    first = next(spec for spec in service_processes(around) if spec.name == "allocator")
    name = f"allocator-{number}"
    return replace(first, name=name, env={**first.env, "GPUGRID_INSTANCE_ID": name})


async def _all_final(stack: Stack) -> None:
    """Wait until every job of the day is shown in a final state; the broker may come and go meanwhile."""
    wanted = {job.job_id for job in stack.day.jobs}
    deadline_s = time.monotonic() + DONE_WAIT_S
    final: set[str] = set()
    while True:
        try:
            reader = stack.bus.reader("watcher", await _partitions(stack.bus, ("job-status",)))
            await reader.start()
            try:
                while not wanted <= final:
                    stack.supervisor.check()
                    assert time.monotonic() < deadline_s, f"unfinished: {sorted(wanted - final)}"
                    for record in await reader.poll(max_records=1_000, timeout_s=POLL_S):
                        event = decode_record(record).event
                        if isinstance(event, JobStatusChanged) and event.state in FINAL_STATES:
                            final.add(event.job_id)
                return
            finally:
                await reader.stop()
        except BusError:
            await asyncio.sleep(POLL_S)


async def _partitions(bus: KafkaBus, topics: Sequence[str]) -> list[tuple[str, int]]:
    return [(topic, number) for topic in topics for number in range(await bus.partition_count(topic))]


async def everything(bus: KafkaBus, topics: Sequence[str]) -> list[Record]:
    """All records of these topics up to now."""
    reader = bus.reader("judge", await _partitions(bus, topics))
    found: list[Record] = []
    await reader.start()
    try:
        await read_to_end(reader, found.append)
    finally:
        await reader.stop()
    return found


def seen(records: Sequence[Record], day: Day) -> Seen:
    """Read the log by its rule of acceptance, and beside it what executors did and what people were shown."""
    found = Seen()
    state = State(cluster=day.cluster)
    jobs = {job.job_id for job in day.jobs}
    inputs: set[tuple[str, int, int]] = set()
    begun: dict[tuple[str, int, str], JobStarted] = {}
    for record in records:
        event = decode_record(record).event
        match event:
            case DecisionMade():
                if read(state, event, Policy().step_ms) is None:
                    found.rejected += 1
                    continue
                found.accepted += 1
                found.writers.add(event.writer)
                for item in event.inputs:
                    key = (item.topic, item.partition, item.offset)
                    found.decided_twice += [str(key)] if key in inputs else []
                    inputs.add(key)
                found.without_reason += [
                    f"{job.job_id} after {event.sequence}"
                    for job in state.jobs.values()
                    if not job.parts and not job.reason
                ]
            case JobStarted() if event.job_id in jobs:
                found.starts.setdefault(event.job_id, set()).add((event.attempt, event.node))
                begun.setdefault((event.job_id, event.attempt, event.node), event)
            case JobCompleted() | JobFailed() | JobStopped():
                start = begun.pop((event.job_id, event.attempt, event.node), None)
                if start is not None:
                    span = (event.job_id, event.node, tuple(start.gpus), start.time_ms, event.time_ms)
                    found.spans.append(span)
            case JobStatusChanged():
                found.shown[event.job_id] = event.state
            case _:
                found.dead_letters += record.topic == "dead-letters"
    found.finals = {job_id: ended.state for job_id, ended in state.finished.items()}
    return found


def overlaps(spans: Sequence[tuple[str, str, tuple[int, ...], int, int]]) -> list[str]:
    """GPUs on which two jobs ran at the same time."""
    by_gpu: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    for job_id, node, gpus, start_ms, end_ms in spans:
        for gpu in gpus:
            by_gpu.setdefault((node, gpu), []).append((start_ms, end_ms, job_id))
    found = []
    for card, held in sorted(by_gpu.items()):
        held.sort()
        for (_, end_ms, one), (start_ms, _, other) in pairwise(held):
            if start_ms < end_ms:
                found.append(f"{one} and {other} on {card}")
    return found

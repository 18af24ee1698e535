"""`gpugrid conform` finds nothing wrong with gpugrid's own executor, and finds each planted mistake of a tampered one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from schemas.codec import decode_record, encode
from schemas.executions import JobCheckpointed, JobCompleted, JobFailed, JobStarted, JobStopped, StopCause
from schemas.placements import NodePlaced
from schemas.records import Message, Record
from schemas.topics import TOPICS
from services.console.conform import scenarios
from services.console.conform.scenarios import SCENARIOS
from services.console.conform.verdict import Outcome, Subject, conform
from services.executor.shell.drivers.environment import Site
from services.executor.shell.drivers.port import Driver
from services.executor.shell.drivers.process import ProcessDriver
from services.executor.shell.drivers.simulated import SimulatedDriver
from services.executor.shell.journal_store import MemoryJournal
from services.executor.shell.loop import Executor, Settings
from services.runtime.bus.memory import MemoryBus
from services.runtime.clock import Clock, WallClock
from services.runtime.virtual import VirtualClock, run_virtual
from tests.unit.executor.executor_rig import START_MS

SUBJECT = Subject(node="n00", cluster="c0", partition=0)
SIMULATED = Subject(node="n00", cluster="c0", partition=0, simulated=True)


def fresh_bus(clock: Clock) -> MemoryBus:
    return MemoryBus({topic.name: topic.partitions for topic in TOPICS}, clock=clock)


async def judged(
    clock: Clock, driver: Driver, subject: Subject, tamper: Callable[[MemoryBus], MemoryBus] | None = None, *which
) -> list[Outcome]:
    bus = fresh_bus(clock)
    settings = Settings(nodes=("n00",), cluster="c0", partition=0, client_id="executor")
    executor = Executor(settings, tamper(bus) if tamper else bus, clock, driver, lambda _: MemoryJournal())
    running = asyncio.get_running_loop().create_task(executor.run())
    await executor.ready.wait()
    try:
        return await conform(bus, clock, subject, wait_s=20.0, scenarios=which or SCENARIOS)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def wrong(outcomes: Sequence[Outcome]) -> list[str]:
    return [f"{one.name}: {finding.rule}: {finding.detail}" for one in outcomes for finding in one.findings]


def simulated(tamper=None, *which) -> list[Outcome]:
    async def main(clock: VirtualClock) -> list[Outcome]:
        driver = SimulatedDriver(clock, checkpoint_s=1.0)
        return await judged(clock, driver, SIMULATED, tamper, *which)

    return run_virtual(main, START_MS)


async def test_our_executor_with_real_processes_keeps_its_contract(tmp_path: Path):
    clock = WallClock()
    driver = ProcessDriver(clock, tmp_path, Site(nodes=("n00",)), grace_s=1.0)
    assert wrong(await judged(clock, driver, SUBJECT)) == []


def test_our_executor_with_simulated_jobs_keeps_its_contract():
    outcomes = simulated()
    assert wrong(outcomes) == []
    assert [one.name for one in outcomes] == [scenario.__name__ for scenario in SCENARIOS]
    assert all(one.promise for one in outcomes)


class Tampered:
    """A bus as a wrong executor uses it: what it reads and what it says pass through `reads` and `says`."""

    def __init__(self, bus: MemoryBus, reads, says) -> None:
        self._bus = bus
        self._reads = reads
        self._says = says

    def producer(self, client_id: str):
        return _Producer(self._bus.producer(client_id), self._says)

    def reader(self, client_id: str, partitions):
        return _Reader(self._bus.reader(client_id, partitions), self._reads)

    def __getattr__(self, name: str):
        return getattr(self._bus, name)


class _Producer:
    def __init__(self, producer, says) -> None:
        self._producer = producer
        self._says = says

    async def send_all(self, messages):
        return await self._producer.send_all([said for one in messages for said in self._says(one)])

    def __getattr__(self, name: str):
        return getattr(self._producer, name)


class _Reader:
    def __init__(self, reader, reads) -> None:
        self._reader = reader
        self._reads = reads

    async def poll(self, **given):
        return [read for one in await self._reader.poll(**given) for read in self._reads(one)]

    def __getattr__(self, name: str):
        return getattr(self._reader, name)


def event_of(message: Message):
    record = Record(message.topic, 0, 0, message.key, message.value, message.headers, 0)
    return decode_record(record)


def says(change: Callable) -> Callable[[MemoryBus], Tampered]:
    def tampered(message: Message) -> list[Message]:
        if message.topic != "executions":
            return [message]
        return change(message, event_of(message))

    return lambda bus: Tampered(bus, lambda record: [record], tampered)


def reworded(message: Message, envelope, event) -> Message:
    headers, value = encode(
        event, id=envelope.id, source=envelope.source, time_ms=envelope.time_ms, traceparent=envelope.traceparent
    )
    return Message(message.topic, message.key, value, headers, message.partition)


def reads(change: Callable) -> Callable[[MemoryBus], Tampered]:
    def tampered(record: Record) -> list[Record]:
        if record.topic != "placements" or record.value == b"{":
            return change(record, None)
        return change(record, decode_record(record))

    return lambda bus: Tampered(bus, tampered, lambda message: [message])


def replaced(record: Record, envelope, event) -> Record:
    headers, value = encode(event, id=envelope.id, source=envelope.source, time_ms=envelope.time_ms, traceparent="")
    return Record(record.topic, record.partition, record.offset, record.key, value, headers, record.timestamp_ms)


class Renumbered:
    """Reads every placement as the newest."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, record: Record, envelope) -> list[Record]:
        if envelope is None:
            return [record]
        self.number += 1
        newest: NodePlaced = replace(envelope.event, epoch=1_000_000, sequence=self.number)
        return [replaced(record, envelope, newest)]


def never(kind: type):
    return says(lambda message, envelope: [] if isinstance(envelope.event, kind) else [message])


def keyed_by_node(message: Message, envelope) -> list[Message]:
    return [Message(message.topic, b"n00", message.value, message.headers, message.partition)]


def with_other_gpus(message: Message, envelope) -> list[Message]:
    if isinstance(envelope.event, JobStarted):
        return [reworded(message, envelope, replace(envelope.event, gpus=[7]))]
    return [message]


def said_twice_differently(message: Message, envelope) -> list[Message]:
    if isinstance(envelope.event, JobCompleted):
        return [message, reworded(message, envelope, replace(envelope.event, run_s=1e6))]
    return [message]


def cancelled_whatever_was_ordered(message: Message, envelope) -> list[Message]:
    if isinstance(envelope.event, JobStopped):
        return [reworded(message, envelope, replace(envelope.event, cause=StopCause.CANCELLED))]
    return [message]


def dies_of_garbage(record: Record, envelope) -> list[Record]:
    if envelope is None:
        raise RuntimeError("a record that can't be read")
    return [record]


def never_stops_what_is_unlisted() -> Callable[[MemoryBus], Tampered]:
    known: dict[str, object] = {}

    def change(record: Record, envelope) -> list[Record]:
        if envelope is None:
            return [record]
        listed = {f"{each.job_id}/{each.attempt}" for each in envelope.event.assignments}
        kept = [each for key, each in known.items() if key not in listed]
        known.update({f"{each.job_id}/{each.attempt}": each for each in envelope.event.assignments})
        more = replace(envelope.event, assignments=[*envelope.event.assignments, *kept])
        return [replaced(record, envelope, more)]

    return reads(change)


def asks_for_no_checkpoint(record: Record, envelope) -> list[Record]:
    if envelope is None:
        return [record]
    deaf = [replace(each, checkpoint_request=0) for each in envelope.event.assignments]
    return [replaced(record, envelope, replace(envelope.event, assignments=deaf))]


def ignores_limits(record: Record, envelope) -> list[Record]:
    if envelope is None:
        return [record]
    endless = [replace(each, time_limit_s=0.0) for each in envelope.event.assignments]
    return [replaced(record, envelope, replace(envelope.event, assignments=endless))]


@pytest.mark.parametrize(
    ("mistake", "scenario", "rule"),
    [
        (never(JobStarted), scenarios.completes, "reports"),
        (never(JobCompleted), scenarios.completes, "reports"),
        (never(JobFailed), scenarios.fails, "reports"),
        (never(JobStopped), scenarios.stops, "reports"),
        (never(JobStopped), scenarios.withdraws, "reports"),
        (never(JobCheckpointed), scenarios.checkpoints, "checkpoints"),
        (says(keyed_by_node), scenarios.completes, "keys"),
        (says(with_other_gpus), scenarios.completes, "gpus"),
        (says(said_twice_differently), scenarios.completes, "ids"),
        (says(cancelled_whatever_was_ordered), scenarios.stops, "causes"),
        (reads(Renumbered()), scenarios.outdated, "newest"),
        (reads(dies_of_garbage), scenarios.survives_garbage, "reports"),
        (never_stops_what_is_unlisted(), scenarios.unlisted, "reports"),
        (reads(asks_for_no_checkpoint), scenarios.checkpoints, "checkpoints"),
        (reads(ignores_limits), scenarios.time_limit, "reports"),
    ],
)
def test_each_planted_mistake_is_found(mistake, scenario, rule):
    (outcome,) = simulated(mistake, scenario)
    assert rule in {finding.rule for finding in outcome.findings}, outcome.findings

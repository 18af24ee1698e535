"""What surrounds a decision: records read ahead and forgotten before a seek, projections sent behind it in order."""

from __future__ import annotations

import asyncio

import pytest

from schemas.messages import message
from schemas.records import Message
from services.allocator.shell import inbox as inbox_module
from services.allocator.shell import projections as projections_module
from services.allocator.shell.inbox import Inbox
from services.allocator.shell.projections import Projections
from services.runtime.bus.faults import FaultPlan, TopicFaults, Unknown
from services.runtime.bus.memory import MemoryBus
from services.runtime.bus.port import SendUnknownError
from services.runtime.virtual import VirtualClock, run_virtual
from tests import build

JOBS, STATUS = ("jobs", 0), ("job-status", 0)


def plain(number: int, topic: str = "job-status") -> Message:
    return Message(topic, b"key", str(number).encode(), (), 0)


def values(bus: MemoryBus, topic: str = "job-status") -> list[int]:
    return [int(record.value or b"") for record in bus.records(topic)]


def started_report(job_id: str) -> Message:
    event = build.started(job_id, "n00", build.START_MS)
    return message(event, key=job_id, id=job_id, source="/t", time_ms=0, partition=0)


async def reading(bus: MemoryBus) -> tuple[Inbox, asyncio.Task]:
    reader = bus.reader("reader", [JOBS, ("executions", 0)])
    await reader.start()
    inbox = Inbox(reader)
    return inbox, asyncio.ensure_future(inbox.read())


def test_records_that_come_while_others_are_decided_on_are_in_line_together() -> None:
    async def main(clock: VirtualClock) -> list[int]:
        bus = MemoryBus(build.topic_partitions(), clock=clock)
        inbox, task = await reading(bus)
        producer = bus.producer("upstream")
        await producer.start()
        for number in range(5):
            await producer.send(plain(number, "jobs"))
            await clock.sleep_wall(0.01)
        first = inbox.take()
        await producer.send(plain(5, "jobs"))
        await inbox.filled.wait()
        taken = [*first, *inbox.take()]
        task.cancel()
        return [int(record.value or b"") for record in taken]

    assert run_virtual(main, build.START_MS) == [0, 1, 2, 3, 4, 5]


def test_reports_that_free_nothing_are_not_urgent() -> None:
    async def main(clock: VirtualClock) -> tuple[bool, bool, bool]:
        bus = MemoryBus(build.topic_partitions(), clock=clock)
        inbox, task = await reading(bus)
        producer = bus.producer("upstream")
        await producer.start()
        await producer.send(started_report("j"))
        await inbox.filled.wait()
        patient = inbox.urgent.is_set()
        await producer.send(plain(1, "jobs"))
        await inbox.urgent.wait()
        inbox.take()
        task.cancel()
        return patient, inbox.urgent.is_set(), inbox.filled.is_set()

    assert run_virtual(main, build.START_MS) == (False, False, False)


def test_purging_forgets_one_partition_and_reading_goes_on_where_it_was_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "RECORDS_MAX", 3)

    async def main(clock: VirtualClock) -> tuple[list[str], list[int]]:
        bus = MemoryBus(build.topic_partitions(), clock=clock)
        producer = bus.producer("upstream")
        await producer.start()
        await producer.send(started_report("j"))
        for number in range(4):
            await producer.send(plain(number, "jobs"))
        reader = bus.reader("reader", [JOBS, ("executions", 0)])
        await reader.start()
        inbox = Inbox(reader)
        task = asyncio.ensure_future(inbox.read())
        await clock.sleep_wall(1)
        inbox.purge(JOBS)
        await reader.seek(JOBS, 2)
        left = [record.topic for record in inbox.take()]
        await clock.sleep_wall(1)
        again = [int(record.value or b"") for record in inbox.take()]
        task.cancel()
        return left, again

    left, again = run_virtual(main, build.START_MS)
    assert left == ["executions"]
    assert again == [2, 3]


def test_projections_arrive_in_order_whatever_happens_to_single_sends() -> None:
    async def main(clock: VirtualClock) -> tuple[list[int], float]:
        late = FaultPlan(seed=3, default=TopicFaults(send_delay_s_max=0.02))
        bus = MemoryBus(build.topic_partitions(), clock=clock, faults=late)
        projections = Projections(bus, clock, "p")
        projections.start()
        begun_s = clock.wall_s()
        for number in range(60):
            if number in (20, 40):
                bus.fail_next_send("job-status", Unknown.BEFORE_STORING)
            await projections.put([plain(number)], alone=number % 25 == 24)
            if number % 7 == 0:
                await clock.sleep_wall(0.01)
        handed_over_s = clock.wall_s() - begun_s
        await projections.drained()
        await projections.stop()
        return values(bus), handed_over_s

    found, handed_over_s = run_virtual(main, build.START_MS)
    assert found == list(range(60))
    assert handed_over_s < 0.2, "decisions don't wait for projections"


def test_a_group_alone_is_sent_after_all_earlier_ones_and_before_all_later_ones() -> None:
    async def main(clock: VirtualClock) -> tuple[list[int], list[int]]:
        bus = MemoryBus(build.topic_partitions(), clock=clock)
        projections = Projections(bus, clock, "p")
        projections.start()
        bus.fail_next_send("snapshots", Unknown.BEFORE_STORING)
        await projections.put([plain(1)])
        await projections.put([plain(2, "snapshots")], alone=True)
        await projections.put([plain(3)])
        await clock.sleep_wall(projections_module.SEND_BACKOFF_S / 2)
        meanwhile = values(bus)
        await projections.drained()
        await projections.stop()
        return meanwhile, values(bus)

    assert run_virtual(main, build.START_MS) == ([1], [1, 3])


def test_too_much_waiting_holds_decisions_back_and_a_broker_away_too_long_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(projections_module, "WAITING_MESSAGES_MAX", 10)
    monkeypatch.setattr(projections_module, "SEND_TRIES_MAX", 3)

    async def main(clock: VirtualClock) -> tuple[int, float]:
        bus = MemoryBus(build.topic_partitions(), clock=clock)
        projections = Projections(bus, clock, "p")
        projections.start()
        for _ in range(3):
            bus.fail_next_send("job-status", Unknown.BEFORE_STORING)
        begun_s, handed_over = clock.wall_s(), 0
        try:
            for number in range(30):
                await projections.put([plain(number)])
                handed_over += 1
            pytest.fail("nothing was told")
        except SendUnknownError:
            pass
        with pytest.raises(SendUnknownError):
            await projections.drained()
        await projections.stop()
        return handed_over, clock.wall_s() - begun_s

    handed_over, took_s = run_virtual(main, build.START_MS)
    assert handed_over == 10
    assert took_s >= 3 * projections_module.SEND_BACKOFF_S * 0.9

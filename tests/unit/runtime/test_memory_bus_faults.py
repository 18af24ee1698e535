"""What the memory bus breaks on purpose, and that it breaks the same way every time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from schemas.records import Message, Record
from services.runtime.bus.faults import FaultPlan, TopicFaults, Unknown
from services.runtime.bus.memory import MemoryBus
from services.runtime.bus.port import CommitRefusedError, SendUnknownError
from services.runtime.virtual import VirtualClock, run_virtual

START_MS = 1_800_000_000_000


def virtual(main: Callable[[VirtualClock], Awaitable[object]]) -> object:
    return run_virtual(main, START_MS)


def message(number: int, partition: int | None = 0, topic: str = "t") -> Message:
    return Message(topic=topic, key=b"k%d" % number, value=b"%d" % number, partition=partition)


def values(records: list[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


async def published(bus: MemoryBus, messages: list[Message]) -> None:
    producer = bus.producer("p")
    await producer.start()
    await producer.send_all(messages)
    await producer.stop()


async def read_all(bus: MemoryBus, expected: int, *, topic: str = "t", timeout_s: float = 600) -> list[Record]:
    reader = bus.reader("r", bus.partitions(topic))
    await reader.start()
    records: list[Record] = []
    while len(records) < expected and (more := await reader.poll(max_records=100, timeout_s=timeout_s)):
        records.extend(more)
    return records


def test_duplicates_come_later_and_carry_the_same_bytes():
    async def main(clock: VirtualClock) -> list[Record]:
        faults = FaultPlan(seed=5, default=TopicFaults(duplicate_share=0.3, duplicate_delay_s_max=10))
        bus = MemoryBus({"t": 1}, clock=clock, faults=faults)
        await published(bus, [message(number) for number in range(200)])
        await clock.sleep_wall(11)
        return bus.records("t")

    records = virtual(main)
    assert values(records[:200]) == list(range(200))
    assert 30 < len(records) - 200 < 90
    assert set(values(records[200:])) <= set(range(200))
    assert records == virtual(main)


def test_fetch_delays_reorder_across_partitions_but_not_within_and_end_offsets_tell_the_truth():
    async def main(clock: VirtualClock) -> tuple[list[Record], dict]:
        faults = FaultPlan(seed=1, default=TopicFaults(fetch_delay_s_max=5, fetch_share=0.5))
        bus = MemoryBus({"t": 3}, clock=clock, faults=faults)
        await published(bus, [message(number, number % 3) for number in range(90)])
        reader = bus.reader("r", bus.partitions("t"))
        await reader.start()
        ends = await reader.end_offsets(bus.partitions("t"))
        return await read_all(bus, 90), ends

    records, ends = virtual(main)
    assert ends == {("t", 0): 30, ("t", 1): 30, ("t", 2): 30}
    assert values(records) != sorted(values(records))
    for partition in range(3):
        assert [record.offset for record in records if record.partition == partition] == list(range(30))


def test_send_delays_let_two_writers_interleave_and_keep_each_in_order():
    async def main(clock: VirtualClock) -> list[int]:
        bus = MemoryBus({"t": 1}, clock=clock, faults=FaultPlan(seed=2, default=TopicFaults(send_delay_s_max=1)))

        async def writer(first: int) -> None:
            producer = bus.producer(f"w{first}")
            await producer.start()
            await asyncio.gather(*(producer.send(message(first + number)) for number in range(20)))

        await asyncio.gather(writer(0), writer(100))
        return values(bus.records("t"))

    stored = virtual(main)
    assert [value for value in stored if value < 100] == list(range(20))
    assert [value for value in stored if value >= 100] == list(range(100, 120))
    assert stored != list(range(20)) + list(range(100, 120))


@pytest.mark.parametrize(("how", "stored"), [(Unknown.BEFORE_STORING, 0), (Unknown.AFTER_STORING, 1)])
def test_an_announced_failure_kills_the_producer_with_or_without_the_record(how: Unknown, stored: int):
    async def main(clock: VirtualClock) -> int:
        bus = MemoryBus({"t": 1, "other": 1}, clock=clock)
        producer = bus.producer("p")
        await producer.start()
        bus.fail_next_send("t", how)
        await producer.send(message(1, topic="other"))
        with pytest.raises(SendUnknownError):
            await producer.send(message(1))
        with pytest.raises(SendUnknownError, match="make a new one"):
            await producer.send(message(2))
        return len(bus.records("t"))

    assert virtual(main) == stored


def test_planned_failures_leave_prefixes_per_partition():
    async def main(clock: VirtualClock) -> list[list[int]]:
        plan = FaultPlan(seed=3, default=TopicFaults(unknown_before_share=0.4, send_delay_s_max=0.1))
        bus = MemoryBus({"t": 4}, clock=clock, faults=plan)
        for call in range(40):
            producer = bus.producer(f"p{call}")
            await producer.start()
            try:
                await producer.send_all([message(call * 10 + index, index % 4) for index in range(8)])
            except SendUnknownError:
                continue
        return [values([record for record in bus.records("t") if record.partition == part]) for part in range(4)]

    by_partition = virtual(main)
    for partition, stored in enumerate(by_partition):
        assert stored == sorted(stored), "order within a partition is the order of the calls"
        for call in range(40):
            mine = [value for value in stored if value // 10 == call]
            assert mine in ([], [call * 10 + partition, call * 10 + partition + 4])
    assert 0 < sum(map(len, by_partition)) < 320


def test_a_process_that_dies_while_sending_leaves_some_partitions_behind():
    async def main(clock: VirtualClock) -> set[int]:
        plan = FaultPlan(seed=4, default=TopicFaults(send_delay_s_max=10))
        outcomes = set()
        for _ in range(20):
            bus = MemoryBus({"t": 4}, clock=clock, faults=plan)
            producer = bus.producer("p")
            await producer.start()
            sending = asyncio.create_task(producer.send_all([message(index, index) for index in range(4)]))
            await clock.sleep_wall(0.5)
            sending.cancel()
            await asyncio.wait({sending})
            await clock.sleep_wall(20)
            outcomes.add(len(bus.records("t")))
            plan = FaultPlan(seed=plan.seed + 1, default=plan.default)
        return outcomes

    assert len(virtual(main)) > 2


def test_a_killed_member_keeps_its_partitions_until_its_session_ends_and_loses_nothing_uncommitted():
    async def main(clock: VirtualClock) -> list:
        bus = MemoryBus({"t": 2}, clock=clock, session_timeout_s=6)
        first = bus.group_consumer("a", "g", ["t"])
        await first.start()
        await published(bus, [message(number, number % 2) for number in range(10)])
        assert len(await first.poll(max_records=100, timeout_s=1)) == 10
        await first.commit({("t", 0): 2})
        bus.kill(first)
        second = bus.group_consumer("b", "g", ["t"])
        await second.start()
        before = second.assignment()
        records = await second.poll(max_records=100, timeout_s=1)
        early = (len(before), len(records))
        rest = await second.poll(max_records=100, timeout_s=60)
        while len(records) + len(rest) < 8:
            rest += await second.poll(max_records=100, timeout_s=60)
        return [early, second.assignment(), sorted(values(records + rest)), clock.wall_s()]

    early, assignment, seen, took_s = virtual(main)
    assert early[0] <= 1
    assert assignment == {("t", 0), ("t", 1)}
    assert sorted(set(seen)) == [1, 3, 4, 5, 6, 7, 8, 9]
    assert 6 <= took_s < 10


def test_a_static_member_that_returns_takes_its_place_without_disturbing_others():
    async def main(clock: VirtualClock) -> list:
        bus = MemoryBus({"t": 2}, clock=clock)
        revoked: list[str] = []

        async def note(partitions: frozenset) -> None:
            revoked.append("other")

        first = bus.group_consumer("a", "g", ["t"], instance_id="i-0")
        other = bus.group_consumer("b", "g", ["t"], instance_id="i-1", on_revoked=note)
        await first.start()
        await other.start()
        owned = first.assignment()
        bus.kill(first)
        again = bus.group_consumer("a", "g", ["t"], instance_id="i-0")
        await again.start()
        return [owned == again.assignment(), revoked, clock.wall_s()]

    assert virtual(main) == [True, [], 0.0]


def test_an_expelled_member_cannot_commit_and_rejoins_when_it_polls():
    async def main(clock: VirtualClock) -> list:
        bus = MemoryBus({"t": 2}, clock=clock)
        events: list[tuple[str, int]] = []

        def noting(name: str) -> Callable[[frozenset], Awaitable[None]]:
            async def note(partitions: frozenset) -> None:
                events.append((name, len(partitions)))

            return note

        zombie = bus.group_consumer("z", "g", ["t"], on_assigned=noting("z+"), on_revoked=noting("z-"))
        await zombie.start()
        other = bus.group_consumer("o", "g", ["t"], on_assigned=noting("o+"))
        await other.start()
        bus.expel(zombie)
        await clock.sleep_wall(1)
        assert other.assignment() == {("t", 0), ("t", 1)}
        with pytest.raises(CommitRefusedError):
            await zombie.commit({("t", 0): 1})
        await zombie.poll(max_records=1, timeout_s=1)
        return [events[-3:], len(zombie.assignment()), len(other.assignment())]

    events, mine, others = virtual(main)
    assert (mine, others) == (1, 1)
    assert ("z-", 1) in events


def test_a_hundred_thousand_records_pass_in_a_moment():
    async def main(clock: VirtualClock) -> int:
        bus = MemoryBus({"t": 4}, clock=clock)
        consumer = bus.group_consumer("c", "g", ["t"])
        await consumer.start()
        batch = [message(number, number % 4) for number in range(1000)]
        seen = 0
        for _ in range(100):
            await published(bus, batch)
            while records := await consumer.poll(max_records=500, timeout_s=0):
                seen += len(records)
        return seen

    assert virtual(main) == 100_000

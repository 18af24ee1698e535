"""What every bus promises, run on the memory bus and on a real Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

import pytest

from schemas.records import Message, Record
from services.runtime.bus.kafka import KafkaBus
from services.runtime.bus.memory import MemoryBus
from services.runtime.bus.port import (
    MESSAGE_BYTES_MAX,
    Bus,
    BusError,
    CommitRefusedError,
    Consumer,
    MessageTooLargeError,
    OffsetGoneError,
    Producer,
    TopicPartition,
)
from tests.contract.kafka_topics import create_topics, delete_records

DEADLINE_S = 40.0


class World:
    """One bus with fresh names, so that tests on a shared broker don't meet."""

    def __init__(self, bus: Bus, bootstrap: str | None) -> None:
        self.bus = bus
        self._bootstrap = bootstrap
        self._suffix = uuid4().hex[:8]

    async def topic(self, name: str, partitions: int = 1) -> str:
        full = f"{name}-{self._suffix}"
        if isinstance(self.bus, MemoryBus):
            self.bus.create_topic(full, partitions)
        else:
            assert self._bootstrap is not None
            await create_topics(self._bootstrap, {full: partitions})
        return full

    def group(self) -> str:
        return f"group-{uuid4().hex[:8]}"

    async def trim(self, partition: TopicPartition, before_offset: int) -> None:
        if isinstance(self.bus, MemoryBus):
            self.bus.trim(partition, before_offset)
        else:
            assert self._bootstrap is not None
            await delete_records(self._bootstrap, partition, before_offset)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        yield World(MemoryBus(), None)
    else:
        bootstrap = request.getfixturevalue("kafka")
        yield World(KafkaBus(bootstrap), bootstrap)


def message(topic: str, number: int, partition: int | None = 0, key: bytes | None = b"k") -> Message:
    return Message(topic, key, b"%d" % number, (("n", b"%d" % number),), partition)


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


async def producer_of(world: World) -> Producer:
    producer = world.bus.producer("suite")
    await producer.start()
    return producer


async def read(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    loop = asyncio.get_running_loop()
    until_s = loop.time() + DEADLINE_S
    while len(records) < count:
        assert loop.time() < until_s, f"only {len(records)} of {count} records came"
        records.extend(await consumer.poll(max_records=count - len(records), timeout_s=1))
    return records


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + DEADLINE_S
    while not await condition():
        assert loop.time() < until_s, "the condition did not come true in time"
        await asyncio.sleep(0.02)


async def test_a_record_comes_back_as_it_went(world: World):
    topic = await world.topic("t", 2)
    producer = await producer_of(world)
    headers = (("ce_id", b"1"), ("a", b"x"), ("a", b"y"), ("empty", b""))
    delivery = await producer.send(Message(topic, b"key", b"value", headers, 1))
    tombstone = await producer.send(Message(topic, b"key", None, (), 1))
    keyless = await producer.send(Message(topic, None, b"", (), 1))
    await producer.stop()
    assert [(item.topic, item.partition, item.offset) for item in (delivery, tombstone, keyless)] == [
        (topic, 1, 0),
        (topic, 1, 1),
        (topic, 1, 2),
    ]
    reader = world.bus.reader("r", [(topic, 0), (topic, 1)])
    await reader.start()
    first, second, third = await read(reader, 3)
    await reader.stop()
    assert (first.key, first.value, first.headers, first.partition, first.offset) == (b"key", b"value", headers, 1, 0)
    assert first.header("a") == "y"
    assert (second.key, second.value, second.headers) == (b"key", None, ())
    assert (third.key, third.value) == (None, b"")
    assert first.timestamp_ms > 1_700_000_000_000


async def test_keys_hash_alike_everywhere(world: World):
    topic = await world.topic("t", 5)
    producer = await producer_of(world)
    deliveries = await producer.send_all([message(topic, 0, None, f"key-{n}".encode()) for n in range(20)])
    await producer.stop()
    assert [item.partition for item in deliveries] == [1, 0, 2, 2, 3, 3, 0, 0, 0, 2, 0, 0, 0, 0, 1, 4, 1, 0, 2, 0]


async def test_pipelined_sends_keep_their_order_and_answer_in_order(world: World):
    topic = await world.topic("t", 3)
    producer = await producer_of(world)
    deliveries = await producer.send_all([message(topic, number, number % 3) for number in range(300)])
    more = await asyncio.gather(*(producer.send(message(topic, 300 + number, 0)) for number in range(50)))
    await producer.stop()
    assert [(item.partition, item.offset) for item in deliveries] == [(n % 3, n // 3) for n in range(300)]
    assert [item.offset for item in more] == list(range(100, 150))
    reader = world.bus.reader("r", [(topic, partition) for partition in range(3)])
    await reader.start()
    records = await read(reader, 350)
    await reader.stop()
    for partition in range(3):
        mine = [record for record in records if record.partition == partition]
        assert [record.offset for record in mine] == list(range(len(mine)))
        assert numbers(mine) == sorted(numbers(mine))


async def test_too_large_is_refused_before_sending_and_the_producer_lives_on(world: World):
    topic = await world.topic("t")
    producer = await producer_of(world)
    with pytest.raises(MessageTooLargeError, match="split it"):
        await producer.send_all([message(topic, 1), Message(topic, b"k", b"x" * MESSAGE_BYTES_MAX, (), 0)])
    largest = Message(topic, b"k", b"x" * (MESSAGE_BYTES_MAX - 129), (), 0)
    assert (await producer.send(largest)).offset == 0, "nothing of the refused call was stored"
    await producer.stop()


async def test_a_reader_seeks_tells_positions_and_sees_ends(world: World):
    topic = await world.topic("t", 2)
    first, second = (topic, 0), (topic, 1)
    producer = await producer_of(world)
    await producer.send_all([message(topic, number) for number in range(10)])
    reader = world.bus.reader("r", [first, second])
    await reader.start()
    assert reader.assignment() == {first, second}
    assert await reader.end_offsets([first, second]) == {first: 10, second: 0}
    assert await reader.beginning_offsets([first]) == {first: 0}
    assert numbers(await read(reader, 3)) == [0, 1, 2]
    assert await reader.position(first) == 3
    await reader.seek(first, 8)
    assert numbers(await read(reader, 2)) == [8, 9]
    assert await reader.position(first) == 10
    assert await reader.poll(max_records=10, timeout_s=0.05) == []
    await producer.send(message(topic, 10))
    assert numbers(await read(reader, 1)) == [10]
    await reader.stop()
    await producer.stop()


async def test_a_waiting_poll_is_woken_by_a_record(world: World):
    topic = await world.topic("t")
    reader = world.bus.reader("r", [(topic, 0)])
    await reader.start()
    polling = asyncio.create_task(reader.poll(max_records=10, timeout_s=DEADLINE_S))
    producer = await producer_of(world)
    await producer.send(message(topic, 7))
    assert numbers(await asyncio.wait_for(polling, DEADLINE_S / 2)) == [7]
    await reader.stop()
    await producer.stop()


async def test_paused_partitions_stay_quiet(world: World):
    topic = await world.topic("t", 2)
    producer = await producer_of(world)
    await producer.send_all([message(topic, number, number % 2) for number in range(4)])
    reader = world.bus.reader("r", [(topic, 0), (topic, 1)])
    await reader.start()
    reader.pause([(topic, 0)])
    assert numbers(await read(reader, 2)) == [1, 3]
    assert await reader.poll(max_records=10, timeout_s=0.05) == []
    reader.resume([(topic, 0)])
    assert numbers(await read(reader, 2)) == [0, 2]
    await reader.stop()
    await producer.stop()


async def test_what_retention_removed_is_an_error_and_not_a_jump(world: World):
    topic = await world.topic("t")
    part = (topic, 0)
    producer = await producer_of(world)
    await producer.send_all([message(topic, number) for number in range(10)])
    reader = world.bus.reader("r", [part])
    await reader.start()
    await read(reader, 2)
    await world.trim(part, 6)
    assert await reader.beginning_offsets([part]) == {part: 6}
    late = world.bus.reader("late", [part])
    await late.start()
    assert numbers(await read(late, 4)) == [6, 7, 8, 9]
    for offset in (2, 11):
        await late.seek(part, offset)
        with pytest.raises(OffsetGoneError, match=topic):
            await read(late, 1)
    await late.seek(part, 9)
    assert numbers(await read(late, 1)) == [9], "a consumer that seeks back into the log goes on"
    await reader.stop()
    await late.stop()
    await producer.stop()


async def test_unknown_topics_are_named(world: World):
    with pytest.raises(BusError, match="nowhere"):
        await world.bus.partition_count("nowhere")
    topic = await world.topic("t", 3)
    assert await world.bus.partition_count(topic) == 3
    reader = world.bus.reader("r", [("nowhere", 0)])
    with pytest.raises(BusError, match="nowhere"):
        await reader.start()
    member = world.bus.group_consumer("m", world.group(), ["nowhere"])
    with pytest.raises(BusError, match="nowhere"):
        await member.start()


async def test_a_group_starts_at_the_beginning_and_then_where_it_committed(world: World):
    topic, group = await world.topic("t"), world.group()
    part = (topic, 0)
    producer = await producer_of(world)
    await producer.send_all([message(topic, number) for number in range(6)])
    member = world.bus.group_consumer("m", group, [topic])
    await member.start()
    assert member.assignment() == {part}
    assert await member.committed(part) is None
    assert numbers(await read(member, 6)) == [0, 1, 2, 3, 4, 5]
    await member.commit({part: 4})
    assert await member.committed(part) == 4
    await member.stop()
    again = world.bus.group_consumer("m", group, [topic])
    await again.start()
    assert numbers(await read(again, 2)) == [4, 5]
    await again.stop()
    other = world.bus.group_consumer("m", world.group(), [topic])
    await other.start()
    assert len(await read(other, 6)) == 6
    await other.stop()
    await producer.stop()


async def test_on_assigned_may_seek_and_records_flow_after_it_returns(world: World):
    topic, group = await world.topic("t"), world.group()
    part = (topic, 0)
    producer = await producer_of(world)
    await producer.send_all([message(topic, number) for number in range(6)])
    announced: list[frozenset[TopicPartition]] = []
    may_go = asyncio.Event()

    async def assigned(partitions: frozenset[TopicPartition]) -> None:
        announced.append(partitions)
        await may_go.wait()
        await member.seek(part, 5)

    member = world.bus.group_consumer("m", group, [topic], on_assigned=assigned)
    starting = asyncio.create_task(member.start())
    await eventually(lambda: _true(bool(announced)))
    assert announced == [{part}]
    may_go.set()
    await starting
    assert numbers(await read(member, 1)) == [5]
    await member.stop()
    await producer.stop()


async def _true(value: bool) -> bool:
    return value


async def test_what_a_callback_raises_comes_out_of_poll(world: World):
    topic = await world.topic("t")

    async def assigned(partitions: frozenset[TopicPartition]) -> None:
        raise ZeroDivisionError

    member = world.bus.group_consumer("m", world.group(), [topic], on_assigned=assigned)
    await member.start()
    with pytest.raises(ZeroDivisionError):
        await member.poll(max_records=1, timeout_s=DEADLINE_S)
    await member.stop()


async def test_members_share_by_range_and_equal_numbers_meet(world: World):
    left, right, group = await world.topic("l", 4), await world.topic("r", 4), world.group()
    revoked: list[frozenset[TopicPartition]] = []

    async def note(partitions: frozenset[TopicPartition]) -> None:
        revoked.append(partitions)

    first = world.bus.group_consumer("a", group, [left, right], on_revoked=note)
    await first.start()
    everything = {(topic, part) for topic in (left, right) for part in range(4)}
    assert first.assignment() == everything
    second = world.bus.group_consumer("b", group, [left, right])
    starting = asyncio.create_task(second.start())

    async def shared() -> bool:
        await first.poll(max_records=1, timeout_s=0.01)
        return len(first.assignment()) == 4 and len(second.assignment()) == 4

    await eventually(shared)
    await starting
    assert revoked == [everything]
    assert first.assignment() | second.assignment() == everything
    for member in (first, second):
        owned = member.assignment()
        assert {part for topic, part in owned if topic == left} == {part for topic, part in owned if topic == right}
    await second.stop()

    async def alone() -> bool:
        await first.poll(max_records=1, timeout_s=0.01)
        return first.assignment() == everything

    await eventually(alone)
    await first.stop()


async def test_a_member_cannot_commit_what_it_does_not_own(world: World):
    topic, other = await world.topic("t"), await world.topic("o")
    member = world.bus.group_consumer("m", world.group(), [topic])
    await member.start()
    with pytest.raises(CommitRefusedError):
        await member.commit({(other, 0): 1})
    await member.stop()


async def test_a_static_member_returns_to_its_partitions_at_once(world: World):
    topic, group = await world.topic("t", 2), world.group()
    members = [world.bus.group_consumer(f"c{n}", group, [topic], instance_id=f"{group}-{n}") for n in range(2)]
    for starting in [asyncio.create_task(member.start()) for member in members]:
        await starting
    await eventually(lambda: _true(all(len(member.assignment()) == 1 for member in members)))
    owned = members[0].assignment()
    await members[0].stop()
    again = world.bus.group_consumer("c0", group, [topic], instance_id=f"{group}-0")
    await again.start()
    assert again.assignment() == owned
    assert len(members[1].assignment()) == 1, "the other one was not disturbed"
    await again.stop()
    await members[1].stop()


async def test_a_reader_has_no_group(world: World):
    topic = await world.topic("t")
    reader = world.bus.reader("r", [(topic, 0)])
    await reader.start()
    with pytest.raises(BusError, match="no group"):
        await reader.commit({(topic, 0): 1})
    await reader.stop()

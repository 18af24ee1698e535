"""The Kafka bus while the broker is away: waits, goes on, and says what it doesn't know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import pytest

from deploy.local.broker import EmbeddedBroker
from schemas.records import Message, Record
from services.runtime.bus.kafka import KafkaBus
from services.runtime.bus.port import BusError, CommitRefusedError, Consumer, Producer, SendUnknownError
from services.runtime.hop import next_offsets
from tests.contract.kafka_topics import create_topics

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]
DEADLINE_S = 120.0


class Publishing:
    """Sends numbers until told to stop; after an unknown send it goes on with a new producer and the same number."""

    def __init__(self, bus: KafkaBus) -> None:
        self._bus = bus
        self.acknowledged: list[int] = []
        self.unknown = 0

    async def run(self, stop: asyncio.Event) -> None:
        producer = await self._producer()
        number = 0
        while not stop.is_set():
            try:
                await producer.send(Message("t", b"k", b"%d" % number, (), number % 2))
            except SendUnknownError:
                self.unknown += 1
                await producer.stop()
                producer = await self._producer()
                continue
            self.acknowledged.append(number)
            number += 1
            await asyncio.sleep(0.005)
        await producer.stop()

    async def _producer(self) -> Producer:
        producer = self._bus.producer("publishing")
        await producer.start()
        return producer


async def collect(consumer: Consumer, into: list[Record], stop: asyncio.Event, *, commit: bool) -> None:
    while not stop.is_set():
        records = await consumer.poll(max_records=100, timeout_s=0.2)
        into.extend(records)
        if records and commit:
            try:
                await consumer.commit(next_offsets(records))
            except CommitRefusedError:
                continue


async def until(condition: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < until_s, "the condition did not come true in time"
        await asyncio.sleep(0.02)


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


async def test_everything_acknowledged_is_read_over_a_killed_broker(kafka_factory: Callable[[], EmbeddedBroker]):
    broker = kafka_factory()
    await create_topics(broker.address, {"t": 2})
    bus = KafkaBus(broker.address)
    member = bus.group_consumer("member", "g", ["t"], instance_id="member-0")
    reader = bus.reader("reader", [("t", 0), ("t", 1)])
    await member.start()
    await reader.start()
    stop_publishing, stop_reading = asyncio.Event(), asyncio.Event()
    publishing = Publishing(bus)
    by_member: list[Record] = []
    by_reader: list[Record] = []
    tasks = [
        asyncio.create_task(collect(member, by_member, stop_reading, commit=True)),
        asyncio.create_task(collect(reader, by_reader, stop_reading, commit=False)),
    ]
    publisher = asyncio.create_task(publishing.run(stop_publishing))
    await until(lambda: len(publishing.acknowledged) > 50)
    broker.kill()
    broker.start()
    await asyncio.to_thread(broker.ready)
    enough = len(publishing.acknowledged) + 50
    await until(lambda: len(publishing.acknowledged) > enough)
    stop_publishing.set()
    await publisher
    sent = set(publishing.acknowledged)
    await until(lambda: sent <= set(numbers(by_member)) and sent <= set(numbers(by_reader)))
    stop_reading.set()
    await asyncio.gather(*tasks)
    offsets = [(record.partition, record.offset) for record in by_reader]
    assert len(offsets) == len(set(offsets)), "a reader never sees an offset twice"
    for partition in range(2):
        mine = [record for record in by_reader if record.partition == partition]
        assert [record.offset for record in mine] == list(range(len(mine)))
        assert numbers(mine) == sorted(numbers(mine))
    assert len(by_reader) - len(sent) <= publishing.unknown, "only unknown sends are doubled"
    await member.stop()
    await reader.stop()


async def test_start_waits_for_a_broker_that_is_late(kafka_factory: Callable[[], EmbeddedBroker]):
    broker = kafka_factory()
    await create_topics(broker.address, {"t": 1})
    broker.kill()
    bus = KafkaBus(broker.address)
    reader = bus.reader("reader", [("t", 0)])
    starting = asyncio.create_task(reader.start())
    done, _ = await asyncio.wait({starting}, timeout=0.5)
    assert not done
    broker.start()
    await asyncio.to_thread(broker.ready)
    await asyncio.wait_for(starting, DEADLINE_S)
    await reader.stop()


async def test_a_broker_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("services.runtime.bus.kafka_retry.START_S_MAX", 0.2)
    with pytest.raises(BusError, match=r"can't reach Kafka at 127.0.0.1:9"):
        await KafkaBus("127.0.0.1:9").partition_count("t")


async def test_two_processes_with_one_instance_id_do_not_throw_each_other_out_for_ever(kafka: str):
    topic, group = f"t-{uuid4().hex[:8]}", f"g-{uuid4().hex[:8]}"
    await create_topics(kafka, {topic: 2})
    twins = [KafkaBus(kafka).group_consumer(f"twin-{number}", group, [topic], instance_id=group) for number in range(2)]

    async def polled(twin: Consumer) -> None:
        await twin.start()
        while True:
            await twin.poll(max_records=1, timeout_s=0.1)

    tasks = [asyncio.create_task(polled(twin)) for twin in twins]
    (ended,), (left,) = await asyncio.wait(tasks, timeout=2 * DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(BusError, match=f"another process uses the instance id {group}"):
        await ended
    await twins[tasks.index(ended)].stop()
    survivor = twins[tasks.index(left)]
    await until(lambda: len(survivor.assignment()) == 2)
    left.cancel()
    await asyncio.wait({left})
    await survivor.stop()

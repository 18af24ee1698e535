"""The plain hop on a real Kafka: the loop that simulation trusts behaves there alike."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from schemas.records import Message, Record
from services.runtime.bus.kafka import KafkaBus
from services.runtime.clock import WallClock
from services.runtime.hop import Hop
from tests.contract.faust_echo import Echo
from tests.contract.kafka_topics import create_topics

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]
DEADLINE_S = 60.0


async def test_cut_off_in_the_middle_and_started_again_it_answers_everything_alike(kafka: str):
    suffix = uuid4().hex[:8]
    incoming, outgoing = f"in-{suffix}", f"out-{suffix}"
    await create_topics(kafka, {incoming: 3, outgoing: 3})
    bus = KafkaBus(kafka)
    producer = bus.producer("test")
    await producer.start()
    await producer.send_all([Message(incoming, b"k%d" % n, b"x", (), n % 3) for n in range(300)])
    answers = bus.reader("test", [(outgoing, number) for number in range(3)])
    await answers.start()
    seen: list[Record] = []
    loop = asyncio.get_running_loop()
    until_s = loop.time() + DEADLINE_S

    async def answered(keys: int) -> None:
        while len({record.key for record in seen}) < keys:
            assert loop.time() < until_s, f"{len({record.key for record in seen})} of {keys} answered"
            seen.extend(await answers.poll(max_records=100, timeout_s=0.2))

    for life in range(3):
        hop = Hop(
            Echo(incoming, outgoing),
            bus,
            WallClock(),
            suffix,
            client_id="hop",
            instance_id=f"{suffix}-0",
            batch_records_max=10,
        )
        running = asyncio.create_task(hop.run())
        await answered(100 * life + 30)
        running.cancel()
        await asyncio.wait({running})
    stop = asyncio.Event()
    hop = Hop(
        Echo(incoming, outgoing),
        bus,
        WallClock(),
        suffix,
        client_id="hop",
        instance_id=f"{suffix}-0",
        poll_timeout_s=0.2,
    )
    running = asyncio.create_task(hop.run(stop))
    await answered(300)
    stop.set()
    await running
    numbers: dict[bytes | None, set[str | None]] = {}
    for record in seen:
        numbers.setdefault(record.key, set()).add(record.header("number"))
    assert {key for key, found in numbers.items() if len(found) > 1} == set()
    ends = await answers.end_offsets([(incoming, number) for number in range(3)])
    assert await bus.group_offsets(suffix, sorted(ends)) == ends
    await answers.stop()
    await producer.stop()

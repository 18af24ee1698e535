"""Sees records arrive: when a reader had them, on this process's clock. Decoding waits until the measurement is over.

Owns one reader per topic watched. Read next: `hops.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from schemas.records import Record
from services.runtime.bus.kafka import KafkaBus
from services.runtime.hop import read_to_end

RECORDS_MAX = 2_000
POLL_S = 0.5

Seen = Callable[[Record, int], None]
"""(record, Unix ns at which the reader had it)."""


@contextlib.asynccontextmanager
async def watching(bus: KafkaBus, topic: str, seen: Seen) -> AsyncIterator[None]:
    """Within, `seen` is called for every new record of the topic."""
    partitions = [(topic, number) for number in range(await bus.partition_count(topic))]
    reader = bus.reader(f"bench-{topic}", partitions)
    await reader.start()
    for partition, end in (await reader.end_offsets(partitions)).items():
        await reader.seek(partition, end)

    async def follow() -> None:
        while True:
            records = await reader.poll(max_records=RECORDS_MAX, timeout_s=POLL_S)
            now_ns = time.time_ns()
            for record in records:
                seen(record, now_ns)

    following = asyncio.ensure_future(follow())
    try:
        yield
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        await reader.stop()


async def everything(bus: KafkaBus, topics: Sequence[str]) -> list[Record]:
    """All records of these topics up to now."""
    partitions = [(topic, number) for topic in topics for number in range(await bus.partition_count(topic))]
    reader = bus.reader("bench-everything", partitions)
    found: list[Record] = []
    await reader.start()
    try:
        await read_to_end(reader, found.append)
    finally:
        await reader.stop()
    return found


async def until(condition: Callable[[], bool], wait_s: float, poll_s: float = 0.05) -> bool:
    """Whether the condition came true in time."""
    deadline_s = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(poll_s)
    return True

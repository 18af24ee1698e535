"""Follows a run on the bus and folds what it sees: every partition of the observed topics, from the beginning.

Owns one reader. The same collector serves the live demo (Kafka) and simulation (memory bus); after a broken connection
it starts over with a fresh observation, because folding from the beginning is always right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from schemas.records import Record
from services.allocator.core.audit import Audit
from services.allocator.core.config import Policy
from services.allocator.shell.log import DECISIONS, decision_of
from services.replay.core.day import Day
from services.replay.core.observation import TOPICS, Observation
from services.runtime.bus.port import Bus, BusError
from services.runtime.clock import Clock
from services.runtime.hop import read_to_end

CLIENT_ID = "replay-collector"
POLL_RECORDS_MAX = 2_000
POLL_TIMEOUT_S = 0.5
"""How long a silent poll takes to notice a stop."""
RETRY_S = 0.5
"""Wall seconds before reading again while the broker is away."""

Followers = Callable[[], Callable[[Record], None] | None]


class Collector:
    """`observation` is always usable; `follow` keeps it current."""

    def __init__(self, bus: Bus, clock: Clock, day: Day, *, also: Followers | None = None) -> None:
        """`also()` is asked for one more follower of the same records each time reading starts from the beginning."""
        self._bus = bus
        self._clock = clock
        self._day = day
        self._also = also
        self.observation = Observation(day)

    async def follow(self, stop: asyncio.Event) -> None:
        """Fold until `stop` is set. Cancel it to stop at once."""
        while not stop.is_set():
            try:
                await self._read(stop)
            except BusError:
                await self._clock.sleep_wall(RETRY_S)

    async def _read(self, stop: asyncio.Event) -> None:
        reader = self._bus.reader(CLIENT_ID, await self._partitions())
        fresh = Observation(self._day)
        also = self._also() if self._also is not None else None

        def fold(record: Record) -> None:
            fresh.fold(record)
            if also is not None:
                also(record)

        await reader.start()
        try:
            await read_to_end(reader, fold)
            self.observation = fresh
            while not stop.is_set():
                for record in await reader.poll(max_records=POLL_RECORDS_MAX, timeout_s=POLL_TIMEOUT_S):
                    fold(record)
        finally:
            await reader.stop()

    async def _partitions(self) -> list[tuple[str, int]]:
        counts = [(topic, await self._bus.partition_count(topic)) for topic in TOPICS]
        return [(topic, partition) for topic, count in counts for partition in range(count)]


async def observed(bus: Bus, day: Day, code_version: str = "") -> Observation:
    """Everything on the bus up to now, folded once, with every accepted decision checked again, by the rules of the code that made it:
    of `code_version`, if one is named, those of other versions are only counted."""
    observation = Observation(day)
    audit = Audit(day.cluster, Policy(), code_version)

    def fold(record: Record) -> None:
        observation.fold(record)
        if record.topic == DECISIONS and (decision := decision_of(record)) is not None:
            audit.follow(decision)

    counts = [(topic, await bus.partition_count(topic)) for topic in TOPICS]
    reader = bus.reader(CLIENT_ID, [(topic, partition) for topic, count in counts for partition in range(count)])
    await reader.start()
    try:
        await read_to_end(reader, fold)
    finally:
        await reader.stop()
    observation.verified, observation.violations = audit.verified, audit.violations
    observation.unjudged = audit.unjudged
    return observation

"""Reports on their way to the broker: acknowledged sends, in order, repeated until they are stored.

Owns: the sender task and its back-off. A report is journalled by its node before it comes here, so it survives a crash;
sent again it has the same id, so everyone downstream recognises it. Refuses: dropping anything. The queue needs no limit
of its own: while the broker is away no placement arrives, so it holds at most a few reports per running job.
Read next: `node.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from schemas.records import Message
from services.runtime.bus.port import Bus, BusError, Producer
from services.runtime.clock import Clock

BATCH_MESSAGES_MAX = 200
"""Sent between two acknowledgements: a rack that starts at once fits, and little is repeated after an unknown send."""
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses after failed sends, the last one repeats: a broker restart takes 2 to 5 s."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message, and what to do once the broker has it."""

    message: Message
    acknowledged: Callable[[], None]


class Outbox:
    """One sender for all nodes of this process."""

    def __init__(self, bus: Bus, clock: Clock, client_id: str) -> None:
        self._bus = bus
        self._clock = clock
        self._client_id = client_id
        self._parcels: deque[Parcel] = deque()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._producer: Producer | None = None

    def put(self, parcel: Parcel) -> None:
        self._parcels.append(parcel)
        self._emptied.clear()
        self._filled.set()

    @property
    def waiting(self) -> int:
        """Reports the broker has not acknowledged."""
        return len(self._parcels)

    async def run(self) -> None:
        """Send for ever."""
        failures = 0
        try:
            while True:
                await self._filled.wait()
                batch = [self._parcels[index] for index in range(min(len(self._parcels), BATCH_MESSAGES_MAX))]
                try:
                    await self._send([parcel.message for parcel in batch])
                except BusError:
                    await self._clock.sleep_wall(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                    failures += 1
                    await self._drop_producer()
                    continue
                failures = 0
                for parcel in batch:
                    self._parcels.popleft()
                    parcel.acknowledged()
                if not self._parcels:
                    self._filled.clear()
                    self._emptied.set()
        finally:
            await self._drop_producer()

    async def drained(self) -> None:
        """Return when everything put so far is acknowledged."""
        await self._emptied.wait()

    async def _send(self, messages: list[Message]) -> None:
        if self._producer is None:
            producer = self._bus.producer(self._client_id)
            await producer.start()
            self._producer = producer
        await self._producer.send_all(messages)

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()

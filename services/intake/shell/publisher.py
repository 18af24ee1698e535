"""Publishing to `job-events` from the HTTP door: acknowledged, with a new producer after every doubt.

Owns the producer's life. Refuses to retry: whether an unknown send was stored is for the caller to settle, by sending the
same again under the same id.
"""

from __future__ import annotations

import asyncio

from schemas.records import Message
from services.runtime.bus.port import Bus, Delivery, Producer, SendUnknownError


class Publisher:
    """One producer shared by all requests; replaced after a failed send."""

    def __init__(self, bus: Bus, client_id: str) -> None:
        self._bus = bus
        self._client_id = client_id
        self._producer: Producer | None = None
        self._replacing = asyncio.Lock()

    async def start(self) -> None:
        await self._current()

    async def stop(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
            self._producer = None

    async def publish(self, message: Message) -> Delivery:
        """Send and wait for the acknowledgement. Raises SendUnknownError or another BusError."""
        producer = await self._current()
        try:
            return await producer.send(message)
        except SendUnknownError:
            await self._drop(producer)
            raise

    async def _current(self) -> Producer:
        async with self._replacing:
            if self._producer is None:
                fresh = self._bus.producer(self._client_id)
                await fresh.start()
                self._producer = fresh
            return self._producer

    async def _drop(self, failed: Producer) -> None:
        async with self._replacing:
            if self._producer is failed:
                self._producer = None
                await failed.stop()

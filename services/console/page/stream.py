"""Server-sent events: one bounded queue per browser, filled with deltas as they are made.

A browser that doesn't keep up is told to take a snapshot again; it never makes the others or the memory suffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from services.console.page.hub import Hub

QUEUE_MAX = 64
"""Deltas waiting for one browser: half a minute of a busy stack."""
BEAT_S = 3.0
"""Without news a beat tells that the connection lives, and what time it is."""
CLIENTS_MAX = 200

RESET = b"event: reset\ndata: {}\n\n"


class Stream:
    """`publish` to all; `events` for one."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._queues: set[asyncio.Queue[bytes | None]] = set()

    @property
    def full(self) -> bool:
        return len(self._queues) >= CLIENTS_MAX

    def publish(self, delta: bytes) -> None:
        """Hand a delta to every browser; whose queue is full starts over."""
        event = framed(delta)
        for queue in self._queues:
            if queue.full():
                self._drop(queue)
            else:
                queue.put_nowait(event)

    def restart(self) -> None:
        """Everybody starts over."""
        for queue in self._queues:
            self._drop(queue)

    @staticmethod
    def _drop(queue: asyncio.Queue[bytes | None]) -> None:
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)

    async def events(self, epoch: str, version: int, beat: Callable[[], bytes]) -> AsyncIterator[bytes]:
        """What one browser gets after its snapshot, until it has to start over."""
        missed = self._hub.since(epoch, version)
        if missed is None:
            yield RESET
            return
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE_MAX)
        self._queues.add(queue)
        try:
            yield beat()
            for delta in missed:
                yield framed(delta)
            while True:
                try:
                    event = await asyncio.wait_for(queue.get(), BEAT_S)
                except TimeoutError:
                    yield beat()
                    continue
                if event is None:
                    yield RESET
                    return
                yield event
        finally:
            self._queues.discard(queue)


def framed(delta: bytes) -> bytes:
    """A delta as an event; JSON has no line breaks of its own."""
    return b"event: delta\ndata: " + delta + b"\n\n"

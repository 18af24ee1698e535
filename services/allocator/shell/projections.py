"""What follows from accepted decisions on its way to the broker: in order, behind the decisions, repeated until acknowledged.

The next decision doesn't wait for the projections of the last: only the log has to be acknowledged before it goes on. A
snapshot travels in the same order, so its manifest is written only after everything it stands for was acknowledged; what is
lost with the process is re-emitted by the successor. Owns a producer and one task. Refuses to grow without limit: `put`
waits. Read next: `owner.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice

from schemas.records import Message
from services.runtime.bus.port import Bus, BusError, Producer, SendUnknownError
from services.runtime.clock import Clock

BATCH_MESSAGES_MAX = 500
"""Sent between two acknowledgements: the statuses of one large decision, and little to repeat after an unknown send."""
WAITING_MESSAGES_MAX = 10_000
"""About five seconds of a busy cluster. Beyond it decisions wait for the broker, so that memory stays bounded."""
SEND_BACKOFF_S = 0.2
SEND_TRIES_MAX = 300
"""A minute without a broker; then the cluster is taken over anew, which emits its projections again."""


class Projections:
    """`put` hands over, `drained` waits until everything is acknowledged, `stop` drops the rest."""

    def __init__(self, bus: Bus, clock: Clock, client_id: str) -> None:
        self._bus = bus
        self._clock = clock
        self._client_id = client_id
        self._groups: deque[tuple[Sequence[Message], bool]] = deque()
        self._waiting = 0
        self._filled = asyncio.Event()
        self._sent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._producer: Producer | None = None

    def start(self) -> None:
        """Begin to send. Before it nothing may be put."""
        self._task = asyncio.ensure_future(self._send_for_ever())

    async def stop(self) -> None:
        """Nothing more is sent. Who wants everything sent calls `drained` first."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._groups.clear()
        self._waiting = 0
        self._filled.clear()
        await self._drop_producer()

    async def put(self, messages: Sequence[Message], *, alone: bool = False) -> None:
        """Queue a group behind all earlier ones; an `alone` one is sent when all earlier ones are acknowledged, and before any
        later one. Raises SendUnknownError if earlier ones could not be written.
        """
        while self._waiting >= WAITING_MESSAGES_MAX:
            await self._next_sent()
        self._check()
        if messages:
            self._groups.append((messages, alone))
            self._waiting += len(messages)
            self._filled.set()

    async def drained(self) -> None:
        """Return when everything put so far is acknowledged. Raises as `put` does."""
        while self._waiting:
            await self._next_sent()

    async def _next_sent(self) -> None:
        self._check()
        self._sent.clear()
        await self._sent.wait()
        self._check()

    def _check(self) -> None:
        assert self._task is not None, "start comes first"
        if self._task.done():
            self._task.result()
            raise BusError("projections were stopped")

    async def _send_for_ever(self) -> None:
        try:
            while True:
                await self._filled.wait()
                groups, messages = self._next_batch()
                await self._send(messages)
                for _ in range(groups):
                    self._groups.popleft()
                self._waiting -= len(messages)
                if not self._groups:
                    self._filled.clear()
                self._sent.set()
        finally:
            self._sent.set()  # whoever waits shall look

    def _next_batch(self) -> tuple[int, list[Message]]:
        """The oldest groups that may travel and fit into a batch together, at least one."""
        first, alone = self._groups[0]
        groups, messages = 1, list(first)
        for group, stays_alone in islice(self._groups, 1, None):
            if alone or stays_alone or len(messages) + len(group) > BATCH_MESSAGES_MAX:
                break
            groups += 1
            messages.extend(group)
        return groups, messages

    async def _send(self, messages: list[Message]) -> None:
        """Until acknowledged: projections are idempotent by sequence, so a repetition is harmless."""
        for _ in range(SEND_TRIES_MAX):
            try:
                if self._producer is None:
                    producer = self._bus.producer(self._client_id)
                    await producer.start()
                    self._producer = producer
                await self._producer.send_all(messages)
                return
            except SendUnknownError:
                await self._drop_producer()
                await self._clock.sleep_wall(SEND_BACKOFF_S)
        wall_s = SEND_TRIES_MAX * SEND_BACKOFF_S
        raise SendUnknownError(f"projections of {self._client_id} could not be written for {wall_s:.0f} s")

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()

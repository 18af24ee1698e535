"""Run a Handler over a bus: rebuild, consume in batches, publish acknowledged, commit. At least once, never a silent skip.

Owns: the order of these steps and what happens when one fails. faust does the same in production (`faust_hop.py`); this
loop serves simulation, tests and small tools, on any bus. Refuses: any knowledge of what a record means. Read next:
`handler.py`, `bus/port.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from services.runtime.bus.port import (
    Bus,
    CommitRefusedError,
    Consumer,
    Message,
    Producer,
    Record,
    SendUnknownError,
    TopicPartition,
)
from services.runtime.clock import Clock
from services.runtime.handler import TICK_PERIOD_S, Handler, Now, Owner, Settling
from services.runtime.saved_state import SavedState

log = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 200
"""Records handled between two acknowledged sends: enough for 300/s and more, few enough to redo after a failed send."""
POLL_TIMEOUT_S = 5.0
"""Only bounds how long a quiet hop takes to notice that it should stop; records wake it at once."""
RECOVERY_BATCH_RECORDS = 2_000
"""Rebuilding sends nothing, so it reads in larger pieces."""
RECOVERY_POLL_S = 1.0
SETTLED_AT_ONCE_MAX = 2_000
"""Records kept back while state is rebuilt that are folded in one go: a fifth of a second."""
RESEND_BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses between producers after failed sends; the last one repeats. A broker restart takes 2 to 5 s."""

DeadLetter = Callable[[Record, Exception, Now], Message]
Handle = Callable[[Handler, Record, Now], list[Message]]
Observe = Callable[[Sequence[Record], Now], None]
"""Called after the answers of a batch are acknowledged; `metrics.Metrics.observe_batch` is one."""


class StopSignal(Protocol):
    """An asyncio.Event, or anything else that can be asked."""

    def is_set(self) -> bool: ...


def handled(handler: Handler, record: Record, now: Now) -> list[Message]:
    """Plainly call the handler; `tracing.traced_handle` is the same with a span around it."""
    return handler.handle(record, now)


class Rebuilder:
    """Feeds `rebuilt_from` topics to a handler's `recover`, from where it last stopped to their end; the first time from their
    beginning, or from where `saved` ends."""

    def __init__(self, bus: Bus, handler: Handler, client_id: str, saved: SavedState | None = None) -> None:
        self._bus = bus
        self._handler = handler
        self._client_id = client_id
        self._saved = saved
        self._reader: Consumer | None = None
        self.read = 0
        """Records so far."""

    async def catch_up(self) -> int:
        """Fold everything that is in the topics now; returns how many records that was."""
        if not self._handler.rebuilt_from:
            return 0
        if self._reader is None:
            self._reader = self._bus.reader(f"{self._client_id}-rebuild", await self._partitions())
            await self._reader.start()
            await self._skip_what_is_saved(self._reader)
        else:
            await self._skip_what_retention_took(self._reader)
        before = self.read
        await read_to_end(self._reader, self._recover)
        await self._settle()
        return self.read - before

    def _recover(self, record: Record) -> None:
        self.read += 1
        self._handler.recover(record)

    async def _settle(self) -> None:
        """What is kept back, in pieces: seconds in which nobody is heard would cost the process its place in its group."""
        if isinstance(self._handler, Settling):
            while self._handler.kept_back > SETTLED_AT_ONCE_MAX:
                self._handler.settle(SETTLED_AT_ONCE_MAX)
                await asyncio.sleep(0)

    async def _skip_what_is_saved(self, reader: Consumer) -> None:
        if self._saved is None or not await self._saved.restore(self._bus, self._client_id):
            return
        begins = await reader.beginning_offsets(sorted(reader.assignment()))
        for partition, mark in self._saved.marks().items():
            await reader.seek(partition, max(mark.offset + 1, begins[partition]))

    async def _skip_what_retention_took(self, reader: Consumer) -> None:
        """Between two rebalances may lie weeks; what has left the topic meanwhile would not be rebuilt on a start either."""
        for partition, start in (await reader.beginning_offsets(sorted(reader.assignment()))).items():
            if await reader.position(partition) < start:
                await reader.seek(partition, start)

    async def stop(self) -> None:
        if self._reader is not None:
            await self._reader.stop()

    async def _partitions(self) -> list[TopicPartition]:
        counts = [(topic, await self._bus.partition_count(topic)) for topic in self._handler.rebuilt_from]
        return [(topic, partition) for topic, count in counts for partition in range(count)]


async def read_to_end(reader: Consumer, fold: Callable[[Record], None]) -> int:
    """Fold records until the reader stands at the end offsets of this moment; returns how many records that was."""
    ends = await reader.end_offsets(sorted(reader.assignment()))
    folded = 0
    while [part for part, end in ends.items() if await reader.position(part) < end]:
        records = await reader.poll(max_records=RECOVERY_BATCH_RECORDS, timeout_s=RECOVERY_POLL_S)
        for record in records:
            fold(record)
        folded += len(records)
    return folded


class Hop:
    """One running loop. `run` returns after `stop` is set, with everything handled so far published and committed."""

    def __init__(
        self,
        handler: Handler,
        bus: Bus,
        clock: Clock,
        group: str,
        *,
        client_id: str,
        instance_id: str | None = None,
        dead_letter: DeadLetter | None = None,
        handle: Handle = handled,
        observe: Observe | None = None,
        batch_records_max: int = BATCH_RECORDS_MAX,
        poll_timeout_s: float = POLL_TIMEOUT_S,
        tick_period_s: float = TICK_PERIOD_S,
    ) -> None:
        self._handler = handler
        self._bus = bus
        self._clock = clock
        self._client_id = client_id
        self._dead_letter = dead_letter
        self._handle = handle
        self._observe = observe
        self._batch_records_max = batch_records_max
        self._poll_timeout_s = poll_timeout_s
        self._tick_period_s = tick_period_s
        self._rebuilder = Rebuilder(bus, handler, client_id)
        self._producer: Producer | None = None
        self.consumer = bus.group_consumer(
            client_id, group, handler.inputs, instance_id=instance_id, on_assigned=self._assigned
        )

    async def run(self, stop: StopSignal | None = None) -> None:
        try:
            await self._rebuilder.catch_up()
            await self._new_producer()
            await self.consumer.start()
            await self._consume(stop)
        finally:
            await self.consumer.stop()
            await self._rebuilder.stop()
            if self._producer is not None:
                await self._producer.stop()

    async def _assigned(self, partitions: frozenset[TopicPartition]) -> None:
        # Whoever owned these partitions before has published meanwhile: fold it before the first record flows.
        await self._rebuilder.catch_up()
        if isinstance(self._handler, Owner):
            self._handler.own(frozenset(number for _, number in partitions))

    async def _consume(self, stop: StopSignal | None) -> None:
        tick_at_s = self._clock.wall_s() + self._tick_period_s
        while stop is None or not stop.is_set():
            wait_s = min(self._poll_timeout_s, max(0.0, tick_at_s - self._clock.wall_s()))
            records = await self.consumer.poll(max_records=self._batch_records_max, timeout_s=wait_s)
            if records:
                await self._publish(answers(self._handler, self._handle, self._dead_letter, records, self._now))
                if self._observe is not None:
                    self._observe(records, self._now())
                await self._commit(records)
            if self._clock.wall_s() >= tick_at_s:
                await self._publish(self._handler.tick(self._now()))
                tick_at_s = self._clock.wall_s() + self._tick_period_s

    async def _publish(self, outputs: Sequence[Message]) -> None:
        """Send until acknowledged. After an unknown send everything goes out again: downstream knows repetitions."""
        attempt = 0
        while outputs:
            assert self._producer is not None, "run makes the producer before the first poll"
            try:
                await self._producer.send_all(outputs)
                return
            except SendUnknownError:
                await self._clock.sleep_wall(RESEND_BACKOFF_S[min(attempt, len(RESEND_BACKOFF_S) - 1)])
                attempt += 1
                await self._new_producer()

    async def _commit(self, records: Sequence[Record]) -> None:
        try:
            await self.consumer.commit(next_offsets(records))
        except CommitRefusedError:
            return  # the partition moved: its new owner repeats this batch, and everyone downstream knows repetitions

    def _now(self) -> Now:
        return Now(domain_ms=self._clock.now_ms(), wall_ms=self._clock.wall_ms())

    async def _new_producer(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
        self._producer = self._bus.producer(self._client_id)
        await self._producer.start()


def answers(
    handler: Handler, handle: Handle, dead_letter: DeadLetter | None, records: Iterable[Record], now: Callable[[], Now]
) -> list[Message]:
    """What a batch is answered with. A record that can't be handled becomes a dead letter, or ends the process if there is none."""
    outputs: list[Message] = []
    for record in records:
        at = now()
        try:
            outputs.extend(handle(handler, record, at))
        except Exception as error:
            if dead_letter is None:
                raise
            log.exception("%s/%d@%d can't be handled", record.topic, record.partition, record.offset)
            outputs.append(dead_letter(record, error, at))
    return outputs


def next_offsets(records: Sequence[Record]) -> dict[TopicPartition, int]:
    """What to commit after a batch: per partition, one past the last record."""
    return {(record.topic, record.partition): record.offset + 1 for record in records}


def run_hop(
    handler: Handler,
    bus: Bus,
    clock: Clock,
    group: str,
    *,
    client_id: str,
    instance_id: str | None = None,
    stop: StopSignal | None = None,
    dead_letter: DeadLetter | None = None,
) -> Awaitable[None]:
    """Run a handler until `stop` is set: `Hop(...).run(stop)` with the usual limits."""
    hop = Hop(handler, bus, clock, group, client_id=client_id, instance_id=instance_id, dead_letter=dead_letter)
    return hop.run(stop)

"""The memory bus: a partitioned log in this process that behaves like Kafka, including when things go wrong.

Owns: topics, producers, readers, group members, and the faults of a seeded `FaultPlan` (duplicates, delays, order across
partitions, sends that fail before or after storing), plus crashes (`kill`, `expel`), `compact` and `trim` on request. The
simulation rests on it, so it passes the same suite as the Kafka bus. Runs on any event loop, virtual or real; under a
virtual one equal plans give equal runs. Refuses threads. Read next: `memory_log.py`, `memory_group.py`, `faults.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from services.runtime.bus.faults import FaultDice, FaultPlan, Unknown
from services.runtime.bus.memory_consumer import MemoryGroupConsumer, MemoryReader
from services.runtime.bus.memory_group import MemoryGroup
from services.runtime.bus.memory_log import PartitionLog
from services.runtime.bus.partitioner import partition_of_key
from services.runtime.bus.port import (
    BusError,
    Delivery,
    Message,
    Rebalanced,
    Record,
    SendUnknownError,
    TopicPartition,
    check_sizes,
)
from services.runtime.clock import Clock, WallClock

SESSION_TIMEOUT_S = 10.0
"""How long a group waits for a member that died, as aiokafka's default."""


class MemoryBus:
    """A bus for one event loop. `faults` and the order of calls determine everything that happens."""

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        clock: Clock | None = None,
        faults: FaultPlan | None = None,
        session_timeout_s: float = SESSION_TIMEOUT_S,
    ) -> None:
        self._clock = clock or WallClock()
        self.dice = FaultDice(faults or FaultPlan())
        self._calm = faults is None
        self._session_timeout_s = session_timeout_s
        self._partition_counts: dict[str, int] = {}
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._groups: dict[str, MemoryGroup] = {}
        self._failing: dict[str, deque[Unknown]] = {}
        self._keyless = count()
        for topic, partition_count in (topics or {}).items():
            self.create_topic(topic, partition_count)

    # --- the port

    def producer(self, client_id: str) -> MemoryProducer:
        return MemoryProducer(self, client_id)

    def reader(self, client_id: str, partitions: Iterable[TopicPartition]) -> MemoryReader:
        return MemoryReader(self, client_id, partitions)

    def group_consumer(
        self,
        client_id: str,
        group: str,
        topics: Sequence[str],
        *,
        instance_id: str | None = None,
        on_assigned: Rebalanced | None = None,
        on_revoked: Rebalanced | None = None,
    ) -> MemoryGroupConsumer:
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = MemoryGroup(group, self._partition_counts, self._session_timeout_s)
        return MemoryGroupConsumer(self, client_id, known, topics, instance_id, on_assigned, on_revoked)

    async def partition_count(self, topic: str) -> int:
        return self._count(topic)

    # --- what a simulation or a test does to the bus

    def create_topic(self, topic: str, partition_count: int) -> None:
        if topic in self._partition_counts:
            raise BusError(f"topic {topic} exists already")
        if partition_count < 1:
            raise BusError(f"topic {topic} needs at least one partition")
        self._partition_counts[topic] = partition_count
        for partition in range(partition_count):
            self._logs[topic, partition] = PartitionLog(topic, partition)

    def kill(self, consumer: MemoryGroupConsumer) -> None:
        """The member's process dies without a commit: its group notices when the session times out."""
        consumer.die()

    def expel(self, consumer: MemoryGroupConsumer) -> None:
        """The member was stopped for longer than its session: partitions move; it rejoins at its next poll."""
        consumer.group.expel(consumer)

    def fail_next_send(self, topic: str, how: Unknown) -> None:
        """The next call that sends to this topic raises SendUnknownError, with nothing or with everything stored."""
        self._failing.setdefault(topic, deque()).append(how)

    def heal(self) -> None:
        """From now on nothing goes wrong; what is hidden still takes its time (`hidden_until_s`)."""
        self.dice = FaultDice(FaultPlan())
        self._calm = True
        self._failing.clear()

    def hidden_until_s(self) -> float:
        """The loop's time at which everything stored so far can be seen."""
        return max((log.visible_at_s for log in self._logs.values()), default=0.0)

    def compact(self, topic: str, *, drop_tombstones: bool = False) -> int:
        """Leave only the last record per key (and the newest); returns how many records went."""
        return sum(self._logs[part].compact(drop_tombstones=drop_tombstones) for part in self.partitions(topic))

    def trim(self, partition: TopicPartition, before_offset: int) -> int:
        """Retention: remove what lies below the offset; returns how many records went. Wakes whoever stood there."""
        gone = self.log(partition).trim(before_offset)
        self.log(partition).wake_watchers()
        return gone

    def records(self, topic: str) -> list[Record]:
        """Everything stored in a topic, by partition and offset, for checkers."""
        return [record for part in self.partitions(topic) for record in self._logs[part].records()]

    def committed(self, group: str) -> dict[TopicPartition, int]:
        known = self._groups.get(group)
        return dict(known.committed) if known else {}

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [(topic, partition) for partition in range(self._count(topic))]

    # --- for this package

    def log(self, partition: TopicPartition) -> PartitionLog:
        log = self._logs.get(partition)
        if log is None:
            raise BusError(f"no such topic or partition: {partition[0]}/{partition[1]}")
        return log

    @property
    def calm(self) -> bool:
        """No faults are planned: sends are stored at once."""
        return self._calm and not self._failing

    def place(self, message: Message) -> TopicPartition:
        """The partition a message goes to: the caller's, else by key, else in turn."""
        partition_count = self._count(message.topic)
        partition = message.partition
        if partition is None:
            key = message.key
            partition = next(self._keyless) % partition_count if key is None else partition_of_key(key, partition_count)
        if not 0 <= partition < partition_count:
            raise BusError(f"{message.topic} has partitions 0 to {partition_count - 1}, not {partition}")
        return message.topic, partition

    def store(self, message: Message, partition: TopicPartition) -> Delivery:
        """Append, with this topic's fetch delay and duplicates; wakes consumers when the record becomes visible."""
        log = self._logs[partition]
        offset = log.append(message.key, message.value, message.headers, self._clock.wall_ms())
        if self._calm:
            log.wake_watchers()
            return Delivery(partition[0], partition[1], offset)
        self._show_later(log)
        duplicate_after_s = self.dice.duplicate_after_s(partition[0])
        if duplicate_after_s is not None:
            asyncio.get_running_loop().call_later(duplicate_after_s, self._store_again, message, partition)
        return Delivery(partition[0], partition[1], offset)

    def how_to_fail(self, messages: Sequence[Message]) -> Unknown | None:
        for message in messages:
            waiting = self._failing.get(message.topic)
            if waiting:
                how = waiting.popleft()
                if not waiting:
                    del self._failing[message.topic]
                return how
        return self.dice.unknown(messages[0].topic)

    def _store_again(self, message: Message, partition: TopicPartition) -> None:
        if self._calm:
            return
        log = self._logs[partition]
        log.append(message.key, message.value, message.headers, self._clock.wall_ms())
        self._show_later(log)

    def _show_later(self, log: PartitionLog) -> None:
        loop = asyncio.get_running_loop()
        delay_s = self.dice.fetch_delay_s(log.topic)
        visible_at_s = log.delay_last(loop.time() + delay_s)
        if visible_at_s <= loop.time():
            log.wake_watchers()
        else:
            loop.call_at(visible_at_s, log.wake_watchers)

    def _count(self, topic: str) -> int:
        partition_count = self._partition_counts.get(topic)
        if partition_count is None:
            raise BusError(f"no such topic: {topic}")
        return partition_count


@dataclass(slots=True, eq=False)
class _InFlight:
    """The part of one call that goes to one partition."""

    partition: TopicPartition
    messages: list[Message] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    dropped: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryProducer:
    """Acknowledged sends. After a SendUnknownError it is dead, as an idempotent Kafka producer should be taken to be."""

    def __init__(self, bus: MemoryBus, client_id: str) -> None:
        self._bus = bus
        self._client_id = client_id
        self._state = "new"
        self._queues: dict[TopicPartition, deque[_InFlight]] = {}

    async def start(self) -> None:
        self._state = "started"

    async def stop(self) -> None:
        while self._queues:
            await next(iter(self._queues.values()))[0].done.wait()
        self._state = "stopped"

    async def send(self, message: Message) -> Delivery:
        return (await self.send_all((message,)))[0]

    async def send_all(self, messages: Sequence[Message]) -> list[Delivery]:
        if self._state == "dead":
            raise SendUnknownError(f"producer {self._client_id} failed before: make a new one")
        if self._state != "started":
            raise BusError(f"producer {self._client_id} is {self._state}, not started")
        check_sizes(messages)
        placed = [self._bus.place(message) for message in messages]
        if not messages:
            return []
        if self._bus.calm and not self._queues:
            stored = [self._bus.store(*pair) for pair in zip(messages, placed, strict=True)]
            await asyncio.sleep(0)  # an acknowledgement takes a turn of the loop, so that others get theirs
            return stored
        return await self._send_slowly(messages, placed)

    async def _send_slowly(self, messages: Sequence[Message], placed: Sequence[TopicPartition]) -> list[Delivery]:
        how = self._bus.how_to_fail(messages)
        parts: dict[TopicPartition, _InFlight] = {}
        for place, (message, partition) in enumerate(zip(messages, placed, strict=True)):
            part = parts.setdefault(partition, _InFlight(partition))
            part.messages.append(message)
            part.places.append(place)
        sent = list(parts.values())
        if how is Unknown.BEFORE_STORING:
            sent = sent[: self._bus.dice.stored_part(len(sent))]
        for part in sent:
            self._launch(part)
        try:
            for part in sent:
                await part.done.wait()
        except asyncio.CancelledError:
            # The process dies with requests on the wire: some still reach the broker, each partition for itself.
            for part in sent[self._bus.dice.stored_part(len(sent) + 1) :]:
                part.dropped = True
            raise
        await asyncio.sleep(0)
        if how is not None:
            self._state = "dead"
            raise SendUnknownError(f"the send of {len(messages)} messages failed; some may be stored")
        return _in_call_order(sent, len(messages))

    def _launch(self, part: _InFlight) -> None:
        # One queue per partition: whichever timer fires first stores the oldest part, so order is the order of calls.
        self._queues.setdefault(part.partition, deque()).append(part)
        delay_s = self._bus.dice.send_delay_s(part.partition[0])
        asyncio.get_running_loop().call_later(delay_s, self._store_oldest, part.partition)

    def _store_oldest(self, partition: TopicPartition) -> None:
        queue = self._queues[partition]
        part = queue.popleft()
        if not queue:
            del self._queues[partition]
        if not part.dropped:
            part.deliveries = [self._bus.store(message, partition) for message in part.messages]
        part.done.set()


def _in_call_order(parts: Sequence[_InFlight], size: int) -> list[Delivery]:
    ordered: list[Delivery | None] = [None] * size
    for part in parts:
        for place, delivery in zip(part.places, part.deliveries, strict=True):
            ordered[place] = delivery
    complete = [delivery for delivery in ordered if delivery is not None]
    assert len(complete) == size, "every message of an acknowledged call is stored"
    return complete

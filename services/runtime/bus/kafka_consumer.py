"""Consumers on Kafka: the reader (partitions by hand) and the group member, both made to outlive broker restarts.

Owns: positions never move by themselves (`auto_offset_reset="none"`); a member starts at its committed offset, else at the
beginning, by an explicit seek; records flow only when that is done. Transient errors make `poll` return nothing; broken
clients are replaced. Refuses: auto commit. Read next: `port.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from aiokafka.structs import ConsumerRecord

from services.runtime.bus.kafka_retry import AssignmentPace, backoff_s, closed, started
from services.runtime.bus.port import (
    BusError,
    CommitRefusedError,
    OffsetGoneError,
    Rebalanced,
    Record,
    TopicPartition,
)

FETCH_WAIT_MS = 100
"""How long the broker holds a fetch that finds nothing. aiokafka has one fetch in flight per broker, so a seek, a resume, or
records of a partition whose previous ones were not taken within 100 ms wait up to this long; records on quiet partitions
don't wait at all. Idle cost of a consumer on a busy core: 6.5 % at 5 ms, 2.7 % at 20, 0.6 % at 100, 0.2 % at 500."""
REQUEST_TIMEOUT_MS = 15_000
"""Longer than a rebalance may keep a join waiting; a frozen broker is noticed after this."""
SESSION_TIMEOUT_MS = 10_000
"""A dead dynamic member's partitions move after this. Static members return to theirs at once."""
HEARTBEAT_MS = 1_000
"""Members learn of a rebalance by heartbeat, so this bounds how long a joining member waits for the others."""
REBALANCE_TIMEOUT_MS = 30_000
"""How long the group waits for a member that is still in `on_assigned`, rebuilding state."""
FAILURES_IN_A_ROW_MAX = 60
"""With the back-off about a minute of failing polls; then the process should end and be started anew."""

log = logging.getLogger(__name__)

PartitionCount = Callable[[str], Awaitable[int]]


def to_record(record: ConsumerRecord) -> Record:
    headers = tuple((name, value if value is not None else b"") for name, value in record.headers)
    return Record(
        record.topic, record.partition, record.offset, record.key, record.value, headers, max(0, record.timestamp)
    )


class _KafkaConsumer:
    """What both kinds share; `_open` makes and positions the inner client."""

    def __init__(
        self, bootstrap: str, partition_count: PartitionCount, client_id: str, fetch_wait_ms: int | None
    ) -> None:
        self._bootstrap = bootstrap
        self._partition_count = partition_count
        self._client_id = client_id
        self._fetch_wait_ms = FETCH_WAIT_MS if fetch_wait_ms is None else fetch_wait_ms
        self._open_client: AIOKafkaConsumer | None = None
        self._failures_in_a_row = 0

    async def stop(self) -> None:
        inner, self._open_client = self._open_client, None
        if inner is not None:
            await closed(inner)

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset() if self._open_client is None else frozenset(map(_plain, self._open_client.assignment()))

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        try:
            self._inner.seek(KafkaPartition(*partition), offset)
        except IllegalStateError as error:
            raise _not_assigned(partition) from error

    async def position(self, partition: TopicPartition) -> int:
        try:
            return await self._inner.position(KafkaPartition(*partition))
        except IllegalStateError as error:
            raise _not_assigned(partition) from error

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._offsets(self._inner.end_offsets, partitions)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._offsets(self._inner.beginning_offsets, partitions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._inner.pause(*(KafkaPartition(*partition) for partition in partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._inner.resume(*(KafkaPartition(*partition) for partition in partitions))

    async def poll(self, *, max_records: int, timeout_s: float) -> list[Record]:
        inner = self._inner
        if not await self._ready(timeout_s):
            return []
        try:
            found = await inner.getmany(timeout_ms=int(timeout_s * 1000), max_records=max_records)
        except OffsetOutOfRangeError as error:
            raise OffsetGoneError(f"an offset is not in the log any more, or not yet: {error.args[0]}") from error
        except NoOffsetForPartitionError:
            return []  # fetched before the first seek; the seek has replaced it
        except KafkaError as error:
            await self._survive(error, inner)
            return []
        self._failures_in_a_row = 0
        return [to_record(record) for records in found.values() for record in records]

    async def _ready(self, timeout_s: float) -> bool:
        return True

    async def _open(self) -> None:
        raise NotImplementedError

    async def _survive(self, error: KafkaError, inner: AIOKafkaConsumer) -> None:
        """Wait out what passes; replace a client that can't recover; give up after FAILURES_IN_A_ROW_MAX."""
        self._failures_in_a_row += 1
        if self._failures_in_a_row > FAILURES_IN_A_ROW_MAX:
            raise BusError(f"consumer {self._client_id} keeps failing: {error!r}") from error
        log.warning("consumer %s: %r, trying again", self._client_id, error)
        await asyncio.sleep(backoff_s(self._failures_in_a_row))
        if not error.retriable and self._open_client is inner:
            await closed(inner)
            await self._open()

    async def _offsets(
        self, ask: Callable[[list[KafkaPartition]], Awaitable[Mapping[Any, int]]], partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        asked = [KafkaPartition(*partition) for partition in partitions]
        for attempt in range(FAILURES_IN_A_ROW_MAX):
            try:
                return {_plain(partition): offset for partition, offset in (await ask(asked)).items()}
            except KafkaError as error:
                log.warning("consumer %s: %r, trying again", self._client_id, error)
                await asyncio.sleep(backoff_s(attempt))
        raise BusError(f"Kafka at {self._bootstrap} tells no offsets")

    async def _check_topics(self, topics: Iterable[str]) -> None:
        for topic in topics:
            await self._partition_count(topic)

    @property
    def _inner(self) -> AIOKafkaConsumer:
        if self._open_client is None:
            raise BusError(f"consumer {self._client_id} is not started")
        return self._open_client

    def _settings(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._bootstrap,
            "client_id": self._client_id,
            "auto_offset_reset": "none",
            "enable_auto_commit": False,
            "fetch_min_bytes": 1,
            "fetch_max_wait_ms": self._fetch_wait_ms,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "retry_backoff_ms": 50,
            "check_crcs": True,
        }


class KafkaReader(_KafkaConsumer):
    """Partitions assigned by hand; starts at the beginning of the log."""

    def __init__(
        self,
        bootstrap: str,
        partition_count: PartitionCount,
        client_id: str,
        partitions: Iterable[TopicPartition],
        fetch_wait_ms: int | None = None,
    ) -> None:
        super().__init__(bootstrap, partition_count, client_id, fetch_wait_ms)
        self._wanted = tuple(dict.fromkeys(partitions))
        self._next: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()

    async def start(self) -> None:
        await self._check_topics(dict.fromkeys(topic for topic, _ in self._wanted))
        await self._open()

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        await super().seek(partition, offset)
        self._next[partition] = offset

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        paused = tuple(partitions)
        super().pause(paused)
        self._paused.update(paused)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        resumed = tuple(partitions)
        super().resume(resumed)
        self._paused.difference_update(resumed)

    async def poll(self, *, max_records: int, timeout_s: float) -> list[Record]:
        records = await super().poll(max_records=max_records, timeout_s=timeout_s)
        for record in records:
            self._next[record.topic, record.partition] = record.offset + 1
        return records

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        raise BusError("a reader has no group to commit to")

    async def committed(self, partition: TopicPartition) -> int | None:
        raise BusError("a reader has no group to commit to")

    async def _open(self) -> None:
        inner = await started(lambda: AIOKafkaConsumer(**self._settings()), self._bootstrap)
        self._open_client = inner
        inner.assign([KafkaPartition(*partition) for partition in self._wanted])
        starts = await self.beginning_offsets(self._wanted)
        for partition in self._wanted:
            inner.seek(KafkaPartition(*partition), self._next.setdefault(partition, starts[partition]))
        inner.pause(*(KafkaPartition(*partition) for partition in sorted(self._paused)))


class KafkaGroupConsumer(_KafkaConsumer, ConsumerRebalanceListener):
    """A member of a group with range assignment. Callbacks run beside whatever the owner is doing."""

    def __init__(
        self,
        bootstrap: str,
        partition_count: PartitionCount,
        client_id: str,
        group: str,
        topics: Sequence[str],
        *,
        instance_id: str | None,
        on_assigned: Rebalanced | None,
        on_revoked: Rebalanced | None,
        fetch_wait_ms: int | None = None,
    ) -> None:
        super().__init__(bootstrap, partition_count, client_id, fetch_wait_ms)
        self._group = group
        self._topics = tuple(topics)
        self._instance_id = instance_id
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._settled = asyncio.Event()
        self._pace = AssignmentPace(group, instance_id)
        self._failure: Exception | None = None

    async def start(self) -> None:
        await self._check_topics(self._topics)
        await self._open()
        await self._settled.wait()

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        try:
            await self._inner.commit({KafkaPartition(*part): offset for part, offset in offsets.items()})
        except (CommitFailedError, IllegalStateError) as error:
            raise CommitRefusedError(f"group {self._group} does not take the offsets: {error}") from error
        except KafkaError as error:
            raise CommitRefusedError(f"the commit to group {self._group} failed: {error!r}") from error

    async def committed(self, partition: TopicPartition) -> int | None:
        try:
            return await self._inner.committed(KafkaPartition(*partition))
        except KafkaError as error:
            raise BusError(f"Kafka at {self._bootstrap} tells no committed offset: {error!r}") from error

    async def on_partitions_revoked(self, revoked: Iterable[KafkaPartition]) -> None:
        self._settled.clear()
        await self._call(self._on_revoked, frozenset(map(_plain, revoked)))

    async def on_partitions_assigned(self, assigned: Iterable[KafkaPartition]) -> None:
        partitions = frozenset(map(_plain, assigned))
        try:
            self._pace.assigned(asyncio.get_running_loop().time())
            await self._seek_to_starts(partitions)
        except (BusError, KafkaError) as error:
            self._failure = error
        await self._call(self._on_assigned, partitions)
        self._settled.set()

    async def _ready(self, timeout_s: float) -> bool:
        if self._failure is None and not self._settled.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._settled.wait()
            except TimeoutError:
                return False
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return True

    async def _open(self) -> None:
        if self._open_client is not None:
            # The old client is broken: what it owned is revoked as in any rebalance.
            await self.on_partitions_revoked(self._open_client.assignment())
        self._settled.clear()
        self._open_client = await started(self._new, self._bootstrap)

    def _new(self) -> AIOKafkaConsumer:
        inner = AIOKafkaConsumer(
            **self._settings(),
            group_id=self._group,
            group_instance_id=self._instance_id,
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        )
        self._open_client = inner  # callbacks come while it starts
        inner.subscribe(topics=list(self._topics), listener=self)
        return inner

    async def _seek_to_starts(self, partitions: frozenset[TopicPartition]) -> None:
        known = {partition: await self._inner.committed(KafkaPartition(*partition)) for partition in sorted(partitions)}
        fresh = [partition for partition, offset in known.items() if offset is None]
        starts = await self.beginning_offsets(fresh) if fresh else {}
        for partition, offset in known.items():
            self._inner.seek(KafkaPartition(*partition), starts[partition] if offset is None else offset)

    async def _call(self, callback: Rebalanced | None, partitions: frozenset[TopicPartition]) -> None:
        if callback is None or not partitions:
            return
        try:
            await callback(partitions)
        except Exception as error:
            self._failure = error  # aiokafka would log it and go on


def _plain(partition: KafkaPartition) -> TopicPartition:
    return (partition.topic, partition.partition)


def _not_assigned(partition: TopicPartition) -> BusError:
    return BusError(f"{partition[0]}/{partition[1]} is not assigned to this consumer")

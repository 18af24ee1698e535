"""The bus on Kafka through aiokafka: acknowledged idempotent sends, consumers that outlive broker restarts.

Owns: every client setting gpugrid uses with Kafka, with its reason. An idempotent aiokafka producer stays broken after one
refusal by the broker, so sizes are checked before sending and any error makes the producer dead (`SendUnknownError`).
Refuses: transactions, auto commit, automatic offset resets, topics that don't exist. Read next: `kafka_consumer.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from services.runtime.bus.kafka_consumer import KafkaGroupConsumer, KafkaReader
from services.runtime.bus.kafka_retry import backoff_s, closed, started
from services.runtime.bus.port import (
    MESSAGE_BYTES_MAX,
    BusError,
    Delivery,
    Message,
    Rebalanced,
    SendUnknownError,
    TopicPartition,
    check_sizes,
)

REQUEST_TIMEOUT_MS = 20_000
"""A produced batch is given up (outcome unknown) after this; a broker restart takes 2 to 5 s and must fit in."""
BATCH_BYTES_MAX = 262_144
"""Pipelined sends share batches up to this size. aiokafka keeps one open batch per partition, and its default of 16 KiB
makes large answers wait for many round trips. Larger messages travel alone."""
DESCRIBE_ATTEMPTS_MAX = 50
DESCRIBE_PAUSE_S = 0.1
"""A topic created a moment ago may not be in the metadata of a busy broker for seconds."""

GROUP_ATTEMPTS_MAX = 15
"""With the back-off about 10 s: on its first start a broker creates its offsets topic when the first group asks."""


class KafkaBus:
    """`bootstrap` is `host:port[,host:port]`; `fetch_wait_ms` instead of `kafka_consumer.FETCH_WAIT_MS`."""

    def __init__(self, bootstrap: str, *, fetch_wait_ms: int | None = None) -> None:
        self._bootstrap = bootstrap
        self._fetch_wait_ms = fetch_wait_ms

    def producer(self, client_id: str) -> KafkaProducer:
        return KafkaProducer(self._bootstrap, client_id)

    def reader(self, client_id: str, partitions: Iterable[TopicPartition]) -> KafkaReader:
        return KafkaReader(self._bootstrap, self.partition_count, client_id, partitions, self._fetch_wait_ms)

    def group_consumer(
        self,
        client_id: str,
        group: str,
        topics: Sequence[str],
        *,
        instance_id: str | None = None,
        on_assigned: Rebalanced | None = None,
        on_revoked: Rebalanced | None = None,
    ) -> KafkaGroupConsumer:
        return KafkaGroupConsumer(
            self._bootstrap,
            self.partition_count,
            client_id,
            group,
            topics,
            instance_id=instance_id,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            fetch_wait_ms=self._fetch_wait_ms,
        )

    async def partition_count(self, topic: str) -> int:
        admin = await started(lambda: AIOKafkaAdminClient(bootstrap_servers=self._bootstrap), self._bootstrap)
        try:
            for attempt in range(DESCRIBE_ATTEMPTS_MAX):
                if attempt:
                    await asyncio.sleep(DESCRIBE_PAUSE_S)
                described = await admin.describe_topics([topic])
                partitions = described[0]["partitions"] if described else []
                if partitions:
                    return len(partitions)
            raise BusError(f"no such topic: {topic}")
        except KafkaError as error:
            raise BusError(f"Kafka at {self._bootstrap} does not describe topic {topic}: {error}") from error
        finally:
            await closed(admin)

    async def group_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """What a group has committed for these partitions, without joining it; partitions without a commit are left out."""
        wanted = [KafkaPartition(*partition) for partition in partitions]
        admin = await started(lambda: AIOKafkaAdminClient(bootstrap_servers=self._bootstrap), self._bootstrap)
        attempt = 0
        try:
            while True:
                try:
                    offsets = await admin.list_consumer_group_offsets(group, partitions=wanted)
                except KafkaError as error:  # a new broker takes a moment to make its offsets topic
                    attempt += 1
                    if attempt == GROUP_ATTEMPTS_MAX:
                        raise BusError(f"Kafka at {self._bootstrap} tells no offsets of {group}: {error!r}") from error
                    await asyncio.sleep(backoff_s(attempt))
                else:
                    return {_plain(part): found.offset for part, found in offsets.items() if found.offset >= 0}
        finally:
            await closed(admin)


def _plain(partition: KafkaPartition) -> TopicPartition:
    return (partition.topic, partition.partition)


class KafkaProducer:
    """Order within a partition is the order of calls; concurrent sends share requests."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._inner: AIOKafkaProducer | None = None
        self._dead = False
        # Only the hand-over to aiokafka is serialised: a full batch makes it wait, and later calls must not overtake.
        self._hand_over = asyncio.Lock()

    async def start(self) -> None:
        self._inner = await started(self._new, self._bootstrap)

    async def stop(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            await closed(inner)

    async def send(self, message: Message) -> Delivery:
        return (await self.send_all((message,)))[0]

    async def send_all(self, messages: Sequence[Message]) -> list[Delivery]:
        if self._dead:
            raise SendUnknownError(f"producer {self._client_id} failed before: make a new one")
        if self._inner is None:
            raise BusError(f"producer {self._client_id} is not started")
        check_sizes(messages)
        try:
            async with self._hand_over:
                sent = [await self._handed(self._inner, message) for message in messages]
        except KafkaError as error:
            self._dead = True
            raise SendUnknownError(f"a send of {len(messages)} messages failed: {error!r}") from error
        if not sent:
            return []
        await asyncio.wait(sent)
        failures = [failure for future in sent if (failure := future.exception()) is not None]
        if failures:
            self._dead = True
            raise SendUnknownError(f"{len(failures)} of {len(sent)} sends failed: {failures[0]!r}") from failures[0]
        stored = [future.result() for future in sent]
        return [Delivery(metadata.topic, metadata.partition, metadata.offset) for metadata in stored]

    async def _handed(self, inner: AIOKafkaProducer, message: Message) -> asyncio.Future:
        try:
            return await inner.send(
                message.topic,
                message.value,
                message.key,
                message.partition,
                headers=list(message.headers),
            )
        except AssertionError as error:  # aiokafka asserts that the partition exists
            raise BusError(f"{message.topic} has no partition {message.partition}") from error

    def _new(self) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            client_id=self._client_id,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_batch_size=BATCH_BYTES_MAX,
            max_request_size=MESSAGE_BYTES_MAX,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=50,
        )

"""Makes topics of their own for tests on a real Kafka."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from msgspec.structs import replace

from deploy.local.topics import ensure_topics
from schemas.topics import TOPICS

RETENTION_MS = 86_400_000


async def create_topics(bootstrap: str, topics: Mapping[str, int]) -> None:
    """Name → partitions, made as the real ones are: afterwards each partition has a leader, however busy the machine is."""
    await ensure_topics(
        bootstrap,
        [replace(TOPICS[0], name=name, partitions=count, retention_ms=RETENTION_MS) for name, count in topics.items()],
    )


async def delete_records(bootstrap: str, partition: tuple[str, int], before_offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(*partition): RecordsToDelete(before_offset)})
    finally:
        await admin.close()

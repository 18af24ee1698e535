"""Makes topics of their own for tests on a real Kafka."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete


async def create_topics(bootstrap: str, topics: Mapping[str, int], config: Mapping[str, str] | None = None) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics(
            [NewTopic(name, count, 1, topic_configs=dict(config or {})) for name, count in topics.items()]
        )
    finally:
        await admin.close()


async def delete_records(bootstrap: str, partition: tuple[str, int], before_offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(*partition): RecordsToDelete(before_offset)})
    finally:
        await admin.close()

"""Topics come into being as the contract says, once, and a wrong partition count stops everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from deploy.local.broker import EmbeddedBroker
from deploy.local.topics import TopicsError, ensure_topics
from schemas.topics import TOPICS

pytestmark = [pytest.mark.kafka]


async def test_all_topics_are_created_as_declared_and_only_once(kafka_factory: Callable[[], EmbeddedBroker]) -> None:
    address = kafka_factory().address
    assert await ensure_topics(address) == tuple(topic.name for topic in TOPICS)
    assert await ensure_topics(address) == ()
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        described = {entry["topic"]: entry for entry in await admin.describe_topics([topic.name for topic in TOPICS])}
        for topic in TOPICS:
            assert len(described[topic.name]["partitions"]) == topic.partitions
            (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic.name)])
            actual = {name: value for name, value, *_ in answer.resources[0][4]}
            assert {key: actual[key] for key in topic.config} == topic.config
    finally:
        await admin.close()


async def test_two_creators_at_once_agree(kafka_factory: Callable[[], EmbeddedBroker]) -> None:
    address = kafka_factory().address
    await asyncio.gather(ensure_topics(address), ensure_topics(address))
    assert await ensure_topics(address) == ()


async def test_another_partition_count_is_refused(kafka_factory: Callable[[], EmbeddedBroker]) -> None:
    address = kafka_factory().address
    topic = TOPICS[0]
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_topics([NewTopic(topic.name, topic.partitions + 1, 1)])
    await admin.close()
    with pytest.raises(TopicsError, match=f"{topic.name} has {topic.partitions + 1} instead of {topic.partitions}"):
        await ensure_topics(address)


async def test_no_kafka_gets_one_sentence() -> None:
    with pytest.raises(TopicsError, match="check that Kafka runs there"):
        await ensure_topics("127.0.0.1:9")

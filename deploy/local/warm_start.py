"""Teach Java to start Kafka in one second instead of three: record a short run into an ahead-of-time cache.

Owns that recording, once per Java installation and Kafka version, in the cache folder. Refuses to matter: without the
cache everything works, only slower. Read next: `jvm`.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path

from deploy.local.broker import BrokerFailedError, EmbeddedBroker
from deploy.local.broker_files import bootstrap_checkpoint
from deploy.local.cache import directory_lock
from deploy.local.jvm import aot_cache_path, drop_old_aot_caches
from deploy.local.kafka_jars import read_lock, resolve

RECORD_WAIT_S = 120.0  # the recording takes 10 s alone on two cores, most of it after Kafka has stopped


def record(wait_s: float = RECORD_WAIT_S) -> bool:
    """Make the ahead-of-time cache unless it is there; True if it is there afterwards."""
    lock = read_lock()
    home = resolve(lock)
    bootstrap_checkpoint(home, lock)
    target = aot_cache_path(home)
    if target.exists():
        return True
    with directory_lock(home, 2 * wait_s), tempfile.TemporaryDirectory(prefix=".record-", dir=home) as name:
        if target.exists():
            return True
        recorded = Path(name) / "recorded.aot"
        broker = EmbeddedBroker(Path(name) / "broker", java_options=(f"-XX:AOTCacheOutput={recorded}",))
        try:
            broker.start()
            broker.ready(wait_s)
            logging.getLogger("aiokafka").setLevel(
                logging.CRITICAL
            )  # a new group's first error is part of the exercise
            asyncio.run(_exercise(broker.address))
            broker.stop(wait_s)  # an orderly end, in which Java writes what it recorded
        except (BrokerFailedError, OSError):
            return False
        finally:
            broker.kill()  # nothing left to kill unless something failed or interrupted us
        if not recorded.exists():
            return False
        recorded.replace(target)
        drop_old_aot_caches(home)
    return True


async def _exercise(address: str) -> None:
    """Topics, records, a group: so that the classes of an ordinary start are all recorded."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        policies = ({"cleanup.policy": "compact"}, {"retention.ms": "86400000"})
        await admin.create_topics(
            [NewTopic(f"t{index}", 2, 1, topic_configs=policy) for index, policy in enumerate(policies)]
        )
    finally:
        await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer:
        for number in range(20):
            await producer.send_and_wait("t0", b"value", key=b"%d" % number)
    consumer = AIOKafkaConsumer("t0", bootstrap_servers=address, group_id="record", auto_offset_reset="earliest")
    async with consumer:
        await asyncio.wait_for(consumer.getone(), 20.0)
        await consumer.commit()

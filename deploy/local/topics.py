"""Every topic is created explicitly, as `schemas.topics` says; nothing relies on a broker's defaults.

Owns creation and the check that what exists fits. Refuses a topic with another partition count: the cluster → partition
map and range assignment would silently go wrong, so nothing may start. `python -m deploy.local.topics HOST:PORT` runs it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, for_code

from schemas.topics import TOPICS, Topic

VISIBLE_WAIT_S = 30.0  # leaders appear within 0.1 s; after kill -9 the broker may first have to be unfenced
POLL_S = 0.05
_ALREADY_EXISTS = 36
_UNKNOWN = 3


class TopicsError(RuntimeError):
    """Topics are not as they must be; the message says what to do."""


async def ensure_topics(address: str, topics: Sequence[Topic] = TOPICS, *, replication: int = 1) -> tuple[str, ...]:
    """Create what is missing, check what exists, wait until every partition has a leader; returns the created names."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    try:
        await admin.start()
        existing = await _partition_counts(admin, topics)
        _refuse_other_counts(topics, existing)
        missing = [topic for topic in topics if topic.name not in existing]
        if missing:
            await _create(admin, missing, replication)
        await _wait_for_leaders(admin, topics)
    except (KafkaError, TimeoutError, OSError) as error:
        raise TopicsError(
            f"Topics could not be created on {address} ({error}): check that Kafka runs there."
        ) from error
    finally:
        await admin.close()
    return tuple(topic.name for topic in missing)


def create_topics(address: str, topics: Sequence[Topic] = TOPICS) -> tuple[str, ...]:
    """`ensure_topics` for callers without an event loop."""
    return asyncio.run(ensure_topics(address, topics))


async def _described(admin: AIOKafkaAdminClient, topics: Sequence[Topic]) -> list[dict[str, Any]]:
    found = await admin.describe_topics([topic.name for topic in topics])
    return [entry for entry in found if entry["error_code"] != _UNKNOWN]


async def _partition_counts(admin: AIOKafkaAdminClient, topics: Sequence[Topic]) -> dict[str, int]:
    return {entry["topic"]: len(entry["partitions"]) for entry in await _described(admin, topics)}


def _refuse_other_counts(topics: Sequence[Topic], existing: dict[str, int]) -> None:
    wrong = [topic for topic in topics if existing.get(topic.name, topic.partitions) != topic.partitions]
    if wrong:
        listed = ", ".join(f"{topic.name} has {existing[topic.name]} instead of {topic.partitions}" for topic in wrong)
        raise TopicsError(
            f"Existing topics have other partition counts ({listed}): delete them, or use a new Kafka or run folder."
        )


async def _create(admin: AIOKafkaAdminClient, missing: Sequence[Topic], replication: int) -> None:
    response = await admin.create_topics(
        [NewTopic(topic.name, topic.partitions, replication, topic_configs=topic.config) for topic in missing]
    )
    for name, code, *_ in response.topic_errors:
        if code not in (0, _ALREADY_EXISTS):  # somebody else may have created it just now; counts are checked below
            raise TopicsError(f"Topic {name} was refused by Kafka ({for_code(code).__name__}): see its log.")


async def _wait_for_leaders(admin: AIOKafkaAdminClient, topics: Sequence[Topic]) -> None:
    deadline = time.monotonic() + VISIBLE_WAIT_S
    while True:
        found = await _described(admin, topics)
        led = [entry for entry in found if all(part["leader"] >= 0 for part in entry["partitions"])]
        if len(led) == len(topics):
            _refuse_other_counts(topics, {entry["topic"]: len(entry["partitions"]) for entry in led})
            return
        if time.monotonic() > deadline:
            raise TopicsError(
                f"Topics have no leader after {VISIBLE_WAIT_S:.0f} s: see Kafka's log, its disk may be full or failing."
            )
        await asyncio.sleep(POLL_S)


def main(argv: list[str]) -> int:
    """Create all topics on `HOST:PORT`."""
    if len(argv) != 1:
        print("usage: python -m deploy.local.topics HOST:PORT", file=sys.stderr)
        return 2
    try:
        created = create_topics(argv[0])
    except TopicsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(created)} topics created, {len(TOPICS) - len(created)} were there.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

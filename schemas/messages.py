"""From an event to the message that carries it: topic, key, partition, headers, value. One place, so that no producer errs."""

from __future__ import annotations

from schemas.base import Event
from schemas.codec import encode
from schemas.records import Message
from schemas.registry import topic_of


def message(
    event: Event, *, key: str, id: str, source: str, time_ms: int, traceparent: str = "", partition: int | None = None
) -> Message:
    """The message of an event. `partition` is needed for cluster topics (`Catalog.partition_of`); None hashes the key.

    `time_ms` is domain time. Raises ValueError if the event exceeds the size limit.
    """
    headers, value = encode(event, id=id, source=source, time_ms=time_ms, traceparent=traceparent)
    return Message(topic=topic_of(event), key=key.encode(), value=value, headers=headers, partition=partition)

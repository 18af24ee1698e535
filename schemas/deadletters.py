"""What could not be read or was refused (`dead-letters`), with the reason and the original bytes."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated

from msgspec import Meta

from schemas.base import Event, ShortText, Text, WallMs
from schemas.records import Now, Record

VALUE_BYTES_MAX = 256 * 1024
"""Longer originals are cut, so that a dead letter never exceeds the broker's record limit."""


class DeadLetter(Event, frozen=True, kw_only=True):
    """`key`, `value` and header values are base64 of the original bytes; `value` is cut at the stated limit if longer."""

    topic: ShortText
    partition: Annotated[int, Meta(ge=-1)]
    offset: Annotated[int, Meta(ge=-1)]
    service: ShortText
    reason: ShortText
    detail: Text
    wall_ms: WallMs
    key: str | None = None
    value: str | None = None
    headers: dict[str, str] = {}
    truncated: bool = False


def dead_letter(record: Record, *, service: str, reason: str, detail: str, now: Now) -> DeadLetter:
    """The dead letter of a record that `service` could not read or refused. `reason` is a stable code."""
    value = record.value
    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        service=service,
        reason=reason,
        detail=detail[:4096],
        wall_ms=now.wall_ms,
        key=None if record.key is None else b64encode(record.key).decode(),
        value=None if value is None else b64encode(value[:VALUE_BYTES_MAX]).decode(),
        headers={name: b64encode(raw or b"").decode() for name, raw in record.headers},
        truncated=value is not None and len(value) > VALUE_BYTES_MAX,
    )

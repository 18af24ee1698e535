"""What could not be read or was refused (`dead-letters`), with the reason and the original bytes."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated

from msgspec import Meta

from schemas.base import Event, ShortText, Text, WallMs
from schemas.records import Now, Record

VALUE_BYTES_MAX = 256 * 1024
"""Longer originals are cut, so that a dead letter never exceeds the broker's record limit."""
KEY_BYTES_MAX = 4 * 1024
"""A key is an identifier; what is longer is shown by its beginning."""
HEADERS_BYTES_MAX = 64 * 1024
"""Names and values together; headers beyond it are left out. Real ones take less than 1 KiB."""


class DeadLetter(Event, frozen=True, kw_only=True):
    """`key`, `value` and header values are base64 of the original bytes.

    `truncated`: the original was longer than the stated limits; it is shown by its beginning.
    """

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
    key, value = record.key, record.value
    headers: dict[str, str] = {}
    headers_bytes = 0
    for name, raw in record.headers:
        headers_bytes += len(name) + len(raw or b"")
        if headers_bytes > HEADERS_BYTES_MAX:
            break
        headers[name] = b64encode(raw or b"").decode()
    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        service=service,
        reason=reason[:256],
        detail=detail[:4096],
        wall_ms=now.wall_ms,
        key=None if key is None else b64encode(key[:KEY_BYTES_MAX]).decode(),
        value=None if value is None else b64encode(value[:VALUE_BYTES_MAX]).decode(),
        headers=headers,
        truncated=headers_bytes > HEADERS_BYTES_MAX
        or len(key or b"") > KEY_BYTES_MAX
        or len(value or b"") > VALUE_BYTES_MAX,
    )

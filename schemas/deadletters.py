"""What could not be read or was refused (`dead-letters`), with the reason and the original bytes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from schemas.base import Event, ShortText, Text, WallMs


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

"""Field types shared by all events: identifiers, times, counts, with the bounds every consumer relies on."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all payloads: immutable, keyword-only, unknown fields ignored, defaults left out on the wire."""


Identifier = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$",
        description="letters, digits and . _ : / @ + -, at most 128",
    ),
]
Text = Annotated[str, Meta(max_length=4096)]
ShortText = Annotated[str, Meta(max_length=256)]
TimeMs = Annotated[int, Meta(ge=0, le=4_102_444_800_000, description="domain time, Unix epoch milliseconds")]
WallMs = Annotated[int, Meta(ge=0, le=4_102_444_800_000, description="wall time, Unix epoch milliseconds")]
DurationS = Annotated[float, Meta(ge=0, le=315_360_000, description="seconds, at most ten years")]
GpuCount = Annotated[int, Meta(ge=1, le=65_536)]
GpuIndex = Annotated[int, Meta(ge=0, le=1023, description="index on its node")]
MemoryMib = Annotated[int, Meta(ge=0, le=16_777_216, description="MiB")]
Sequence = Annotated[int, Meta(ge=0)]
Traceparent = Annotated[str, Meta(max_length=64)]

"""A record before and after the wire, and the moment it is handled: the shapes in which cores receive and answer.

Plain data without behaviour; the bus port (`services.runtime.bus.port`) moves them, the codec gives them meaning. Structs, because
one is made per record and hop and a frozen dataclass takes ten times as long; they refer to bytes only, so the collector may pass by.
"""

from __future__ import annotations

from msgspec import Struct

Headers = tuple[tuple[str, bytes], ...]


class Record(Struct, frozen=True, gc=False):
    """One consumed record. `timestamp_ms` is wall time as the broker stored it, never domain time."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    def header(self, name: str) -> str | None:
        """The last header of that name as text, or None. Undecodable bytes are replaced, never raised."""
        for key, value in reversed(self.headers):
            if key == name:
                return value.decode("utf-8", "replace")
        return None


class Message(Struct, frozen=True, gc=False):
    """One record to produce. `value=None` is a tombstone; `partition=None` hashes the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None


class Now(Struct, frozen=True, gc=False):
    """The moment an event is handled, in Unix epoch milliseconds: domain time for decisions, wall time for timers."""

    domain_ms: int
    wall_ms: int


class Mark(Struct, frozen=True, gc=False):
    """The newest record of one partition that was folded."""

    offset: int
    timestamp_ms: int

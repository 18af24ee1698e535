"""The bus port: what the services may ask of a partitioned log, and nothing else.

Two implementations (`kafka`, `memory`) pass the same test suite. Everything is bytes here; meaning lives in `schemas`.
Partitions are chosen by the caller wherever order matters (cluster topics); a `None` partition hashes the key
(murmur2, as Kafka's default), so that every producer in every language agrees.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from schemas.records import Headers, Message, Record

__all__ = [
    "MESSAGE_BYTES_MAX",
    "Bus",
    "BusError",
    "CommitRefusedError",
    "Consumer",
    "Delivery",
    "Headers",
    "Message",
    "MessageTooLargeError",
    "OffsetGoneError",
    "Producer",
    "Rebalanced",
    "Record",
    "SendUnknownError",
    "TopicPartition",
    "check_sizes",
    "message_bytes",
]

TopicPartition = tuple[str, int]


class Delivery(Struct, frozen=True, gc=False):
    """Where an acknowledged message landed."""

    topic: str
    partition: int
    offset: int


class BusError(Exception):
    """A bus operation failed in a way the caller has to handle."""


class SendUnknownError(BusError):
    """The broker may or may not have stored the message: read back before sending again, with a new producer."""


class CommitRefusedError(BusError):
    """The group has given the partition away meanwhile: whoever owns it now will redo the records."""


class OffsetGoneError(BusError):
    """The requested offset is no longer (or not yet) in the log; silently jumping would lose records."""


MESSAGE_BYTES_MAX = 1_048_576
"""Key, value and headers of one message; the broker's default limit is a little above. Checked before sending, because a
refusal by the broker breaks an idempotent producer."""

RECORD_OVERHEAD_BYTES = 128
"""What a record and its batch add around key, value and headers, bounded from above."""


class MessageTooLargeError(BusError):
    """Refused before anything was sent; the producer stays usable."""


def message_bytes(message: Message) -> int:
    """What a message weighs against MESSAGE_BYTES_MAX, uncompressed, with the record's own overhead (bounded from above)."""
    size = RECORD_OVERHEAD_BYTES + len(message.key or b"") + len(message.value or b"")
    for name, value in message.headers:
        size += 10 + len(name) + len(value)
    return size


def check_sizes(messages: Iterable[Message]) -> None:
    """Raises MessageTooLargeError for the first message above the limit."""
    for message in messages:
        size = message_bytes(message)
        if size > MESSAGE_BYTES_MAX:
            raise MessageTooLargeError(
                f"a message for {message.topic} has {size} bytes, more than {MESSAGE_BYTES_MAX}: split it"
            )


class Producer(Protocol):
    """Acknowledged sends only (all in-sync replicas); order within a partition is the order of the calls."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send(self, message: Message) -> Delivery:
        """Send and wait for the acknowledgement. Raises SendUnknownError; the producer is then dead, make a new one."""
        ...

    async def send_all(self, messages: Sequence[Message]) -> list[Delivery]:
        """Send pipelined, wait for all acknowledgements, in order. Raises SendUnknownError if any is unknown."""
        ...


class Consumer(Protocol):
    """Either a member of a group (`Bus.group_consumer`) or with partitions assigned by hand (`Bus.reader`)."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def poll(self, *, max_records: int, timeout_s: float) -> list[Record]:
        """Records available now, at most `max_records`; waits up to `timeout_s` for the first one.

        Per partition in offset order. Raises OffsetGoneError where the position was removed by retention.
        """
        ...

    def assignment(self) -> frozenset[TopicPartition]: ...

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`. An offset outside the log raises OffsetGoneError at the next poll."""
        ...

    async def position(self, partition: TopicPartition) -> int: ...

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store next offsets for the group. Only for group consumers. Raises CommitRefusedError."""
        ...

    async def committed(self, partition: TopicPartition) -> int | None: ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...


Rebalanced = Callable[[frozenset[TopicPartition]], Awaitable[None]]


class Bus(Protocol):
    """Makes producers and consumers. Holds no connection itself."""

    def producer(self, client_id: str) -> Producer: ...

    def reader(self, client_id: str, partitions: Iterable[TopicPartition]) -> Consumer:
        """A consumer without a group: starts at offset 0 or the log's beginning unless sought; a removed offset raises."""
        ...

    def group_consumer(
        self,
        client_id: str,
        group: str,
        topics: Sequence[str],
        *,
        instance_id: str | None = None,
        on_assigned: Rebalanced | None = None,
        on_revoked: Rebalanced | None = None,
    ) -> Consumer:
        """A group member with range assignment, so equal partition numbers of all topics land on one member.

        Starts at the committed offset, else at the beginning. Every change of the group revokes everything and assigns
        anew: `on_revoked(old)`, `on_assigned(new)`, also when they are equal; an empty set is never announced. `on_assigned`
        may seek; records flow after it returns. What a callback raises comes out of the next `poll`. `stop` leaves
        the group without `on_revoked`.
        """
        ...

    async def partition_count(self, topic: str) -> int:
        """Raises BusError if the topic does not exist."""
        ...

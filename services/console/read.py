"""Reads topics to the end they had when the reading began, with a deadline. Joins no group, commits nothing.

Owns: one reader over all partitions wanted, and the bound on how long a person waits. Refuses: meaning (see `facts`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from schemas.records import Record
from schemas.topics import BY_NAME
from services.console.errors import ConsoleError
from services.runtime.bus.port import Bus, BusError, Consumer, TopicPartition

READ_DEADLINE_S = 15.0
"""A person gives up after about this long; what was read until then is shown, marked as incomplete."""
POLL_RECORDS_MAX = 10_000
"""Per poll: large enough that a day's log takes a few polls, small enough to keep Ctrl-C responsive."""
POLL_WAIT_S = 0.25
WATCH_POLL_WAIT_S = 1.0
CLIENT_ID = "gpugrid-console"

Seconds = Callable[[], float]


@dataclass(slots=True)
class Reading:
    """Records per topic, ordered by partition and offset. `complete` is False when the deadline came first."""

    records: dict[str, list[Record]] = field(default_factory=dict)
    complete: bool = True

    def of(self, topic: str) -> list[Record]:
        return self.records.get(topic, [])


def partitions_of(topics: Sequence[str]) -> list[TopicPartition]:
    """All partitions of the topics. Counts come from the contract: a stack with other counts refuses to start."""
    return [(topic, partition) for topic in topics for partition in range(BY_NAME[topic].partitions)]


@asynccontextmanager
async def _reader(bus: Bus, partitions: Sequence[TopicPartition]) -> AsyncIterator[Consumer]:
    """A started reader, stopped at the end. ConsoleError when the broker lacks a topic."""
    reader = bus.reader(CLIENT_ID, partitions)
    try:
        await reader.start()
    except BusError as error:
        await reader.stop()
        raise ConsoleError(
            f"Can't read {', '.join(dict.fromkeys(topic for topic, _ in partitions))} ({error}): is this broker a gpugrid"
            " stack? `gpugrid doctor` tells more."
        ) from None
    try:
        yield reader
    finally:
        await reader.stop()


async def read_topics(
    bus: Bus,
    topics: Sequence[str],
    *,
    wall_s: Seconds,
    deadline_s: float = READ_DEADLINE_S,
    last: Mapping[str, int] | None = None,
    since: Mapping[TopicPartition, int] | None = None,
) -> Reading:
    """Everything the topics hold now. `last`: for these topics only that many newest offsets per partition, or from
    the offset in `since` if that is earlier."""
    until_s = wall_s() + deadline_s
    partitions = partitions_of(topics)
    reading = Reading(records={topic: [] for topic in topics})
    async with _reader(bus, partitions) as reader:
        ends = await reader.end_offsets(partitions)
        begins = await reader.beginning_offsets(partitions)
        for partition in partitions:
            wanted = (last or {}).get(partition[0])
            if wanted is not None:
                first = min(ends[partition] - wanted, (since or {}).get(partition, ends[partition]))
                await reader.seek(partition, max(begins[partition], first))
        open_ends = {partition: end for partition, end in ends.items() if end > begins[partition]}
        while open_ends:
            if wall_s() > until_s:
                reading.complete = False
                break
            for record in await reader.poll(max_records=POLL_RECORDS_MAX, timeout_s=POLL_WAIT_S):
                if record.offset < ends[record.topic, record.partition]:
                    reading.records[record.topic].append(record)
            for partition in list(open_ends):
                if await reader.position(partition) >= open_ends[partition]:
                    del open_ends[partition]
    for records in reading.records.values():
        records.sort(key=lambda record: (record.partition, record.offset))
    return reading


def newest_per_key(records: Sequence[Record]) -> dict[str, Record]:
    """What a compacted topic means: the newest record of each key, tombstones left out, in order of key."""
    newest: dict[str, Record] = {}
    for record in records:
        if record.key is None:
            continue
        key = record.key.decode("utf-8", "replace")
        if record.value is None:
            newest.pop(key, None)
        else:
            newest[key] = record
    return dict(sorted(newest.items()))


def in_time(records: Sequence[Record]) -> list[Record]:
    """Records of several partitions as they happened; within each partition their order stays, whatever its clock did."""
    newest: dict[tuple[str, int], int] = {}
    keyed: list[tuple[int, int, Record]] = []
    for record in sorted(records, key=lambda one: (one.topic, one.partition, one.offset)):
        where = (record.topic, record.partition)
        newest[where] = max(newest.get(where, 0), record.timestamp_ms)
        keyed.append((newest[where], len(keyed), record))
    return [record for _, _, record in sorted(keyed, key=lambda one: one[:2])]


async def watch_topic(bus: Bus, topic: str, *, wall_s: Seconds, deadline_s: float) -> AsyncIterator[Record]:
    """Records of a topic, old ones first, then new ones as they come, until the deadline."""
    until_s = wall_s() + deadline_s
    async with _reader(bus, partitions_of([topic])) as reader:
        while (left_s := until_s - wall_s()) > 0:
            wait_s = min(WATCH_POLL_WAIT_S, left_s)
            for record in await reader.poll(max_records=POLL_RECORDS_MAX, timeout_s=wait_s):
                yield record


@dataclass(frozen=True, slots=True)
class TopicSize:
    """How much of a topic the broker holds: offsets between beginning and end, compaction's gaps included."""

    topic: str
    partitions: int
    offsets: int


async def topic_sizes(bus: Bus, topics: Sequence[str]) -> list[TopicSize]:
    """The sizes of the topics, in their order."""
    partitions = partitions_of(topics)
    async with _reader(bus, partitions) as reader:
        ends = await reader.end_offsets(partitions)
        begins = await reader.beginning_offsets(partitions)
    sizes = []
    for topic in topics:
        own = [partition for partition in partitions if partition[0] == topic]
        sizes.append(TopicSize(topic, len(own), sum(ends[partition] - begins[partition] for partition in own)))
    return sizes

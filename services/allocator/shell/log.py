"""One cluster's decision log on the bus: load the state it adds up to, append one record and know whether it counts.

One record in flight. An acknowledged offset that is not the expected one, or no acknowledgement at all, means the state in
memory is no longer known to be true: the caller reloads. Nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.codec import DecodeError, decode_record
from schemas.decisions import DecisionMade, SnapshotChunk, SnapshotCompleted
from schemas.messages import message
from services.allocator.core.reader import read
from services.allocator.core.snapshot import SLOTS, restore
from services.allocator.core.state import Changes, Job, State
from services.runtime.bus.port import Bus, Consumer, OffsetGoneError, Producer, Record, TopicPartition

DECISIONS = "decisions"
SNAPSHOTS = "snapshots"
READ_BATCH = 2_000
READ_POLL_S = 1.0
SOURCE = "/gpugrid/allocator"


@dataclass
class Loaded:
    """The state as of the log's end, what the decisions since the snapshot touched, and where the next record will land."""

    state: State
    changes: Changes
    next_offset: int
    newest_slot: str
    decisions_read: int = 0
    recent: list[DecisionMade] = field(default_factory=list)


async def read_all(reader: Consumer, partition: TopicPartition) -> list[Record]:
    """Records from the reader's position to the end offset of this moment."""
    end = (await reader.end_offsets([partition]))[partition]
    found: list[Record] = []
    while await reader.position(partition) < end:
        found.extend(await reader.poll(max_records=READ_BATCH, timeout_s=READ_POLL_S))
    return found


async def load(
    bus: Bus, cluster: str, partition: int, step_ms: int, client_id: str, *, until: int | None = None
) -> Loaded:
    """The state from the newest complete snapshot and the accepted decisions after it.

    `until`: stop after that sequence (for replaying a decision); snapshots taken later are passed over.
    Raises OffsetGoneError if the log was cut between the snapshot and its first record: retention is shorter than the outage.
    """
    state, start, slot = await _newest_snapshot(bus, cluster, partition, client_id, until)
    where = (DECISIONS, partition)
    reader = bus.reader(f"{client_id}-log", [where])
    await reader.start()
    try:
        begin = (await reader.beginning_offsets([where]))[where]
        if begin > start:
            raise OffsetGoneError(
                f"decisions of {cluster} start at offset {begin}, but the newest usable snapshot needs {start}: "
                "restore the topic or start the cluster anew"
            )
        await reader.seek(where, start)
        records = await read_all(reader, where)
        loaded = Loaded(state, Changes(), await reader.position(where), slot)
    finally:
        await reader.stop()
    for record in records:
        decision = decision_of(record)
        if decision is None or decision.cluster != cluster or (until is not None and decision.sequence > until):
            continue
        changes = read(loaded.state, decision, step_ms)
        if changes is not None:
            _merge(loaded.changes, changes)
            loaded.decisions_read += 1
    return loaded


def decision_of(record: Record) -> DecisionMade | None:
    """The decision a record carries; None for foreign bytes, which every reader skips alike."""
    try:
        event = decode_record(record).event
    except DecodeError:
        return None
    return event if isinstance(event, DecisionMade) else None


def _merge(into: Changes, more: Changes) -> None:
    into.jobs.update(more.jobs)
    into.nodes.update(more.nodes)
    ended: dict[str, Job] = more.ended
    into.ended.update(ended)


async def _newest_snapshot(
    bus: Bus, cluster: str, partition: int, client_id: str, until: int | None
) -> tuple[State, int, str]:
    where = (SNAPSHOTS, partition)
    reader = bus.reader(f"{client_id}-snapshots", [where])
    await reader.start()
    try:
        records = await read_all(reader, where)
    finally:
        await reader.stop()
    chunks: dict[int, dict[int, SnapshotChunk]] = {}
    best: tuple[State, int, str] = (State(cluster=cluster), 0, SLOTS[1])
    for record in records:
        try:
            event = decode_record(record).event
        except DecodeError:
            continue
        if isinstance(event, SnapshotChunk) and event.cluster == cluster:
            chunks.setdefault(event.sequence, {})[event.index] = event
        elif isinstance(event, SnapshotCompleted) and event.cluster == cluster:
            if event.sequence < best[0].sequence or (until is not None and event.sequence > until):
                continue
            state = restore(event, chunks.get(event.sequence, {}))
            if state is not None:
                best = (state, event.decisions_next_offset, event.slot)
    return best


async def append(producer: Producer, record: DecisionMade, partition: int, expected_offset: int) -> bool:
    """Append one record; True iff it landed exactly where the log was known to end, so that it is accepted.

    Raises SendUnknownError: the record may or may not be in the log.
    """
    delivery = await producer.send(
        message(
            record,
            key=record.cluster,
            id=record.id,
            source=SOURCE,
            time_ms=record.now_ms,
            traceparent=next(iter(record.traces.values()), ""),
            partition=partition,
        )
    )
    return delivery.offset == expected_offset

"""From consumed records to the inputs of one decision per cluster: decode, order canonically, bound by bytes, dead-letter the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from schemas.codec import DecodeError, decode_record, encode_payload
from schemas.deadletters import dead_letter
from schemas.decisions import Covered, DecisionInput
from schemas.messages import message
from schemas.records import Message, Now, Record
from schemas.registry import topic_of
from services.allocator.core.decide import INPUT_TOPICS
from services.allocator.core.fold import FOLDS

INPUT_BYTES_MAX = 320 * 1024
"""Input bytes per decision: with its effects a record stays below 768 KiB."""
INPUTS_MAX = 400
"""Inputs per decision: more would make one record's reasons and traces unbounded."""
REMOVABLE = ("node-states",)
"""Topics whose writers remove what was said of a key, long after everybody has read what ended it."""
_RANK = {topic: rank for rank, topic in enumerate(INPUT_TOPICS)}


@dataclass
class Batch:
    """Inputs of one decision of one cluster, and the positions it covers."""

    inputs: list[DecisionInput] = field(default_factory=list)
    covered: dict[tuple[str, int], int] = field(default_factory=dict)
    bytes: int = 0
    records: list[Record] = field(default_factory=list)

    def covers(self) -> list[Covered]:
        """Covered positions in canonical order."""
        ordered = sorted(self.covered.items(), key=lambda item: (_RANK[item[0][0]], item[0][1]))
        return [Covered(topic=topic, partition=partition, next_offset=offset) for (topic, partition), offset in ordered]


def canonical(records: Sequence[Record]) -> list[Record]:
    """Topic rank, partition, offset."""
    return sorted(records, key=lambda record: (_RANK[record.topic], record.partition, record.offset))


def batches(
    records: Sequence[Record], covered: Mapping[str, Mapping[str, int]], now: Now
) -> tuple[dict[str, list[Batch]], list[Message]]:
    """Batches per cluster and the dead letters of what could not be read.

    `covered`: per owned cluster its "topic/partition" → next offset; records below were decided before and are skipped.
    Unreadable records and events for nobody here are covered by every owner of the partition, so nobody stumbles twice.
    """
    found: dict[str, list[Batch]] = {cluster: [Batch()] for cluster in covered}
    letters: list[Message] = []
    for record in canonical(records):
        target, item = _input(record, covered, letters, now)
        for cluster in covered:
            position = covered[cluster].get(f"{record.topic}/{record.partition}", 0)
            if record.offset < position:
                continue
            batch = found[cluster][-1]
            if item is not None and target == cluster:
                size = len(item.payload)
                if batch.inputs and (batch.bytes + size > INPUT_BYTES_MAX or len(batch.inputs) >= INPUTS_MAX):
                    batch = Batch()
                    found[cluster].append(batch)
                batch.inputs.append(item)
                batch.records.append(record)
                batch.bytes += size
            batch.covered[record.topic, record.partition] = record.offset + 1
    return {cluster: [batch for batch in some if batch.covered] for cluster, some in found.items()}, letters


def _input(
    record: Record, covered: Mapping[str, Mapping[str, int]], letters: list[Message], now: Now
) -> tuple[str, DecisionInput | None]:
    """The cluster a record is for and the decision input it makes; ("", None) with a dead letter if it can't be read."""
    if record.value is None and record.topic in REMOVABLE:
        return "", None
    try:
        envelope = decode_record(record)
    except DecodeError as error:
        letters.append(_letter(record, error.code, error.detail, now))
        return "", None
    event = envelope.event
    cluster = getattr(event, "cluster", "")
    if type(event) not in FOLDS or topic_of(event) != record.topic:
        letters.append(_letter(record, "unexpected_type", f"{envelope.type} does not belong on {record.topic}", now))
        return "", None
    if cluster not in covered:
        letters.append(
            _letter(record, "cluster_unknown", f"cluster {cluster!r} is not on partition {record.partition}", now)
        )
        return "", None
    return cluster, DecisionInput(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        type=envelope.type,
        id=envelope.id[:256],
        payload=msgspec.Raw(encode_payload(event)),
        traceparent=envelope.traceparent[:64],
    )


def _letter(record: Record, reason: str, detail: str, now: Now) -> Message:
    origin = f"{record.topic}/{record.partition}/{record.offset}"
    return message(
        dead_letter(record, service="allocator", reason=reason, detail=detail, now=now),
        key=origin,
        id=f"{origin}/dead-letter",
        source="/gpugrid/allocator",
        time_ms=now.domain_ms,
    )

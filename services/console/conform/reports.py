"""What every report has to keep, whatever was placed: pure rules over the records an executor wrote.

Owns: the rules about single records and their order. Refuses: expecting anything to have been reported (`scenarios.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from schemas.codec import DecodeError, Envelope, decode_record
from schemas.executions import (
    JobCheckpointed,
    JobCompleted,
    JobFailed,
    JobPrepared,
    JobProgressed,
    JobReady,
    JobStarted,
    JobStopped,
    NodeReported,
)
from schemas.placements import Assignment
from schemas.records import Record

ENDED = JobCompleted | JobFailed | JobStopped
ENDS = (JobCompleted, JobFailed, JobStopped)
EVENTS = (JobStarted, JobProgressed, JobCheckpointed, JobReady, JobPrepared, NodeReported, *ENDS)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the executor got wrong. `rule`: its anchor in docs/executors.md."""

    rule: str
    detail: str


@dataclass
class Judge:
    """Takes records in order. `placed`: newest assignment per (job, attempt); `findings` grows."""

    node: str
    cluster: str
    partition: int
    placed: dict[tuple[str, int], Assignment] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    _said: dict[str, bytes] = field(default_factory=dict)
    _started: dict[tuple[str, int], JobStarted] = field(default_factory=dict)
    _ended: dict[tuple[str, int], str] = field(default_factory=dict)

    def take(self, records: Iterable[Record]) -> list[Envelope]:
        """Judge them and return those about this node, repetitions left out."""
        return [envelope for record in records if (envelope := self._one(record)) is not None]

    def _one(self, record: Record) -> Envelope | None:
        try:
            envelope = decode_record(record)
        except DecodeError as error:
            self._wrong("readable", f"{record.topic}/{record.partition}/{record.offset}: {error.detail}")
            return None
        event = envelope.event
        if getattr(event, "node", None) != self.node:
            return None
        if not isinstance(event, EVENTS):
            self._wrong("events", f"{envelope.type} does not belong on executions")
            return None
        what = f"{envelope.type} {envelope.id}"
        wanted = self.node if isinstance(event, NodeReported) else event.job_id
        if record.key != wanted.encode():
            self._wrong("keys", f"{what} has key {record.key!r}, not {wanted}")
        if record.partition != self.partition or event.cluster != self.cluster:
            self._wrong("partition", f"{what} is on partition {record.partition} with cluster {event.cluster}")
        content = msgspec.json.encode(event)
        known = self._said.setdefault(envelope.id, content)
        if known is not content:
            if known != content:
                self._wrong("ids", f"{what} was said twice with different contents")
            return None
        self._order(envelope, what)
        return envelope

    def _order(self, envelope: Envelope, what: str) -> None:
        event = envelope.event
        if not isinstance(event, JobStarted | JobProgressed | JobCheckpointed | JobReady | ENDED):
            return
        key = (event.job_id, event.attempt)
        assignment = self.placed.get(key)
        if assignment is None and not isinstance(event, JobStarted):
            return  # what an earlier scenario left
        again = assignment is not None and assignment.application
        if key in self._ended and not again:
            self._wrong("once", f"{what} comes after {self._ended[key]} of the same attempt")
        if isinstance(event, JobStarted):
            if key in self._started and key not in self._ended:
                self._wrong("once", f"{what}: this attempt had started already")
            self._ended.pop(key, None)
            self._started[key] = event
            if assignment is None:
                self._wrong("wanted", f"{what}: nobody placed this attempt")
            elif list(event.gpus) != list(assignment.gpus) and not again:
                self._wrong("gpus", f"{what} uses GPUs {event.gpus}, placed were {assignment.gpus}")
        elif key not in self._started and not isinstance(event, JobFailed | JobStopped):
            self._wrong("order", f"{what} comes before the start of the attempt")
        if isinstance(event, ENDS):
            self._ended[key] = envelope.type

    def _wrong(self, rule: str, detail: str) -> None:
        self.findings.append(Finding(rule, detail))

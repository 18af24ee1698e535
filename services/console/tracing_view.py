"""Finds a job's spans: in the run folder's span files, else in the times of the records the job left in the topics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.records import Record
from services.console import queries
from services.console.errors import ConsoleError
from services.console.facts import readable
from services.console.read import read_topics
from services.console.session import Session
from services.console.submission import trace_id_of
from services.console.waterfall import spans_of_records
from services.runtime.span_spool import FOLDER, SpanLine, read_spans

TRACED_TOPICS = (
    "job-events",
    "jobs",
    "forecasts",
    "decisions",
    "placements",
    "executions",
    "job-status",
    "dead-letters",
)


@dataclass(frozen=True, slots=True)
class FoundTrace:
    """The spans and where they came from."""

    trace_id: str
    source: str
    spans: list[SpanLine]
    complete: bool = True


async def load_trace(session: Session, job_id: str, *, from_records: bool) -> FoundTrace:
    """The trace of a job. ConsoleError if nothing about it was recorded."""
    wall_s = session.clock().wall_s
    folder = spans_folder(session)
    reading = await read_topics(session.bus(), ["job-events", "jobs", "job-status"], wall_s=wall_s)
    keyed = [record for records in reading.records.values() for record in records if _key(record) == job_id]
    if not keyed:
        world = await queries.load_world(session)
        raise queries.unknown_job(job_id, world)
    trace_id = _trace_id(keyed)
    if folder is not None and not from_records and trace_id:
        spans = read_spans(folder, trace_id)
        if spans:
            return FoundTrace(trace_id, f"the span files in {folder / FOLDER}", spans)
    whole = await read_topics(session.bus(), TRACED_TOPICS, wall_s=wall_s)
    spans = spans_of_records([record for records in whole.records.values() for record in records], job_id)
    if not spans:
        raise ConsoleError(f"Nothing about {job_id} was recorded.")
    return FoundTrace(trace_id, "the record times of the topics", spans, whole.complete)


def spans_folder(session: Session) -> Path | None:
    """The run folder whose processes write spans, if one is known and has some."""
    stack = session.stack()
    if stack is None or not (stack.run_dir / FOLDER).is_dir():
        return None
    return stack.run_dir


def _key(record: Record) -> str:
    return (record.key or b"").decode("utf-8", "replace")


def _trace_id(records: list[Record]) -> str:
    """The trace the job began with: of its first record that carries one."""
    for record in sorted(records, key=lambda one: one.timestamp_ms):
        envelope = readable(record)
        if envelope is not None and (found := trace_id_of(envelope.traceparent)):
            return found
    return ""

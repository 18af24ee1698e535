"""Everything the topics hold about one job, in the order in which it happened: one line per record. Pure, except for the reading.

Owns: which records are about a job, and a few words on each. Refuses: judging (see `sentences`). Read next: `cli_runs.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.table import Table

from schemas.base import Event
from schemas.commands import CheckpointJob
from schemas.decisions import DecisionMade
from schemas.executions import JobCheckpointed, JobProgressed, JobReady, JobStarted
from schemas.forecasts import DurationForecast
from schemas.placements import NodePlaced
from schemas.records import Record
from schemas.status import JobStatusChanged
from services.console import queries
from services.console.durations import duration_text, moment_text
from services.console.facts import readable
from services.console.read import read_topics
from services.console.session import Session
from services.console.tables import plain_table

HISTORY_TOPICS = (
    "job-events",
    "jobs",
    "forecasts",
    "commands",
    "decisions",
    "placements",
    "executions",
    "job-status",
    "dead-letters",
)
"""In the order of causes, which is the order of records of one millisecond. Compacted topics show only what is left of them."""
_NAMED_WITHIN = ("decisions", "placements", "dead-letters")
"""Records that carry jobs inside, keyed by something else."""
DETAIL_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One record about the job. `wall_ms`: when the broker got it; `time_ms`: domain time, where the event has one."""

    wall_ms: int
    topic: str
    type: str
    what: str
    id: str
    trace_id: str
    event: Event


async def load_history(session: Session, job_id: str) -> tuple[list[HistoryLine], bool]:
    """All lines, oldest first. ConsoleError if nobody ever heard of the job."""
    reading = await read_topics(session.bus(), HISTORY_TOPICS, wall_s=session.clock().wall_s)
    lines = history_of([record for topic in HISTORY_TOPICS for record in reading.of(topic)], job_id)
    if not lines:
        raise queries.unknown_job(job_id, await queries.load_world(session))
    return lines, reading.complete


def history_of(records: Sequence[Record], job_id: str) -> list[HistoryLine]:
    """The lines about one job among these records."""
    about = [record for record in records if _is_about(record, job_id)]
    about.sort(key=lambda one: (one.timestamp_ms, HISTORY_TOPICS.index(one.topic), one.partition, one.offset))
    lines = []
    for record in about:
        envelope = readable(record)
        if envelope is None:
            continue
        trace = envelope.traceparent.split("-")
        lines.append(
            HistoryLine(
                wall_ms=record.timestamp_ms,
                topic=record.topic,
                type=envelope.type,
                what=words(envelope.event, job_id),
                id=envelope.id,
                trace_id=trace[1] if len(trace) == 4 else "",
                event=envelope.event,
            )
        )
    return lines


def words(event: Event, job_id: str) -> str:
    """What the record says about the job, short."""
    match event:
        case JobStatusChanged():
            waits = f"{event.reason or ''} {f'position {event.position}' if event.position else ''}"
            return f"{event.state.value} {waits}{_placed(event)}".strip()
        case JobStarted():
            return f"attempt {event.attempt} on {event.node}, GPUs {_numbers(event.gpus)}"
        case JobProgressed():
            facts = (f"{name} {value:g}" for name, value in _numbers_of(event) if name != "attempt")
            return f"{event.node}: {', '.join(facts)}"
        case JobCheckpointed():
            return f"{event.fraction:.1%} safe at {event.location or '?'}"
        case JobReady():
            return f"{event.node} {'serves' if event.ready else 'does not serve'}"
        case DurationForecast():
            sizes = (f"{size.gpus} GPU {duration_text(size.p50_s)}-{duration_text(size.p90_s)}" for size in event.sizes)
            return ", ".join(sizes)
        case NodePlaced():
            own = [each for each in event.assignments if each.job_id == job_id]
            return "; ".join(f"{event.node}: {each.desired.value} on GPUs {_numbers(each.gpus)}" for each in own)
        case DecisionMade():
            own_effects = [type(effect).__name__ for effect in event.effects if _names(effect, job_id)]
            return f"number {event.sequence}" + (f": {', '.join(own_effects)}" if own_effects else ", among its inputs")
        case CheckpointJob():
            return "a checkpoint was asked for"
        case _:
            return _facts(event)


def history_table(lines: Sequence[HistoryLine], now_ms: int) -> Table:
    table = plain_table("AT", "TOPIC", "EVENT", "WHAT")
    for line in lines:
        at = moment_text(line.wall_ms, now_ms)
        table.add_row(at, line.topic, line.type.removesuffix(".v1"), line.what[:DETAIL_CHARACTERS])
    return table


def history_rows(lines: Sequence[HistoryLine]) -> list[dict[str, Any]]:
    """What `--json` has: the line, and the whole event except for decisions, which `decisions --json` shows."""
    return [
        {
            "wall_ms": line.wall_ms,
            "topic": line.topic,
            "type": line.type,
            "id": line.id,
            "trace_id": line.trace_id,
            "what": line.what,
        }
        | ({} if isinstance(line.event, DecisionMade) else {"event": msgspec.to_builtins(line.event)})
        for line in lines
    ]


def _is_about(record: Record, job_id: str) -> bool:
    if record.value is None:
        return False
    if record.topic in _NAMED_WITHIN:
        return f'"{job_id}"'.encode() in record.value
    if record.key is not None and record.key.decode("utf-8", "replace") == job_id:
        return True
    return record.topic == "commands" and f'"{job_id}"'.encode() in record.value


def _names(effect: Any, job_id: str) -> bool:
    return job_id in (getattr(effect, "job_id", None), getattr(effect, "app_id", None))


def _placed(event: JobStatusChanged) -> str:
    return "".join(f" {part.node}[{_numbers(part.gpus)}]" for part in event.placed)


def _numbers(gpus: Sequence[int]) -> str:
    return ",".join(str(gpu) for gpu in gpus)


def _numbers_of(event: Event) -> list[tuple[str, float]]:
    facts = msgspec.structs.asdict(event)
    return [
        (name, value) for name, value in facts.items() if isinstance(value, int | float) and not name.endswith("_ms")
    ]


def _facts(event: Event) -> str:
    """The short fields of an event that has no words of its own."""
    facts = msgspec.to_builtins(event)
    left_out = ("job_id", "app_id", "cluster", "digest")
    shown = [
        f"{name} {value}"
        for name, value in facts.items()
        if name not in left_out and not name.endswith("_ms") and isinstance(value, str | int | float)
    ]
    return ", ".join(shown)

"""When each job passed each hop, read from the topics after the run.

Record times are the producers' wall clock in whole milliseconds (one machine, one clock); the end of the measured way, the
decision, is taken from a reader's sight of it instead, in microseconds. Owns which record marks which hop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from schemas.codec import decode_record
from schemas.decisions import DecisionMade, Placed, Waits
from schemas.executions import JobStarted
from schemas.forecasts import DurationForecast
from schemas.jobs import JobAccepted, JobSubmitted
from schemas.placements import NodePlaced
from schemas.records import Record
from services.allocator.core.accept import is_next
from services.allocator.core.state import State

TOPICS = ("job-events", "jobs", "forecasts", "decisions", "placements", "executions")


@dataclass(slots=True)
class Marks:
    """Wall ms of one job's first passage; `*_seen_ns`: when a reader had the decision. `reason`: of the first decision, if it waits."""

    submitted_ms: int | None = None
    accepted_ms: int | None = None
    forecast_ms: int | None = None
    named_ms: int | None = None
    named_seen_ns: int | None = None
    reason: str = ""
    placed_ms: int | None = None
    placed_seen_ns: int | None = None
    placement_ms: int | None = None
    started_ms: int | None = None


Span = tuple[str, str]

SPANS: dict[str, Span] = {
    "job-events → jobs (intake)": ("submitted_ms", "accepted_ms"),
    "jobs → forecasts (forecaster)": ("accepted_ms", "forecast_ms"),
    "jobs → first decision": ("accepted_ms", "named_ms"),
    "forecasts → placing decision": ("forecast_ms", "placed_ms"),
    "placing decision → placements": ("placed_ms", "placement_ms"),
    "placements → JobStarted": ("placement_ms", "started_ms"),
    "job-events → first decision": ("submitted_ms", "named_ms"),
    "job-events → JobStarted": ("submitted_ms", "started_ms"),
}
"""Name → from which mark to which."""


def marks_of(records: Iterable[Record], seen_ns: Mapping[tuple[int, int], int], cluster: str) -> dict[str, Marks]:
    """Marks per job. `seen_ns`: (partition, offset) of decisions → when a reader had it."""
    found: dict[str, Marks] = {}
    log = State(cluster=cluster)

    def mark(job_id: str, name: str, value: int | None) -> None:
        entry = found.setdefault(job_id, Marks())
        if value is not None and getattr(entry, name) is None:
            setattr(entry, name, value)

    for record in records:
        event = decode_record(record).event
        when = record.timestamp_ms
        match event:
            case JobSubmitted():
                mark(event.job_id, "submitted_ms", when)
            case JobAccepted():
                mark(event.job_id, "accepted_ms", when)
            case DurationForecast():
                mark(event.job_id, "forecast_ms", when)
            case JobStarted():
                mark(event.job_id, "started_ms", when)
            case NodePlaced():
                for assignment in event.assignments:
                    mark(assignment.job_id, "placement_ms", when)
            case DecisionMade() if is_next(log, event):
                log.sequence, log.last_id, log.epoch = event.sequence, event.id, event.epoch
                saw_ns = seen_ns.get((record.partition, record.offset))
                for effect in event.effects:
                    if isinstance(effect, Placed | Waits):
                        if isinstance(effect, Waits) and found.setdefault(effect.job_id, Marks()).named_ms is None:
                            found[effect.job_id].reason = effect.reason
                        mark(effect.job_id, "named_ms", when)
                        mark(effect.job_id, "named_seen_ns", saw_ns)
                    if isinstance(effect, Placed):
                        mark(effect.job_id, "placed_ms", when)
                        mark(effect.job_id, "placed_seen_ns", saw_ns)
    return found


def spans_ms(marks: Sequence[Marks], span: Span) -> list[float]:
    """Durations of one span over the jobs that passed both of its ends."""
    begin, end = span
    pairs = [(getattr(entry, begin), getattr(entry, end)) for entry in marks]
    return [float(until - since) for since, until in pairs if since is not None and until is not None]


def since_sent_ms(at_ns: Mapping[str, int], marks: Mapping[str, Marks], name: str) -> list[float]:
    """From the hand-over to the publisher's client until the decision was seen, per job that got there."""
    found = []
    for job_id, sent_ns in at_ns.items():
        entry = marks.get(job_id)
        saw_ns = getattr(entry, name) if entry is not None else None
        if saw_ns is not None:
            found.append((saw_ns - sent_ns) / 1e6)
    return found

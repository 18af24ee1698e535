"""Latency per hop for the terminal: between services from record times, inside them from the span files of the stack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from schemas.decisions import DecisionMade
from services.console.acceptance import Acceptance
from services.console.facts import readable
from services.console.page.marks import HopLatency, Marks, latency_of
from services.console.read import in_time, read_topics
from services.console.session import Session
from services.console.tables import plain_table
from services.console.tracing_view import spans_folder
from services.runtime.span_spool import SpanLine, recent_spans

TOPICS = ("job-events", "jobs", "forecasts", "decisions", "placements", "executions")
NEWEST_OFFSETS = 100_000
"""Per partition: hours of a busy stack; a person asks for minutes."""


@dataclass(frozen=True, slots=True)
class SpanLatency:
    """One kind of span of one service: how often, how long, and its share of all time in spans of the window."""

    service: str
    span: str
    latency: HopLatency
    total_ms: float
    errors: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """`hops` between services, `spans` inside them (none without span files)."""

    hops: list[HopLatency]
    spans: list[SpanLatency] = field(default_factory=list)
    complete: bool = True


async def load(session: Session, minutes: float) -> Latencies:
    """Over the last minutes of wall time."""
    clock = session.clock()
    since_ms = clock.wall_ms() - round(minutes * 60_000)
    reading = await read_topics(session.bus(), TOPICS, wall_s=clock.wall_s, last=dict.fromkeys(TOPICS, NEWEST_OFFSETS))
    marks, acceptance = Marks(), Acceptance()
    for record in in_time([one for records in reading.records.values() for one in records]):
        envelope = readable(record)
        if envelope is None or (isinstance(envelope.event, DecisionMade) and not acceptance.accepts(envelope.event)):
            continue
        marks.fold(envelope, record)
    folder = spans_folder(session)
    return Latencies(marks.latencies(since_ms), _spans(folder, since_ms), reading.complete)


def _spans(folder: Path | None, since_ms: int) -> list[SpanLatency]:
    return [] if folder is None else span_latencies(recent_spans(folder, since_ms * 1_000_000))


def span_latencies(spans: Iterable[SpanLine]) -> list[SpanLatency]:
    """Per service and name, most time first. Pure."""
    durations: dict[tuple[str, str], list[float]] = {}
    errors: dict[tuple[str, str], int] = {}
    for span in spans:
        name = (span.service, span.name)
        durations.setdefault(name, []).append((span.end_ns - span.start_ns) / 1e6)
        errors[name] = errors.get(name, 0) + bool(span.error)
    found = [
        SpanLatency(service, span, latency_of(span, values), sum(values), errors[service, span])
        for (service, span), values in durations.items()
    ]
    return sorted(found, key=lambda one: (-one.total_ms, one.service, one.span))


def document(found: Latencies) -> dict[str, Any]:
    """What `latency --json` has."""
    spans = []
    for one in found.spans:
        row = asdict(one.latency)
        del row["hop"]
        spans.append(
            {"service": one.service, "span": one.span, "spans": row.pop("jobs"), **row}
            | {"total_ms": one.total_ms, "errors": one.errors}
        )
    return {"hops": [asdict(hop) for hop in found.hops], "spans": spans}


def hops_table(hops: list[HopLatency]) -> Table:
    """Between services."""
    table = plain_table("HOP", "JOBS", "P50 ms", "P90 ms", "P99 ms", right=("JOBS", "P50 ms", "P90 ms", "P99 ms"))
    for hop in hops:
        numbers = [f"{value:,.1f}" if hop.jobs else "" for value in (hop.p50_ms, hop.p90_ms, hop.p99_ms)]
        table.add_row(hop.hop, str(hop.jobs), *numbers)
    return table


def spans_table(spans: list[SpanLatency]) -> Table:
    """Inside services."""
    right = ("SPANS", "P50 ms", "P90 ms", "P99 ms", "ERRORS")
    table = plain_table("SERVICE", "SPAN", *right, right=right)
    for one in spans:
        numbers = [f"{value:,.1f}" for value in (one.latency.p50_ms, one.latency.p90_ms, one.latency.p99_ms)]
        table.add_row(one.service, one.span, str(one.latency.jobs), *numbers, str(one.errors) if one.errors else "")
    return table

"""A job's trace as a waterfall: spans of all processes on one time axis, children under parents. Pure.

Two sources, one shape: the span files that every process writes into its run folder (`services.runtime.span_spool`), and,
where there are none, the record times of the topics the job went through (`spans_of_records`). No back end is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from schemas.records import Record
from services.console.facts import readable
from services.console.submission import trace_id_of
from services.console.tables import plain_table
from services.runtime.span_spool import SpanLine

BAR_CHARACTERS = 48
SPANS_SHOWN_MAX = 200
"""A job with more spans (an application that was scaled all day) shows its first and says how many were left out."""

_HOPS: dict[str, tuple[str, str]] = {
    "job-events": ("console/upstream", "published"),
    "jobs": ("intake", "let in"),
    "forecasts": ("forecaster", "forecast"),
    "decisions": ("allocator", "decided"),
    "placements": ("allocator", "placement published"),
    "job-status": ("allocator", "status"),
    "executions": ("executor", "reported"),
    "dead-letters": ("intake", "refused"),
}
"""Topic → (service, what its record means), for the view from record times."""


def duration_ms(span: SpanLine) -> float:
    """How long it took."""
    return (span.end_ns - span.start_ns) / 1e6


def spans_of_records(records: Sequence[Record], job_id: str) -> list[SpanLine]:
    """One span per record that is about the job: from the previous hop's record to this one. Times are the broker's."""
    rank = {topic: number for number, topic in enumerate(_HOPS)}
    about = [record for record in records if _is_about(record, job_id)]
    about.sort(key=lambda one: (one.timestamp_ms, rank.get(one.topic, len(rank)), one.partition, one.offset))
    spans: list[SpanLine] = []
    for number, record in enumerate(about):
        service, meaning = _HOPS.get(record.topic, ("", "record"))
        envelope = readable(record)
        if record.topic == "executions" and envelope is not None:
            meaning = envelope.type.split(".")[1]
        if record.topic == "job-status" and envelope is not None:
            meaning = f"status {getattr(getattr(envelope.event, 'state', None), 'value', '')}".strip()
        end_ns = record.timestamp_ms * 1_000_000
        spans.append(
            SpanLine(
                trace_id=trace_id_of(envelope.traceparent) if envelope else "",
                span_id=f"{number:016x}",
                parent_id="",
                name=meaning,
                service=service,
                start_ns=spans[-1].end_ns if spans else end_ns,
                end_ns=end_ns,
                attributes={"topic": record.topic, "partition": record.partition, "offset": record.offset},
            )
        )
    return spans


def _is_about(record: Record, job_id: str) -> bool:
    """Keyed by the job, or (decisions, placements, dead letters) carrying its name in the value."""
    if record.topic in ("decisions", "placements", "dead-letters"):
        return record.value is not None and f'"{job_id}"'.encode() in record.value
    return record.key is not None and record.key.decode("utf-8", "replace") == job_id


def tree_of(spans: Iterable[SpanLine]) -> list[tuple[int, SpanLine]]:
    """(depth, span), parents before children, siblings by start. A parent that was not recorded makes a root."""
    unique: dict[str, SpanLine] = {}
    for span in spans:
        unique.setdefault(span.span_id, span)
    children: dict[str, list[SpanLine]] = {}
    for span in unique.values():
        parent = span.parent_id if span.parent_id in unique and span.parent_id != span.span_id else ""
        children.setdefault(parent, []).append(span)
    for siblings in children.values():
        siblings.sort(key=lambda span: (span.start_ns, span.end_ns, span.span_id))
    ordered: list[tuple[int, SpanLine]] = []
    seen: set[str] = set()
    stack = [(0, span) for span in reversed(children.get("", []))]
    while stack:
        depth, span = stack.pop()
        if span.span_id in seen:
            continue
        seen.add(span.span_id)
        ordered.append((depth, span))
        stack.extend((depth + 1, child) for child in reversed(children.get(span.span_id, [])))
    return ordered


def name_of(span: SpanLine) -> str:
    """With what was done, where a name stands for several things."""
    action = span.attributes.get("gpugrid.action")
    return span.name if action is None else f"{span.name} {action}"


def bar(span: SpanLine, first_ns: int, last_ns: int, characters: int = BAR_CHARACTERS) -> str:
    """The span's place on the axis; at least one character wide."""
    whole_ns = max(1, last_ns - first_ns)
    begin = min(characters - 1, (span.start_ns - first_ns) * characters // whole_ns)
    end = max(begin + 1, -(-(span.end_ns - first_ns) * characters // whole_ns))
    return " " * begin + "█" * (min(end, characters) - begin)


def waterfall_table(spans: Sequence[SpanLine]) -> Table:
    """The spans as a table with bars."""
    rows = tree_of(spans)[:SPANS_SHOWN_MAX]
    first_ns = min(span.start_ns for _, span in rows)
    last_ns = max(span.end_ns for _, span in rows)
    table = plain_table("SERVICE", "SPAN", "AT ms", "TOOK ms", "TIME", right=("AT ms", "TOOK ms"))
    for depth, span in rows:
        table.add_row(
            span.service,
            Text("  " * depth + name_of(span), style="red" if span.error else ""),
            f"{(span.start_ns - first_ns) / 1e6:.1f}",
            f"{duration_ms(span):.1f}",
            Text(bar(span, first_ns, last_ns), style="red" if span.error else "cyan"),
        )
    return table


def waterfall_rows(spans: Sequence[SpanLine]) -> list[dict[str, Any]]:
    """What `trace --json` has, in the order of the table."""
    return [
        {
            "depth": depth,
            "service": span.service,
            "name": span.name,
            "trace_id": span.trace_id,
            "span_id": span.span_id,
            "parent_id": span.parent_id,
            "start_ns": span.start_ns,
            "end_ns": span.end_ns,
            "duration_ms": duration_ms(span),
            "error": span.error,
            "attributes": dict(span.attributes),
        }
        for depth, span in tree_of(spans)
    ]

"""A trace as a waterfall: parents before children, siblings by start, and which action an `apply` was."""

from __future__ import annotations

from services.console.waterfall import bar, tree_of, waterfall_rows, waterfall_table
from services.runtime.span_spool import SpanLine


def span(name: str, start_ms: int, end_ms: int, parent: str = "", service: str = "executor", **attributes) -> SpanLine:
    return SpanLine(
        trace_id="t",
        span_id=f"{name}{start_ms}",
        parent_id=parent,
        name=name,
        service=service,
        start_ns=start_ms * 1_000_000,
        end_ns=end_ms * 1_000_000,
        attributes={f"gpugrid.{key}": value for key, value in attributes.items()},
    )


ROOT = span("publish job-events", 0, 1, service="upstream")
SPANS = [
    span("end", 60, 80, ROOT.span_id),
    span("apply", 58, 60, ROOT.span_id, action="stop"),
    span("start", 12, 40, ROOT.span_id),
    span("apply", 10, 12, ROOT.span_id, action="start"),
    span("decide", 5, 9, ROOT.span_id, service="allocator"),
    ROOT,
]


def test_a_job_on_its_node_reads_in_the_order_of_time_under_its_submission() -> None:
    table = waterfall_table(SPANS)
    names = [str(cell) for cell in table.columns[1].cells]
    assert names == ["publish job-events", "  decide", "  apply start", "  start", "  apply stop", "  end"]
    assert [str(cell) for cell in table.columns[2].cells] == ["0.0", "5.0", "10.0", "12.0", "58.0", "60.0"]
    assert [row["name"] for row in waterfall_rows(SPANS)][2:5] == ["apply", "start", "apply"]


def test_a_lost_parent_makes_a_root_and_a_repeated_span_is_shown_once() -> None:
    orphan = span("checkpoint", 3, 4, "nowhere")
    assert [(depth, one.name) for depth, one in tree_of([ROOT, orphan, orphan])] == [
        (0, "publish job-events"),
        (0, "checkpoint"),
    ]


def test_a_bar_lies_on_the_axis_and_is_never_empty() -> None:
    assert bar(span("end", 100, 100), 0, 100_000_000, 10) == " " * 9 + "█"
    assert bar(span("start", 0, 50), 0, 100_000_000, 10) == "█" * 5

"""A job's trace for the browser: its spans if the stack writes some, else the times of its records."""

from __future__ import annotations

import asyncio
from typing import Any

from services.console.page.board import Board
from services.console.session import Session
from services.console.submission import trace_id_of
from services.console.tracing_view import load_trace, spans_folder
from services.console.waterfall import SPANS_SHOWN_MAX, waterfall_rows
from services.runtime.span_spool import read_spans


async def trace_rows(session: Session, board: Board, job_id: str) -> dict[str, Any]:
    """Spans in the waterfall's order with where they come from. ConsoleError if nothing was recorded."""
    view = board.world.jobs.get(job_id)
    trace_id = trace_id_of(view.traceparent) if view is not None else ""
    folder = spans_folder(session)
    if folder is not None and trace_id:
        spans = await asyncio.to_thread(read_spans, folder, trace_id)
        if spans:
            return _document(trace_id, "spans", waterfall_rows(spans))
    found = await load_trace(session, job_id, from_records=True)
    return _document(found.trace_id, "record times", waterfall_rows(found.spans))


def _document(trace_id: str, source: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "trace_id": trace_id,
        "source": source,
        "spans": rows[:SPANS_SHOWN_MAX],
        "left_out": max(0, len(rows) - SPANS_SHOWN_MAX),
    }

"""Answers about one job, the pool's diagnosis and reports, from the board. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from services.console.facts import number_queue
from services.console.metering.account import Window, rows_of
from services.console.metering.attempts import attempts_of
from services.console.metering.report import By, Report, report_of
from services.console.page.board import Board
from services.console.page.rows import job_row, why_row
from services.console.sentences import Explanation, explain
from services.console.submission import trace_id_of

HOUR_MS = 3_600_000
HIDDEN = ("environment",)
"""Parts of a spec that the page doesn't show to everybody who can read it: they may hold secrets."""


def explained(board: Board, job_id: str, now_ms: int) -> Explanation | None:
    """Where a job is and why, from the topics; None for a job nobody knows. What the allocator's state adds: `Planner.placed`."""
    if job_id not in board.world.jobs:
        return None
    number_queue(board.world)
    return explain(board.world.jobs[job_id], board.world, now_ms)


def job_answer(board: Board, explanation: Explanation, now_ms: int) -> dict[str, Any]:
    """Where a job is and why, why it runs there, and what became of each attempt."""
    job_id = explanation.job_id
    view = board.world.jobs[job_id]
    why = board.blocks.why.get(job_id)
    spec = msgspec.to_builtins(view.spec) if view.spec is not None else {}
    return {
        "id": job_id,
        "row": job_row(view),
        "explanation": asdict(explanation),
        "why_here": why_row(why, board.blocks.before(job_id)) if why is not None else None,
        "attempts": [
            {
                "number": one.number,
                "start": one.start_ms,
                "end": one.end_ms,
                "how": one.end.value if one.end else "running",
                "cause": one.cause,
                "saved": one.safe_ms,
                "where": [{"node": part.node, "gpus": list(part.gpus)} for part in one.held],
            }
            for one in attempts_of(board.ledger, job_id, now_ms)
        ],
        "spec": {name: value for name, value in spec.items() if name not in HIDDEN},
        "forecast": msgspec.to_builtins(view.forecast) if view.forecast else None,
        "trace_id": trace_id_of(view.traceparent),
    }


def report_answer(board: Board, by: By, hours: float, now_ms: int) -> Report:
    """GPU-hours and what they bought over the last hours."""
    window = Window(now_ms - round(hours * HOUR_MS), now_ms)
    return report_of(rows_of(board.ledger, window), by, window)

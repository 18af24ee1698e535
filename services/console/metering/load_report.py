"""Reads the topics that metering folds, and writes the report where it was asked for."""

from __future__ import annotations

from pathlib import Path

from services.console.durations import parse_moment_ms
from services.console.errors import ConsoleError, UsageError
from services.console.facts import readable
from services.console.metering.account import Window, rows_of
from services.console.metering.ledger import TOPICS, Ledger
from services.console.metering.report import By, Report, report_of
from services.console.metering.report_output import (
    ParquetMissingError,
    report_csv,
    report_document,
    report_html,
    report_parquet,
    report_table,
)
from services.console.read import read_topics
from services.console.session import Session

READ_DEADLINE_S = 120.0
"""A month of a busy cluster's log; longer than a person waits for a table, but a report may be made by a timer."""


def window_of(since: str, until: str | None, now_ms: int) -> Window:
    """The window two texts name. UsageError says how to write them."""
    first_ms = _moment(since, now_ms)
    last_ms = now_ms if until is None else min(_moment(until, now_ms), now_ms)
    if first_ms >= last_ms:
        raise UsageError(f"Nothing lies between --since {since} and {'now' if until is None else until}.")
    return Window(first_ms, last_ms)


def _moment(text: str, now_ms: int) -> int:
    try:
        return parse_moment_ms(text, now_ms)
    except ValueError as error:
        raise UsageError(str(error)) from None


async def load(session: Session, by: By, window: Window, *, starved_after_s: float) -> tuple[Report, bool]:
    """(the report, whether everything was read)."""
    reading = await read_topics(session.bus(), TOPICS, wall_s=session.clock().wall_s, deadline_s=READ_DEADLINE_S)
    ledger = Ledger()
    for topic in TOPICS:
        for record in reading.of(topic):
            envelope = readable(record)
            if envelope is not None:
                ledger.fold(envelope.event)
    return report_of(rows_of(ledger, window), by, window, starved_after_s=starved_after_s), reading.complete


def show(session: Session, report: Report, form: str, out: Path | None, now_ms: int) -> None:
    """Print it, or write it to a file. `form`: table, json, csv, parquet or html."""
    try:
        if form == "parquet":
            _write(out, report_parquet(report))
        elif form in ("csv", "html"):
            text = report_csv(report) if form == "csv" else report_html(report, now_ms)
            if out is None:
                print(text, end="")
            else:
                _write(out, text.encode())
        elif form == "json" and out is None:
            session.json(report_document(report))
        elif form == "json":
            import msgspec

            _write(out, msgspec.json.format(msgspec.json.encode(report_document(report)), indent=2) + b"\n")
        elif out is not None:
            raise UsageError("A table is for people: choose --format csv, html, json or parquet for a file.")
        else:
            session.print(report_table(report))
    except ParquetMissingError as error:
        raise ConsoleError(str(error)) from None
    if out is not None:
        session.note(f"Written to {out}.")


def _write(path: Path | None, data: bytes) -> None:
    if path is None:
        raise UsageError("Name a file with --out FILE.")
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConsoleError(f"{path} can't be written ({error.strerror}).") from None

"""Reads traces from files: the bundled extracts, or a CSV of one's own with the columns of `philly_jobs.csv`.

Owns file formats and dates. Every problem is a `TraceError` that says which file and what is missing.
"""

from __future__ import annotations

import csv
import gzip
import io
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path

from services.replay.core.trace import LoadSeries, Trace, TraceJob
from services.replay.extract import DAYS

LOAD_DAYS = (8, 7, 10, 6, 5)
"""Days of the load series to replay. Each has at least five days of history; day 9 has too many missing windows."""
TEAM_UNKNOWN = "unknown"
ROWS_MAX = 1_000_000
"""Of a trace file of one's own; the whole of Philly has a tenth of that."""
REQUIRED = ("submit_time", "num_gpus")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TraceError(ValueError):
    """A trace can't be read; the message says what to do."""


def bundled_trace() -> Trace:
    """The extracts in `data/`."""
    jobs = job_rows(bundled_bytes("philly_days.csv.gz"), "philly_days.csv.gz")
    return Trace(
        name="philly",
        days={day: _midnight_ms(day) for day in DAYS},
        jobs=jobs,
        series=load_series(),
        load_days=LOAD_DAYS,
    )


def trace_of_file(path: Path) -> Trace:
    """A CSV (or .csv.gz) with submit_time, num_gpus, run_s and/or span_s, vc; its days are the dates it has rows for."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"can't read the trace {path}: {error.strerror or error}") from None
    jobs = job_rows(content, str(path))
    names = sorted({_date(row.submit_ms) for row in jobs})
    days = {name: _midnight_ms(name) for name in names}
    return Trace(name=path.name, days=days, jobs=jobs, series=load_series(), load_days=LOAD_DAYS)


def day_of_seed(trace: Trace, seed: int) -> str:
    """Seeds walk through the trace's days in order; seed 0 is the first, the demo's."""
    names = list(trace.days)
    return names[seed % len(names)]


def bundled_bytes(name: str) -> bytes:
    return (resources.files("services.replay") / "data" / name).read_bytes()


def _midnight_ms(day: str) -> int:
    return (datetime.fromisoformat(day).replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def _date(time_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%d")


def table(content: bytes, name: str) -> list[dict[str, str]]:
    try:
        text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{name} is neither CSV nor gzipped CSV: {error}") from None
    rows = list(csv.DictReader(io.StringIO(text)))
    if len(rows) > ROWS_MAX:
        raise TraceError(f"{name} has {len(rows)} rows, at most {ROWS_MAX} are read: cut it to the days you need")
    return rows


def job_rows(content: bytes, name: str) -> tuple[TraceJob, ...]:
    rows = table(content, name)
    missing = [column for column in REQUIRED if not rows or column not in rows[0]]
    if missing or not ("run_s" in rows[0] or "span_s" in rows[0]):
        wanted = ", ".join(missing) or "run_s or span_s"
        raise TraceError(f"{name} lacks {wanted}: a trace has submit_time, num_gpus, run_s and/or span_s, and vc")
    jobs = []
    for number, row in enumerate(rows, start=2):
        try:
            jobs.append(_job_row(row))
        except (ValueError, OverflowError) as error:
            raise TraceError(f"{name}, line {number}: {error}") from None
    return tuple(sorted(jobs, key=lambda job: job.submit_ms))


def _job_row(row: dict[str, str]) -> TraceJob:
    gpus, run_s = int(row["num_gpus"]), float(row.get("run_s") or row.get("span_s") or "nan")
    if gpus < 1 or not 0 <= run_s < float("inf"):
        raise ValueError(f"num_gpus {gpus} and duration {run_s} must be numbers from 1 and from 0 on")
    submitted = datetime.fromisoformat(row["submit_time"])
    submitted = submitted.replace(tzinfo=UTC) if submitted.tzinfo is None else submitted
    submit_ms = (submitted - _EPOCH) // timedelta(milliseconds=1)
    return TraceJob(submit_ms=submit_ms, gpus=gpus, run_s=run_s, team=row.get("vc") or TEAM_UNKNOWN)


def load_series() -> tuple[LoadSeries, ...]:
    rows = table(bundled_bytes("servegen_apps.csv.gz"), "servegen_apps.csv.gz")
    window_s = int(rows[1]["window_start_s"]) - int(rows[0]["window_start_s"])
    return tuple(
        LoadSeries(app, window_s, tuple(float(row[app]) if row[app] else None for row in rows))
        for app in rows[0]
        if app != "window_start_s"
    )

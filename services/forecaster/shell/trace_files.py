"""Traces as files: runs of jobs (Philly's columns, or an HPC log's) and load per client, read with errors that name the line.

Owns: columns, keys, alignment of a trace with the history before it, and which cells are gaps. Refuses: forecasting.
Read next: `evaluation.py`.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.forecaster.core.demand_rules import DAY_S
from services.forecaster.core.demand_scores import Rates
from services.forecaster.core.rolling import PastRuns
from services.forecaster.shell.training import TraceError

SAME_CLOCK_S = 7_200
"""Two files whose clocks differ by less count from the same second 0 (a change to winter time is an hour)."""
PERIOD_DAYS = 30
"""Length of a "month" where the trace has no calendar."""
SECONDS_MAX = 1e10
DIRTY_SHARE_MAX = 0.1
"""More broken rows than that are another layout, not some broken rows."""
PHILLY, HPC = "philly", "hpc"


@dataclass(frozen=True, slots=True)
class JobsFile:
    """Rows of a file in its order. `epoch_s`: the wall-clock second of its second 0, None if it has no calendar.

    `dirty`: per row with a broken cell, what is wrong. It keeps its place and is forecast, but neither scored nor learnt from.
    """

    submit_s: list[int]
    wait_s: list[float]
    duration_s: list[float]
    ended: list[bool]
    gpus: list[int]
    team: list[str]
    kind: list[str] | None
    what: list[str] | None
    limit_s: list[float]
    month: list[str]
    epoch_s: float | None
    dirty: list[str]

    def __len__(self) -> int:
        return len(self.submit_s)


def read_jobs(path: Path, layout: str, *, attempts: bool = False, limit: int | None = None) -> JobsFile:
    """`philly`: submit_time, submit_s, num_gpus, span_s, run_s, vc. `hpc`: submit_s or start_s, run_s, procs, user and, where
    there are, wait_s, app, queue, req_time_s, req_mem_mib. `attempts`: forecast run_s instead of span_s where Philly has it."""
    named = layout == HPC
    found = JobsFile([], [], [], [], [], [], [] if named else None, [] if named else None, [], [], None, [])
    epoch_s = None
    for line, row in _rows(path):
        if limit is not None and len(found) >= limit:
            break
        broken = len(found.dirty)
        if layout == HPC:
            _add_hpc(found, path, line, row)
        else:
            _add_philly(found, path, line, row, attempts)
            if epoch_s is None and (moment := _moment(row.get("submit_time", ""))) is not None:
                epoch_s = moment.timestamp() - found.submit_s[-1]
        if len(found.dirty) > broken:
            found.duration_s[-1], found.ended[-1] = 1.0, False
            del found.dirty[broken + 1 :]
    if not len(found):
        raise TraceError(f"{path} has no rows.")
    if len(found.dirty) > DIRTY_SHARE_MAX * len(found):
        raise TraceError(
            f"{found.dirty[0]} So it is, or something like it, in {len(found.dirty)} of {len(found)} rows."
        )
    return JobsFile(**{**{name: getattr(found, name) for name in JobsFile.__slots__}, "epoch_s": epoch_s})


def joined(history: JobsFile | None, trace: JobsFile) -> tuple[PastRuns, NDArray[np.int64]]:
    """All runs in order of submit, and per run its row in the trace (-1: history)."""
    if history is None:
        return _runs([trace], [0]), _places(trace, 0, _order(np.array(trace.submit_s, np.int64)))
    shift_s = 0
    if history.epoch_s is not None and trace.epoch_s is not None:
        apart_s = round(trace.epoch_s - history.epoch_s)
        shift_s = apart_s if abs(apart_s) > SAME_CLOCK_S else 0
    submit_s = np.array([*history.submit_s, *(second + shift_s for second in trace.submit_s)], np.int64)
    return _runs([history, trace], [0, shift_s]), _places(trace, len(history), _order(submit_s))


def read_rates(path: Path, history_path: Path | None) -> Rates:
    """`window_start_s, c0, c1 …`: load per client and window. Blank cells, missing windows, and windows in which every client
    has 0 are gaps."""
    clients, rows = _rate_rows(path)
    if not rows:
        raise TraceError(f"{path} has no rows.")
    before: dict[int, list[float]] = {}
    if history_path is not None:
        old_clients, old_rows = _rate_rows(history_path)
        places = [old_clients.index(name) if name in old_clients else -1 for name in clients]
        start_s = min(rows)
        # A file that counts from 0 again follows its history; otherwise only what lies before it is history.
        shift_s = max(old_rows) + _spacing(history_path, old_rows) - start_s if start_s <= min(old_rows) else 0
        before = {
            second - shift_s: [float("nan") if place < 0 else values[place] for place in places]
            for second, values in old_rows.items()
            if second - shift_s < start_s
        }
        if not before:
            raise TraceError(f"{history_path} has no window before the first one of {path}.")
    return _grid(path, clients, before, rows)


def _grid(path: Path, clients: list[str], before: dict[int, list[float]], rows: dict[int, list[float]]) -> Rates:
    window_s = _spacing(path, rows)
    # A whole number of days before the trace, so that "the same time" needs no arithmetic anywhere else.
    start_s, first_s = min([*before, *rows]), min(rows)
    start_s = first_s - -(-(first_s - start_s) // window_s) * window_s
    load = np.full((len(clients), (max(rows) - start_s) // window_s + 1), np.nan)
    for second, values in {**before, **rows}.items():
        if any(value > 0 for value in values) and (second - start_s) % window_s == 0:
            load[:, (second - start_s) // window_s] = values
    return Rates(window_s, start_s, tuple(clients), load, (first_s - start_s) // window_s)


def _rate_rows(path: Path) -> tuple[list[str], dict[int, list[float]]]:
    clients: list[str] = []
    rows: dict[int, list[float]] = {}
    for line, row in _rows(path):
        if not clients:
            clients = [name for name in row if name and name != "window_start_s"]
            if not clients:
                raise TraceError(f"{path} has no column of a client beside window_start_s.")
        second = round(_number(path, line, row, "window_start_s"))
        if second in rows:
            raise TraceError(f"{path}, line {line}, column window_start_s: window {second} is there twice.")
        rows[second] = [
            float("nan") if row[name] == "" else _number(path, line, row, name, low=0.0) for name in clients
        ]
    return clients, rows


def _spacing(path: Path, rows: dict[int, list[float]]) -> int:
    seconds = np.array(sorted(rows))
    window_s = int(np.diff(seconds).min()) if len(seconds) > 1 else 0
    if window_s < 60 or DAY_S % window_s:
        raise TraceError(f"{path}: windows are {window_s} s apart; they must be a minute or more and divide a day.")
    return window_s


def _add_philly(found: JobsFile, path: Path, line: int, row: dict[str, str], attempts: bool) -> None:
    column = "run_s" if attempts and row.get("run_s") else "span_s"
    found.submit_s.append(_submit_s(found, path, line, row, "submit_s"))
    found.wait_s.append(0.0)
    found.duration_s.append(max(1.0, _cell(found, path, line, row, column, 1.0, low=0.0)))
    found.ended.append(row.get("ended", "1") != "0")
    found.gpus.append(_size(found, path, line, row, "num_gpus"))
    if row.get("vc") is None:
        raise TraceError(f"{path}, line {line}, column vc: it is missing.")
    found.team.append(row["vc"] or "unknown")
    found.limit_s.append(np.inf)
    moment = _moment(row.get("submit_time", ""))
    found.month.append(_period(found.submit_s[-1]) if moment is None else f"{moment:%Y-%m}")


def _add_hpc(found: JobsFile, path: Path, line: int, row: dict[str, str]) -> None:
    assert found.kind is not None, "an HPC log has something that was run"
    assert found.what is not None, "an HPC log has something that was run"
    begin = "submit_s" if "submit_s" in row else "start_s"
    found.submit_s.append(_submit_s(found, path, line, row, begin))
    found.wait_s.append(_cell(found, path, line, row, "wait_s", 0.0, low=0.0) if row.get("wait_s") else 0.0)
    found.duration_s.append(max(1.0, _cell(found, path, line, row, "run_s", 1.0, low=0.0)))
    found.ended.append(row.get("ended", "1") != "0")
    found.gpus.append(_size(found, path, line, row, "procs"))
    found.team.append(row.get("user") or "unknown")
    limit_s = _cell(found, path, line, row, "req_time_s", 0.0) if row.get("req_time_s") else 0.0
    # Without a program's name, what was asked for tells one thing from another: limit, memory, and the exact size.
    found.kind.append(row.get("queue") or row.get("app") or "run")
    found.what.append(row.get("app") or f"limit {limit_s:g} memory {row.get('req_mem_mib', '')} of {row.get('procs')}")
    found.limit_s.append(limit_s if limit_s > 0 else np.inf)
    found.month.append(_period(found.submit_s[-1]))


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            for row in reader:
                yield reader.line_num, row
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise TraceError(f"{path} can't be read: {error}.") from None


def _number(path: Path, line: int, row: dict[str, str], column: str, *, low: float = -SECONDS_MAX) -> float:
    text = row.get(column)
    if text is None:
        raise TraceError(f"{path}, line {line}, column {column}: it is missing.")
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value) or not low <= value <= SECONDS_MAX:
        raise TraceError(f"{path}, line {line}, column {column}: {text!r} is not a number from {low:g} on.")
    return value


def _cell(
    found: JobsFile,
    path: Path,
    line: int,
    row: dict[str, str],
    column: str,
    otherwise: float,
    *,
    low: float = -SECONDS_MAX,
) -> float:
    """A broken cell is noted, and `otherwise` stands for it; a column that isn't there stays an error."""
    try:
        return _number(path, line, row, column, low=low)
    except TraceError as error:
        if row.get(column) is None:
            raise
        found.dirty.append(str(error))
        return otherwise


def _submit_s(found: JobsFile, path: Path, line: int, row: dict[str, str], column: str) -> int:
    """Whoever tells no submit came with the row before."""
    if not found.submit_s:
        return int(_number(path, line, row, column))
    return int(_cell(found, path, line, row, column, found.submit_s[-1]))


def _size(found: JobsFile, path: Path, line: int, row: dict[str, str], column: str) -> int:
    """Rounded up to a power of two, as blocks are."""
    return 1 << max(0, int(_cell(found, path, line, row, column, 1.0, low=0.0)) - 1).bit_length()


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


def _period(second: int) -> str:
    first = second // DAY_S // PERIOD_DAYS * PERIOD_DAYS
    return f"days {first}–{first + PERIOD_DAYS - 1}"


def _order(submit_s: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.argsort(submit_s, kind="stable")


def _places(trace: JobsFile, before: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.full(before, -1, np.int64), np.arange(len(trace))])[order]


def _runs(files: list[JobsFile], shifts_s: list[int]) -> PastRuns:
    submit_s = np.array(
        [second + shift for file, shift in zip(files, shifts_s, strict=True) for second in file.submit_s], np.int64
    )
    order = _order(submit_s)

    def column(name: str) -> list[float]:
        return [value for file in files for value in getattr(file, name)]

    def words(name: str) -> tuple[str, ...]:
        together = [value for file in files for value in getattr(file, name)]
        return tuple(together[index] for index in order)

    return PastRuns(
        submit_s=submit_s[order],
        duration_s=np.array(column("duration_s"))[order],
        ended=np.array(column("ended"), np.bool_)[order],
        gpus=np.array(column("gpus"), np.int64)[order],
        team=words("team"),
        wait_s=np.array(column("wait_s"))[order],
        what=None if files[0].what is None else words("what"),
        kind=None if files[0].kind is None else words("kind"),
        limit_s=np.array(column("limit_s"))[order],
    )

"""The traces a backtest can play: Philly, openb (Alibaba's PAI), Lingjun and Helios, bundled extracts or files with the same columns.

Owns what a row of each says (docs/backtest.md has the table) and the dates of traces that have none. Every problem is a
`TraceError` that says which file and what is missing. Read next: `core/span.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from services.replay.core.trace import Trace, TraceJob
from services.replay.shell.bundled import (
    LOAD_DAYS,
    TEAM_UNKNOWN,
    TraceError,
    bundled_bytes,
    bundled_trace,
    load_series,
    table,
    trace_of_file,
)

DAY_MS = 86_400_000
EPOCH_MS = 1_672_617_600_000
"""Monday, 2 January 2023, 00:00 UTC: day 0 of traces that count seconds from their own start."""
LATENCY_SENSITIVE = ((4, 0.6), (5, 0.4))
GUARANTEED = ((3, 1.0),)
CARD_SLOTS = 4
"""Shares of openb's GPUs are counted in quarters. Blocks are powers of two, so a pod that asks for more than half a card gets all of it."""
BEST_EFFORT = ((1, 0.4), (2, 0.6))
PRIORITIES_OF_QOS = {
    "LS": LATENCY_SENSITIVE,
    "Guaranteed": GUARANTEED,
    "Burstable": GUARANTEED,
    "BE": BEST_EFFORT,
}


@dataclass(frozen=True, slots=True)
class Format:
    """One trace: its bundled file, the columns it needs, what a row becomes, the day a backtest starts on by default."""

    file: str
    columns: tuple[str, ...]
    row: Callable[[dict[str, str]], TraceJob | None]
    start: str
    gpus: int


def _openb_row(row: dict[str, str]) -> TraceJob | None:
    """A pod that asked for GPUs, was scheduled and ended. A share of a GPU counts as one. Same resource shape: same user."""
    gpus = int(row["num_gpu"])
    if gpus < 1 or not row["scheduled_time"] or not row["deletion_time"]:
        return None
    qos = row["qos"]
    if qos not in PRIORITIES_OF_QOS:
        raise ValueError(f"qos {qos!r} is none of {', '.join(PRIORITIES_OF_QOS)}")
    return TraceJob(
        submit_ms=EPOCH_MS + round(float(row["creation_time"]) * 1000),
        gpus=gpus,
        run_s=_seconds(float(row["deletion_time"]) - float(row["scheduled_time"])),
        team=qos.lower(),
        user=f"c{row['cpu_milli']}-m{row['memory_mib']}",
        priorities=PRIORITIES_OF_QOS[qos],
    )


def _lingjun_row(row: dict[str, str]) -> TraceJob | None:
    """A job. Nothing tells whose it is."""
    gpus = int(row["num_gpus"])
    if gpus < 1:
        raise ValueError(f"num_gpus {gpus} must be at least 1")
    return TraceJob(
        submit_ms=EPOCH_MS + round(float(row["submit_s"]) * 1000),
        gpus=gpus,
        run_s=_seconds(float(row["duration_s"])),
        team=TEAM_UNKNOWN,
    )


def _helios_row(row: dict[str, str]) -> TraceJob | None:
    """A job that explains the curves of its virtual cluster (`core/flows.py`)."""
    return TraceJob(
        submit_ms=EPOCH_MS + round(float(row["submit_s"]) * 1000),
        gpus=int(row["num_gpus"]),
        run_s=_seconds(float(row["run_s"])),
        team=row["vc"],
    )


def _slots_row(row: dict[str, str]) -> TraceJob | None:
    """A pod in quarters of a GPU: what it asks for, rounded up; whole GPUs are four of them."""
    whole = _openb_row(row)
    if whole is None:
        return None
    milli = int(row["gpu_milli"])
    slots = -(-milli * CARD_SLOTS // 1000) if whole.gpus == 1 else whole.gpus * CARD_SLOTS
    return replace(whole, gpus=max(slots, 1))


def _seconds(run_s: float) -> float:
    if not 0 <= run_s < float("inf"):
        raise ValueError(f"a duration of {run_s:g} s makes no sense")
    return run_s


OPENB_COLUMNS = ("cpu_milli", "memory_mib", "num_gpu", "qos", "creation_time", "scheduled_time", "deletion_time")
HELIOS_COLUMNS = ("submit_s", "vc", "num_gpus", "run_s")
LINGJUN_COLUMNS = ("submit_s", "num_gpus", "duration_s")
RELATIVE = {
    "openb": Format("openb_pods.csv.gz", OPENB_COLUMNS, _openb_row, "120", 64),
    "lingjun": Format("lingjun_jobs.csv.gz", LINGJUN_COLUMNS, _lingjun_row, "4", 128),
    "helios": Format("helios_jobs.csv.gz", HELIOS_COLUMNS, _helios_row, "10", 128),
}
SHARES = Format("openb_pods.csv.gz", (*OPENB_COLUMNS, "gpu_milli"), _slots_row, "120", 64)
PHILLY = "philly"
PHILLY_START = "2017-11-13"
PHILLY_GPUS = 64
TRACES = (PHILLY, *RELATIVE)


def open_trace(name: str, file: Path | None = None) -> Trace:
    """The bundled extract of `name`, or a file with its columns."""
    if name == PHILLY:
        return bundled_trace() if file is None else trace_of_file(file)
    known = RELATIVE.get(name)
    if known is None:
        raise TraceError(f"no trace {name!r}; there are {', '.join(TRACES)}")
    if file is None:
        return _relative(name, known, bundled_bytes(known.file), known.file)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise TraceError(f"can't read the trace {file}: {error.strerror or error}") from None
    return _relative(file.name, known, content, str(file))


def open_shares() -> Trace:
    """openb's pods in quarters of a GPU, for a pool whose nodes are cards of CARD_SLOTS slots: so a share never lies on two cards."""
    return _relative("openb-shares", SHARES, bundled_bytes(SHARES.file), SHARES.file)


def quota_changes(name: str) -> list[tuple[str, dict[str, float]]]:
    """(from when on, weight of each team), in order: of Philly's virtual clusters, of Helios's as they changed over time."""
    if name == PHILLY:
        rows = table(bundled_bytes("philly_vcs.csv.gz"), "philly_vcs.csv.gz")
        return [("", {row["vc"]: float(row["nodes"]) for row in rows})]
    if name == "helios":
        rows = table(bundled_bytes("helios_quotas.csv.gz"), "helios_quotas.csv.gz")
        return [(row["date"], {vc: float(gpus) for vc, gpus in row.items() if vc != "date"}) for row in rows]
    raise TraceError(f"trace {name!r} has no quotas; {PHILLY} and helios have")


def default_start(name: str, trace: Trace) -> str:
    """The day a backtest starts on if nobody says: the stated one, or the first of the file."""
    stated = PHILLY_START if name == PHILLY else RELATIVE[name].start
    return stated if stated in trace.days else next(iter(trace.days))


def default_gpus(name: str) -> int:
    """A pool in which the trace's gangs have room."""
    return PHILLY_GPUS if name == PHILLY else RELATIVE[name].gpus


def _relative(name: str, known: Format, content: bytes, file: str) -> Trace:
    """Days are numbers, counted from the trace's own start."""
    jobs = _rows(known, table(content, file), file)
    if not jobs:
        raise TraceError(f"{file} has no jobs that asked for GPUs and ended")
    numbers = sorted({(job.submit_ms - EPOCH_MS) // DAY_MS for job in jobs})
    days = {str(number): EPOCH_MS + number * DAY_MS for number in numbers}
    return Trace(name=name, days=days, jobs=jobs, series=load_series(), load_days=LOAD_DAYS)


def _rows(known: Format, rows: Sequence[dict[str, str]], file: str) -> tuple[TraceJob, ...]:
    missing = [column for column in known.columns if not rows or column not in rows[0]]
    if missing:
        raise TraceError(f"{file} lacks {', '.join(missing)}: this trace has {', '.join(known.columns)}")
    jobs = []
    for number, row in enumerate(rows, start=2):
        try:
            job = known.row(row)
        except (ValueError, TypeError, OverflowError) as error:
            raise TraceError(f"{file}, line {number}: {error}") from None
        if job is not None:
            jobs.append(job)
    return tuple(sorted(jobs, key=lambda job: job.submit_ms))

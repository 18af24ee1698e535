"""What the traces say, as plain data: job rows and load series. Reading files is `shell/bundled.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One row: submitted at `submit_ms` (the trace's local time read as UTC). `team` is "unknown" where the trace has none.

    What `user`, `priorities` (the priorities to draw from, with their shares) leave empty is drawn by `jobs.py`'s rules.
    """

    submit_ms: int
    gpus: int
    run_s: float
    team: str
    user: str = ""
    priorities: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class LoadSeries:
    """Mean load per window of `window_s`, from the trace's start; None where the trace has no data."""

    app_id: str
    window_s: int
    loads: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything `build_day` draws from. `days`: name (ISO date) → its midnight, in order; `jobs` by submission.

    `load_days`: days of the series (counted from their start) to replay; the windows before one are its history.
    """

    name: str
    days: dict[str, int]
    jobs: tuple[TraceJob, ...]
    series: tuple[LoadSeries, ...]
    load_days: tuple[int, ...]


def filled(loads: tuple[float | None, ...]) -> tuple[float, ...]:
    """Missing windows on the straight line between their neighbours; at the ends, the nearest value."""
    known = [(index, load) for index, load in enumerate(loads) if load is not None]
    if not known:
        raise ValueError("a load series without any data")
    result: list[float] = []
    position = 0
    for index, load in enumerate(loads):
        if load is not None:
            result.append(load)
            continue
        while position + 1 < len(known) and known[position + 1][0] < index:
            position += 1
        before = known[position] if known[position][0] < index else None
        after = next((entry for entry in known[position : position + 2] if entry[0] > index), None)
        if before is None or after is None:
            result.append((before or after or known[0])[1])
        else:
            share = (index - before[0]) / (after[0] - before[0])
            result.append(before[1] + share * (after[1] - before[1]))
    return tuple(result)

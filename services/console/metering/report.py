"""Rows added up by team, user, job or kind, with what GPU time bought. Pure.

Hours are for people; sums are made in GPU-milliseconds before. Read next: `report_output`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import fsum

from schemas.status import JobState
from services.console.metering.account import RUNNING, WAITING, GpuMs, Row, Window
from services.console.metering.served import sum_of

GPU_HOUR_MS = 3_600_000
STARVED_AFTER_S = 6 * 3600.0
"""Longer than a working day has left after lunch: who submits in the morning sees nothing before evening."""
ENDED_BADLY = (JobState.FAILED.value, JobState.TIMED_OUT.value)


class By(StrEnum):
    """What rows are grouped by."""

    TEAM = "team"
    USER = "user"
    JOB = "job"
    KIND = "kind"


@dataclass(frozen=True, slots=True)
class Group:
    """One line of a report. `success`: completed ÷ (completed + failed + timed out); None if none ended so.

    A slot of a shared card counts as its part of a GPU; `slot_hours`: slot-hours, each slot as one, which are in `held_h` by their parts.

    The rest is what applications report: `requests` answered in all, `requests_ok` the share without an error, latency, and in
    `hours_per_unit` GPU-hours per 1,000 requests or per million tokens. None or missing where none does.
    """

    name: str
    held_h: float
    effective_h: float
    idle_h: float
    lost_h: float
    jobs: int
    completed: int
    failed: int
    timed_out: int
    cancelled: int
    running: int
    waiting: int
    interruptions: int
    resumptions: int
    starved: int
    success: float | None
    hours_per_completed: float | None
    requests: int = 0
    requests_ok: float | None = None
    latency_p50_s: float | None = None
    latency_p99_s: float | None = None
    hours_per_unit: dict[str, float] = field(default_factory=dict)
    slot_hours: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """`groups` by GPU time held, most first; `total` over all."""

    by: By
    window: Window
    starved_after_s: float
    groups: tuple[Group, ...]
    total: Group


def report_of(rows: Sequence[Row], by: By, window: Window, *, starved_after_s: float = STARVED_AFTER_S) -> Report:
    """Group and add up."""
    name_of: dict[By, Callable[[Row], str]] = {
        By.TEAM: lambda row: row.owner.team,
        By.USER: lambda row: row.owner.user,
        By.KIND: lambda row: row.owner.kind,
        By.JOB: lambda row: row.name,
    }
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(name_of[by](row), []).append(row)
    ordered = sorted(grouped, key=lambda name: (-sum(row.held_gpu_ms for row in grouped[name]), name))
    return Report(
        by,
        window,
        starved_after_s,
        tuple(_group(name, grouped[name], starved_after_s) for name in ordered),
        _group("total", rows, starved_after_s),
    )


def _group(name: str, rows: Sequence[Row], starved_after_s: float) -> Group:
    jobs = [row for row in rows if row.owner.kind != "application"]
    states = {state: sum(row.state == state for row in jobs) for state in sorted({row.state for row in jobs})}
    completed = states.get(JobState.COMPLETED.value, 0)
    ended = completed + sum(states.get(state, 0) for state in ENDED_BADLY)
    served = sum_of(row.served for row in rows)
    job_h = _hours(row.held_gpu_ms for row in jobs)
    return Group(
        name=name,
        held_h=_hours(row.held_gpu_ms for row in rows),
        effective_h=_hours(row.effective_gpu_ms for row in rows),
        idle_h=_hours(row.idle_gpu_ms for row in rows),
        lost_h=_hours(row.lost_gpu_ms for row in rows),
        jobs=len(jobs),
        completed=completed,
        failed=states.get(JobState.FAILED.value, 0),
        timed_out=states.get(JobState.TIMED_OUT.value, 0),
        cancelled=states.get(JobState.CANCELLED.value, 0),
        running=states.get(RUNNING, 0),
        waiting=states.get(WAITING, 0),
        interruptions=sum(row.interruptions for row in jobs),
        resumptions=sum(row.resumptions for row in jobs),
        starved=sum(row.wait_ms is not None and row.wait_ms > starved_after_s * 1000 for row in jobs),
        success=completed / ended if ended else None,
        hours_per_completed=job_h / completed if completed else None,
        requests=served.requests,
        requests_ok=served.success,
        latency_p50_s=served.p50_s,
        latency_p99_s=served.p99_s,
        hours_per_unit=_hours_per_unit(rows),
        slot_hours=_hours(row.slot_ms for row in rows),
    )


def _hours(gpu_ms: Iterable[GpuMs]) -> float:
    """Rounded once, after the sum."""
    return float(sum(gpu_ms) / GPU_HOUR_MS)


def _hours_per_unit(rows: Sequence[Row]) -> dict[str, float]:
    """`1,000 requests` → GPU-hours. A rate's name ends in `/s`; applications with several units count in each."""
    amounts: dict[str, list[float]] = {}
    gpu_ms: dict[str, GpuMs] = {}
    for row in rows:
        for unit, amount in row.served.amounts:
            what = unit.removesuffix("/s")
            amounts.setdefault(what, []).append(amount)
            gpu_ms[what] = gpu_ms.get(what, 0) + row.held_gpu_ms
    found = {}
    for what, each in sorted(amounts.items()):
        amount = fsum(each)
        batch, text = (1_000_000, "million tokens") if what == "tokens" else (1_000, f"1,000 {what}")
        if amount > 0:
            found[text] = float(gpu_ms[what] / GPU_HOUR_MS) / amount * batch
    return found

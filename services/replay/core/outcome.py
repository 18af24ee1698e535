"""What a policy made of a day: realised value, utilization, waiting. The one function that measures all of them.

Owns the definitions (docs/workload.md has them in words). Input is what happened, attempt by attempt and hold by hold;
whether a baseline, a simulation or a live run produced it makes no difference here. Only the day's window counts.
Read next: `baselines.py`, `comparison.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from services.replay.core.day import HOUR_MS, Day, DayApp, DayJob

PENALTY_RATIO = 7.0
SIZE_CLASSES = ("1", "2-4", "8", ">8")


class End(Enum):
    """How an attempt ended. `SAVED`: stopped with a checkpoint; `LOST`: stopped or failed without one."""

    COMPLETED = "completed"
    TIMED_OUT = "timed_out"
    SAVED = "saved"
    LOST = "lost"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a job on `gpus`. `end_ms` None while it runs; `kept_s`: seconds of its work a checkpoint saved."""

    job_id: str
    start_ms: int
    end_ms: int | None
    gpus: int
    end: End
    kept_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hold:
    """An application holds `gpus` from `time_ms` on, until its next hold."""

    app_id: str
    time_ms: int
    gpus: int


class Waiting(Struct, frozen=True, kw_only=True):
    """Seconds from submission to first start. A job that never started counts with its wait until the day's end."""

    jobs: int
    unstarted: int
    p50_s: float
    p90_s: float
    p99_s: float


class KindOutcome(Struct, frozen=True, kw_only=True):
    """Per kind of job."""

    jobs: int
    completed: int
    gpu_hours: float
    wait_p50_s: float


class Outcome(Struct, frozen=True, kw_only=True):
    """`value` = `batch_value` − `unmet_cost`, in priority × GPU-hours. Shares are of GPUs × time.

    `utilization`: GPUs at work (an application's up to its load; held but unloaded is not at work). `held`: GPUs taken,
    working or not. `useful`: at work, weighted by useful share, lost work 0. `gpus_max`: most GPUs taken at any moment.
    """

    policy: str
    day: str
    seed: int
    value: float
    batch_value: float
    unmet_cost: float
    utilization: float
    held: float
    useful: float
    jobs: int
    completed: int
    timed_out: int
    running: int
    waiting: int
    interruptions: int
    completed_per_gpu_day: float
    unmet_gpu_hours: float
    demand_gpu_hours: float
    gpus_max: int
    wait_s: dict[str, Waiting]
    kinds: dict[str, KindOutcome]


def size_class(gpus: int) -> str:
    """The class of a requested size."""
    if gpus == 1:
        return "1"
    if gpus <= 4:
        return "2-4"
    return "8" if gpus <= 8 else ">8"


def outcome(
    day: Day, policy: str, attempts: Sequence[Attempt], holds: Sequence[Hold], *, ratio: float = PENALTY_RATIO
) -> Outcome:
    """Measure what happened on `day`. Attempts of jobs and holds of applications the day doesn't know raise KeyError."""
    jobs = {job.job_id: job for job in day.jobs}
    known_apps = {app.app_id for app in day.apps}
    if unknown := sorted({hold.app_id for hold in holds} - known_apps):
        raise KeyError(f"holds of applications that are not in the day: {unknown}")
    by_job: dict[str, list[Attempt]] = {job_id: [] for job_id in jobs}
    for attempt in sorted(attempts, key=lambda entry: (entry.start_ms, entry.job_id)):
        by_job[attempt.job_id].append(attempt)
    batch_value = taken_gpu_s = useful_gpu_s = 0.0
    for job_id, entries in by_job.items():
        for attempt in entries:
            taken_gpu_s += attempt.gpus * _inside_s(day, attempt.start_ms, attempt.end_ms)
            useful = _useful_gpu_s(day, jobs[job_id], attempt)
            useful_gpu_s += useful
            batch_value += jobs[job_id].spec.priority * useful
    served_gpu_s = held_gpu_s = unmet_gpu_s = unmet_cost = 0.0
    for app in day.apps:
        served, held, unmet = _app_gpu_s(day, app, [hold for hold in holds if hold.app_id == app.app_id])
        served_gpu_s, held_gpu_s, unmet_gpu_s = served_gpu_s + served, held_gpu_s + held, unmet_gpu_s + unmet
        unmet_cost += ratio * app.spec.priority * unmet
    ends = {job_id: _last_end(day, entries) for job_id, entries in by_job.items()}
    completed = sum(end is End.COMPLETED for end in ends.values())
    return Outcome(
        policy=policy,
        day=day.name,
        seed=day.seed,
        value=(batch_value - unmet_cost) / 3600,
        batch_value=batch_value / 3600,
        unmet_cost=unmet_cost / 3600,
        utilization=(taken_gpu_s + served_gpu_s) / day.capacity_gpu_s,
        held=(taken_gpu_s + held_gpu_s) / day.capacity_gpu_s,
        useful=(useful_gpu_s + served_gpu_s) / day.capacity_gpu_s,
        jobs=len(jobs),
        completed=completed,
        timed_out=sum(end is End.TIMED_OUT for end in ends.values()),
        running=sum(end is End.RUNNING for end in ends.values()),
        waiting=sum(end is None or end in (End.SAVED, End.LOST) for end in ends.values()),
        interruptions=sum(attempt.end in (End.SAVED, End.LOST) and _before_end(day, attempt) for attempt in attempts),
        completed_per_gpu_day=completed / (day.gpus * day.hours / 24),
        unmet_gpu_hours=unmet_gpu_s / 3600,
        demand_gpu_hours=day.app_gpu_s() / 3600,
        gpus_max=_gpus_max(day, attempts, holds),
        wait_s=_waiting(day, by_job),
        kinds=_kinds(day, by_job, ends),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of them don't exceed. 0.0 of nothing."""
    if not values:
        return 0.0
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def _inside_s(day: Day, start_ms: int, end_ms: int | None) -> float:
    until_ms = day.end_ms if end_ms is None else min(end_ms, day.end_ms)
    return max(until_ms - max(start_ms, day.start_ms), 0) / 1000


def _before_end(day: Day, attempt: Attempt) -> bool:
    return attempt.end_ms is not None and attempt.end_ms <= day.end_ms


def _useful_gpu_s(day: Day, job: DayJob, attempt: Attempt) -> float:
    """GPU-seconds inside the day that led somewhere, at the useful share of the size."""
    inside_s = _inside_s(day, attempt.start_ms, attempt.end_ms)
    if _before_end(day, attempt) and attempt.end is not End.COMPLETED:
        # Killed at its limit or lost: nothing came of it. Saved: what the checkpoint holds.
        inside_s = min(inside_s, attempt.kept_s) if attempt.end is End.SAVED else 0.0
    return attempt.gpus * inside_s * job.useful_share(attempt.gpus)


def _last_end(day: Day, attempts: Sequence[Attempt]) -> End | None:
    """How the job stood at the day's end; None if it never started before. A completion wins over a later relaunch."""
    started = [attempt for attempt in attempts if attempt.start_ms < day.end_ms]
    if not started:
        return None
    if any(attempt.end is End.COMPLETED and _before_end(day, attempt) for attempt in started):
        return End.COMPLETED
    return started[-1].end if _before_end(day, started[-1]) else End.RUNNING


def _app_gpu_s(day: Day, app: DayApp, holds: Iterable[Hold]) -> tuple[float, float, float]:
    """(served, held, unmet) GPU-seconds of one application inside the day."""
    steps = sorted(holds, key=lambda hold: hold.time_ms)
    served = held = unmet = 0.0
    demand = app.demand_gpus()
    window_ms = app.window_s * 1000
    marks = {day.start_ms, day.end_ms} | {hold.time_ms for hold in steps if day.start_ms < hold.time_ms < day.end_ms}
    marks |= {day.start_ms + index * window_ms for index in range(len(demand))}
    times = sorted(mark for mark in marks if mark <= day.end_ms)
    position, gpus = 0, 0
    for from_ms, until_ms in itertools.pairwise(times):
        while position < len(steps) and steps[position].time_ms <= from_ms:
            gpus = steps[position].gpus
            position += 1
        wanted = demand[min((from_ms - day.start_ms) // window_ms, len(demand) - 1)]
        length_s = (until_ms - from_ms) / 1000
        served += min(gpus, wanted) * length_s
        held += gpus * length_s
        unmet += max(wanted - gpus, 0.0) * length_s
    return served, held, unmet


def _gpus_max(day: Day, attempts: Sequence[Attempt], holds: Sequence[Hold]) -> int:
    """The most GPUs taken at one moment; at equal times what ends goes first."""
    changes: list[tuple[int, int, int]] = []
    for attempt in attempts:
        changes.append((attempt.start_ms, 1, attempt.gpus))
        if attempt.end_ms is not None:
            changes.append((attempt.end_ms, 0, -attempt.gpus))
    held: dict[str, int] = {}
    for hold in sorted(holds, key=lambda entry: entry.time_ms):
        change = hold.gpus - held.get(hold.app_id, 0)
        held[hold.app_id] = hold.gpus
        changes.append((hold.time_ms, int(change > 0), change))
    taken = most = 0
    for time_ms, _, change in sorted(changes):
        if time_ms >= day.end_ms:
            break
        taken += change
        most = max(most, taken)
    return most


def _wait_s(day: Day, job: DayJob, attempts: Sequence[Attempt]) -> tuple[float, bool]:
    """(seconds waited inside the day, whether it started)."""
    started = [attempt.start_ms for attempt in attempts if attempt.start_ms < day.end_ms]
    until_ms = started[0] if started else day.end_ms
    return max(until_ms - job.arrival_ms, 0) / 1000, bool(started)


def _waiting(day: Day, by_job: dict[str, list[Attempt]]) -> dict[str, Waiting]:
    waits: dict[str, list[tuple[float, bool]]] = {name: [] for name in SIZE_CLASSES}
    for job in day.jobs:
        waits[size_class(job.requested)].append(_wait_s(day, job, by_job[job.job_id]))
    return {
        name: Waiting(
            jobs=len(entries),
            unstarted=sum(not started for _, started in entries),
            p50_s=percentile([wait for wait, _ in entries], 0.5),
            p90_s=percentile([wait for wait, _ in entries], 0.9),
            p99_s=percentile([wait for wait, _ in entries], 0.99),
        )
        for name, entries in waits.items()
    }


def _kinds(day: Day, by_job: dict[str, list[Attempt]], ends: dict[str, End | None]) -> dict[str, KindOutcome]:
    names = sorted({job.spec.kind.value for job in day.jobs})
    result = {}
    for name in names:
        jobs = [job for job in day.jobs if job.spec.kind.value == name]
        gpu_s = sum(
            attempt.gpus * _inside_s(day, attempt.start_ms, attempt.end_ms)
            for job in jobs
            for attempt in by_job[job.job_id]
        )
        result[name] = KindOutcome(
            jobs=len(jobs),
            completed=sum(ends[job.job_id] is End.COMPLETED for job in jobs),
            gpu_hours=gpu_s / HOUR_MS * 1000,
            wait_p50_s=percentile([_wait_s(day, job, by_job[job.job_id])[0] for job in jobs], 0.5),
        )
    return result

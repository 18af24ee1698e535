"""What a backtest reports of one scheduler at one level of information: the outcome of the day, and how it treated people.

Owns the definitions beyond `outcome.py`: completion and waiting times over all jobs and per size class, starvation, floors of
applications, schedulability over time, promises and overruns. Pure arithmetic over what happened. Read next: `verdict.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from services.replay.core.baselines import Block, Played
from services.replay.core.day import Day, DayJob
from services.replay.core.outcome import SIZE_CLASSES, Attempt, End, Hold, Outcome, outcome, percentile, size_class
from services.replay.core.rolling import Rolled

STARVED_S = 1800.0
"""mission.md: from half an hour of waiting on a job counts as starved."""
SAMPLE_MS = 900_000
"""Schedulability is looked at once per grid step."""
WHOLE_NODES = "whole nodes"
ALL = "all"


class Times(Struct, frozen=True, kw_only=True):
    """Seconds over some jobs. `open`: jobs that count with their time until the end, because nothing more is known."""

    jobs: int
    open: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float


class Schedulability(Struct, frozen=True, kw_only=True):
    """Per `step_s`: free GPUs, and whole nodes that could be formed of them. `share`: of all free GPU time, what lay in whole nodes."""

    step_s: int
    free_gpus: list[int]
    whole_nodes: list[int]
    share: float


class Overruns(Struct, frozen=True, kw_only=True):
    """Jobs that ran past the P90 they were placed with. `ran_over_p90`: median of run time ÷ that P90; `held_up`: jobs that were
    waiting for their GPUs at that moment; `unmet_gpu_hours`: real-time demand unmet while some job was past its P90."""

    jobs: int
    of_started: int
    ran_over_p90: float
    gpu_hours_past_p90: float
    held_up: int
    unmet_gpu_hours: float


class Promises(Struct, frozen=True, kw_only=True):
    """Jobs that could not start at once and were told when they would: how that first word held."""

    told: int
    by_p50_share: float
    by_p90_share: float
    late_p50_s: float
    late_p90_s: float


class Finding(Struct, frozen=True, kw_only=True):
    """One scheduler at one level; `level` is empty for one that asks for no durations. Only gpugrid has `decisions` and what follows."""

    scheduler: str
    level: str
    outcome: Outcome
    wait_s: dict[str, Times]
    jct_s: dict[str, Times]
    starved: int
    unmet_share: float
    below_floor_gpu_hours: float
    schedulability: Schedulability
    decisions: int = 0
    overruns: Overruns | None = None
    promises: Promises | None = None


def finding(day: Day, scheduler: str, level: str, played: Played) -> Finding:
    """Measure one run."""
    result = outcome(day, scheduler, played.attempts, played.holds)
    first = _first_starts(day, played.attempts)
    ends = {one.job_id: one.end_ms for one in played.attempts if one.end is End.COMPLETED and one.end_ms is not None}
    waits = [(job, *_until(day, job, first.get(job.job_id))) for job in day.jobs]
    lasted = [(job, *_until(day, job, ends.get(job.job_id))) for job in day.jobs]
    rolled = played if isinstance(played, Rolled) else None
    return Finding(
        scheduler=scheduler,
        level=level,
        outcome=result,
        wait_s=_by_class(day, waits),
        jct_s=_by_class(day, lasted),
        starved=sum(waited_s > STARVED_S for _, waited_s, _ in waits),
        unmet_share=result.unmet_gpu_hours / result.demand_gpu_hours if result.demand_gpu_hours else 0.0,
        below_floor_gpu_hours=_below_floor(day, played.holds),
        schedulability=schedulability(day, played.blocks),
        decisions=rolled.decisions if rolled else 0,
        overruns=_overruns(day, rolled) if rolled else None,
        promises=_promises(day, rolled, first) if rolled else None,
    )


def _first_starts(day: Day, attempts: Iterable[Attempt]) -> dict[str, int]:
    first: dict[str, int] = {}
    for attempt in attempts:
        if attempt.start_ms < day.end_ms:
            first[attempt.job_id] = min(first.get(attempt.job_id, attempt.start_ms), attempt.start_ms)
    return first


def _until(day: Day, job: DayJob, until_ms: int | None) -> tuple[float, bool]:
    """(seconds since its submission, whether that is the whole story)."""
    known = until_ms is not None and until_ms <= day.end_ms
    return ((until_ms if known and until_ms is not None else day.end_ms) - job.arrival_ms) / 1000, known


def _by_class(day: Day, entries: Sequence[tuple[DayJob, float, bool]]) -> dict[str, Times]:
    classes: dict[str, list[tuple[float, bool]]] = {ALL: [], **{name: [] for name in SIZE_CLASSES}, WHOLE_NODES: []}
    for job, seconds, known in entries:
        classes[ALL].append((seconds, known))
        classes[size_class(job.requested)].append((seconds, known))
        if job.requested >= day.node_gpus:
            classes[WHOLE_NODES].append((seconds, known))
    return {name: _times(rows) for name, rows in classes.items()}


def _times(rows: Sequence[tuple[float, bool]]) -> Times:
    seconds = [row[0] for row in rows]
    return Times(
        jobs=len(rows),
        open=sum(not known for _, known in rows),
        mean_s=sum(seconds) / len(seconds) if seconds else 0.0,
        p50_s=percentile(seconds, 0.5),
        p90_s=percentile(seconds, 0.9),
        p99_s=percentile(seconds, 0.99),
    )


def _below_floor(day: Day, holds: Iterable[Hold]) -> float:
    """GPU-hours an application held less than its floor, from its first hold on."""
    floors = {app.app_id: app.spec.floor_gpus for app in day.apps}
    since: dict[str, Hold] = {}
    missing_ms = 0
    for hold in sorted(holds, key=lambda entry: entry.time_ms):
        before = since.get(hold.app_id)
        if before is not None:
            missing_ms += max(floors[hold.app_id] - before.gpus, 0) * (hold.time_ms - before.time_ms)
        since[hold.app_id] = hold
    missing_ms += sum(max(floors[name] - hold.gpus, 0) * (day.end_ms - hold.time_ms) for name, hold in since.items())
    return missing_ms / 3_600_000


def schedulability(day: Day, blocks: Iterable[Block]) -> Schedulability:
    """Free GPUs and free whole nodes at the beginning of every grid step."""
    nodes, size = day.gpus // day.node_gpus, day.node_gpus
    times = np.arange(day.start_ms, day.end_ms, SAMPLE_MS)
    taken = np.zeros((len(times), nodes), np.int64)
    mask = (1 << size) - 1
    for block in blocks:
        since, until = np.searchsorted(times, (block.from_ms, block.until_ms), side="left").tolist()
        if until > since:
            counts = [((block.gpus >> (node * size)) & mask).bit_count() for node in range(nodes)]
            taken[since:until] += np.array(counts, np.int64)
    free = size - taken
    whole = (free == size).sum(axis=1)
    total = int(free.sum())
    return Schedulability(
        step_s=SAMPLE_MS // 1000,
        free_gpus=free.sum(axis=1).tolist(),
        whole_nodes=whole.tolist(),
        share=float(whole.sum()) * size / total if total else 0.0,
    )


def _overruns(day: Day, rolled: Rolled) -> Overruns:
    spans = [(over.at_ms, over.at_ms + round((over.run_s - over.promised_s) * 1000)) for over in rolled.overruns]
    inside_s = [max(min(until, day.end_ms) - since, 0) / 1000 for since, until in spans]
    return Overruns(
        jobs=len(rolled.overruns),
        of_started=len({attempt.job_id for attempt in rolled.attempts}),
        ran_over_p90=percentile([over.run_s / over.promised_s for over in rolled.overruns], 0.5),
        gpu_hours_past_p90=sum(over.gpus * s for over, s in zip(rolled.overruns, inside_s, strict=True)) / 3600,
        held_up=sum(over.behind for over in rolled.overruns),
        unmet_gpu_hours=_unmet_during(day, rolled.holds, spans),
    )


def _unmet_during(day: Day, holds: Sequence[Hold], spans: Sequence[tuple[int, int]]) -> float:
    """Unmet GPU-hours while at least one span lasted, to the second."""
    seconds = np.zeros((day.end_ms - day.start_ms) // 1000 + 1, np.int64)
    for since, until in spans:
        seconds[(since - day.start_ms) // 1000 : max(until - day.start_ms, 0) // 1000] = 1
    unmet = 0.0
    for app in day.apps:
        held = np.zeros(len(seconds))
        for hold in sorted((one for one in holds if one.app_id == app.app_id), key=lambda one: one.time_ms):
            held[(hold.time_ms - day.start_ms) // 1000 :] = hold.gpus
        wanted = np.repeat(np.array(app.demand_gpus()), app.window_s)[: len(seconds)]
        unmet += float(np.maximum(wanted - held[: len(wanted)], 0.0) @ seconds[: len(wanted)])
    return unmet / 3600


def _promises(day: Day, rolled: Rolled, first: dict[str, int]) -> Promises:
    """Against the first word on when it would start; a job that has not started counts as late by what it has waited since."""
    late_s, by_p50, by_p90 = [], 0, 0
    for job_id, (early_ms, late_ms) in sorted(rolled.first_promise.items()):
        if early_ms >= day.end_ms:
            continue  # promised for after the end: nobody will know
        at_ms = first.get(job_id, day.end_ms)
        late_s.append(max(at_ms - early_ms, 0) / 1000)
        by_p50 += at_ms <= early_ms
        by_p90 += at_ms <= late_ms
    told = len(late_s)
    return Promises(
        told=told,
        by_p50_share=by_p50 / told if told else 1.0,
        by_p90_share=by_p90 / told if told else 1.0,
        late_p50_s=percentile(late_s, 0.5),
        late_p90_s=percentile(late_s, 0.9),
    )

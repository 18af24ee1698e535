"""gpugrid beside FIFO on the same events: one day built from what was observed, measured by the one function for it. Pure.

The day is the page's window: jobs submitted in it (or still there), applications with the load they reported. A job's true
duration is its own once it has completed; until then the forecast's P50 stands in. FIFO gets the same jobs and load: arrival
order, no priorities, every application's peak held all the time. Definitions: `services.replay.core.outcome`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.console.facts import JobView
from services.console.metering.attempts import Attempt as Metered
from services.console.metering.attempts import attempts_of
from services.console.metering.ledger import End as MeteredEnd
from services.console.page.board import PAST_KEPT_MS, Board
from services.replay.core.blocks import FreeBlocks
from services.replay.core.day import HOUR_MS, Day, DayApp, DayJob
from services.replay.core.outcome import PENALTY_RATIO, Attempt, End, Hold, Outcome, outcome

BINS = 96
WINDOW_MS_MIN = 60_000
"""A younger stack has nothing to compare yet."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One pool's day and what gpugrid made of it. `estimated`: jobs whose duration is not known yet."""

    day: Day
    attempts: tuple[Attempt, ...]
    holds: tuple[Hold, ...]
    estimated: int


def observed_days(board: Board, now_ms: int) -> list[Observed]:
    """A day per pool, from the board as it is. Cheap; the rest (`measured`) may run in another thread."""
    if board.first_ms is None:
        return []
    start_ms = max(board.first_ms, now_ms - PAST_KEPT_MS)
    if now_ms - start_ms < WINDOW_MS_MIN:
        return []
    pools: dict[tuple[str, str], list[int]] = {}
    for node in board.world.nodes.values():
        pools.setdefault((node.cluster, node.pool), []).append(len(node.gpus))
    return [
        _observed(board, cluster, pool, sizes, start_ms, now_ms, alone=len(pools) == 1)
        for (cluster, pool), sizes in sorted(pools.items())
    ]


def _observed(
    board: Board, cluster: str, pool: str, sizes: list[int], start_ms: int, now_ms: int, *, alone: bool
) -> Observed:
    node_gpus = Counter(sizes).most_common(1)[0][0]
    jobs: list[DayJob] = []
    apps: list[DayApp] = []
    attempts: list[Attempt] = []
    holds: list[Hold] = []
    estimated = 0
    for name in sorted(board.world.jobs):
        view = board.world.jobs[name]
        if view.cluster not in (None, cluster):
            continue
        if view.application is not None:
            if alone or view.application.pool == pool:
                apps.append(_app(board, view, start_ms, now_ms))
                holds.extend(Hold(name, one.time_ms, len(one.gpus)) for one in board.ledger.holds.get(name, ()))
        elif view.job is not None and (alone or view.waits_for(pool, first=True)):
            metered = attempts_of(board.ledger, name, now_ms)
            if _outside(view, metered, start_ms, now_ms):
                continue
            job, known = _job(view, metered, now_ms, node_gpus * len(sizes))
            jobs.append(job)
            estimated += not known
            attempts.extend(_attempt(name, one) for one in metered)
    day = Day(
        name=f"{cluster}/{pool}", seed=0, start_ms=start_ms, hours=(now_ms - start_ms) / HOUR_MS,
        gpus=node_gpus * len(sizes), node_gpus=node_gpus, cluster=cluster, pool=pool,
        jobs=tuple(sorted(jobs, key=lambda one: (one.arrival_ms, one.job_id))), apps=tuple(apps),
    )  # fmt: skip
    return Observed(day, tuple(attempts), tuple(holds), estimated)


def _outside(view: JobView, metered: list[Metered], start_ms: int, now_ms: int) -> bool:
    """Not yet submitted, or over before the window began, or refused."""
    if view.submitted_ms is None or view.submitted_ms >= now_ms:
        return True
    if not metered:
        return view.final
    last = metered[-1]
    return last.end_ms is not None and last.end_ms < start_ms and view.final


def _job(view: JobView, metered: list[Metered], now_ms: int, pool_gpus: int) -> tuple[DayJob, bool]:
    """The job with its duration per size, and whether that is known rather than forecast."""
    spec = view.job
    if spec is None:
        raise ValueError(f"{view.job_id} has no spec")
    forecast = {size.gpus: size.p50_s for size in view.forecast.sizes} if view.forecast else {}
    wanted = spec.requested_gpus or spec.sizes[0]
    done = next((one for one in metered if one.end is MeteredEnd.COMPLETED), None)
    last = done or (metered[-1] if metered else None)
    base_gpus = sum(len(part.gpus) for part in last.held) if last is not None else wanted
    if done is not None and done.end_ms is not None:
        base_s = max((done.end_ms - done.start_ms) / 1000, 1.0)
    else:
        ran_s = (now_ms - last.start_ms) / 1000 if last is not None and last.end is None else 0.0
        base_s = max(forecast.get(base_gpus, spec.time_limit_s), ran_s, 1.0)
    run_s = {
        gpus: max(base_s * _ratio(forecast, gpus, base_gpus), 1.0)
        for gpus in sorted({*(size for size in spec.sizes if size <= pool_gpus), wanted, base_gpus})
    }
    return DayJob(view.job_id, view.submitted_ms or 0, spec, run_s), done is not None


def _ratio(forecast: dict[int, float], gpus: int, base_gpus: int) -> float:
    """Duration on `gpus` ÷ duration on `base_gpus`, as forecast, else in proportion."""
    if forecast.get(gpus) and forecast.get(base_gpus):
        return forecast[gpus] / forecast[base_gpus]
    return base_gpus / gpus


def _attempt(job_id: str, one: Metered) -> Attempt:
    kept_s = 0.0 if one.safe_ms is None else max(one.safe_ms - one.start_ms, 0) / 1000
    end = End.RUNNING
    if one.end is MeteredEnd.COMPLETED:
        end = End.COMPLETED
    elif one.end is not None:
        end = End.SAVED if kept_s > 0 else End.TIMED_OUT if one.cause == "time_limit" else End.LOST
    return Attempt(job_id, one.start_ms, one.end_ms, sum(len(part.gpus) for part in one.held), end, kept_s)


def _app(board: Board, view: JobView, start_ms: int, now_ms: int) -> DayApp:
    """Load per window over the day; a window nobody reported counts as the one before, one before its registration as none."""
    demand, spec = board.demand.get(view.job_id), view.application
    if spec is None:
        raise ValueError(f"{view.job_id} is no application")
    window_s = round(demand.window_s) if demand is not None and demand.window_s >= 1 else 600
    windows = max(1, -(-(now_ms - start_ms) // (window_s * 1000)))
    loads, last = [], 0.0
    seen = {} if demand is None else {(t - start_ms) // (window_s * 1000): gpus for t, gpus in demand.observed.items()}
    for index in range(windows):
        last = seen.get(index + 1, seen.get(index, last))
        loads.append(last if start_ms + index * window_s * 1000 >= (view.accepted_ms or 0) else 0.0)
    return DayApp(view.job_id, spec, 1.0, window_s, (), tuple(loads))


def fifo_attempts(day: Day) -> list[Attempt]:
    """`baselines.attempts_of(day, FIFO)` without looking at the whole queue at every event: ten thousand may wait."""
    free = FreeBlocks(day.gpus, day.node_gpus, min(sum(app.peak_gpus for app in day.apps), day.gpus))
    running: list[tuple[int, int, int]] = []
    found: list[Attempt] = []
    now_ms = 0
    for job in day.jobs:
        now_ms = max(now_ms, job.arrival_ms)
        while running and running[0][0] <= now_ms:
            _, first_gpu, size = heapq.heappop(running)
            free.release(first_gpu, size)
        first = free.lowest(job.requested)
        while first is None and running:
            now_ms, first_gpu, size = heapq.heappop(running)
            free.release(first_gpu, size)
            if not running or running[0][0] > now_ms:
                first = free.lowest(job.requested)
        if first is None or now_ms >= day.end_ms:
            break
        free.take(first, job.requested)
        run_s = min(job.run_s[job.requested], job.spec.time_limit_s)
        end = End.TIMED_OUT if job.spec.time_limit_s < job.run_s[job.requested] else End.COMPLETED
        found.append(Attempt(job.job_id, now_ms, now_ms + round(run_s * 1000), job.requested, end))
        heapq.heappush(running, (now_ms + round(run_s * 1000), first, job.requested))
    return found


def measured(days: list[Observed]) -> dict[str, Any] | None:
    """Both policies over all pools: totals, and curves over the window. None without anything to compare."""
    if not days:
        return None
    sides: dict[str, list[tuple[Outcome, NDArray[np.float64], NDArray[np.float64]]]] = {"gpugrid": [], "fifo": []}
    for one in days:
        fifo = fifo_attempts(one.day)
        peaks = [Hold(app.app_id, one.day.start_ms, min(app.peak_gpus, one.day.gpus)) for app in one.day.apps]
        for name, attempts, holds in (("gpugrid", list(one.attempts), list(one.holds)), ("fifo", fifo, peaks)):
            used, value = _curves(one.day, attempts, holds)
            sides[name].append((outcome(one.day, name, attempts, holds), used, value))
    first = days[0].day
    capacity = sum(one.day.gpus for one in days)
    return {
        "start_ms": first.start_ms,
        "end_ms": first.end_ms,
        "bins": BINS,
        "gpus": capacity,
        "estimated": sum(one.estimated for one in days),
        "jobs": sum(len(one.day.jobs) for one in days),
        **{name: _side(parts, days) for name, parts in sides.items()},
    }


def _side(
    parts: list[tuple[Outcome, NDArray[np.float64], NDArray[np.float64]]], days: list[Observed]
) -> dict[str, Any]:
    gpus = np.array([one.day.gpus for one in days], float)
    outcomes = [part[0] for part in parts]

    def mean(name: str) -> float:
        return float(np.average([getattr(one, name) for one in outcomes], weights=gpus))

    waits = outcomes[0].wait_s if len(outcomes) == 1 else {}
    return {
        "value": round(sum(one.value for one in outcomes), 3),
        "utilization": round(mean("utilization"), 4),
        "held": round(mean("held"), 4),
        "useful": round(mean("useful"), 4),
        "completed": sum(one.completed for one in outcomes),
        "unmet_gpu_hours": round(sum(one.unmet_gpu_hours for one in outcomes), 3),
        "interruptions": sum(one.interruptions for one in outcomes),
        "waits": [
            {"size": name, "jobs": wait.jobs, "p50_s": wait.p50_s, "p90_s": wait.p90_s, "p99_s": wait.p99_s}
            for name, wait in waits.items()
        ],
        "used": [round(float(one), 2) for one in sum((part[1] for part in parts), np.zeros(BINS))],
        "value_curve": [round(float(one), 2) for one in sum((part[2] for part in parts), np.zeros(BINS)).cumsum()],
    }


def _curves(day: Day, attempts: list[Attempt], holds: list[Hold]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(GPUs at work per bin, value earned per bin in priority × GPU-hours). Value is spread over the time it was earned in."""
    edges = np.linspace(day.start_ms, day.end_ms, BINS + 1)
    used, value = np.zeros(BINS), np.zeros(BINS)
    width_ms = (day.end_ms - day.start_ms) / BINS
    jobs = {job.job_id: job for job in day.jobs}
    for one in attempts:
        end_ms = day.end_ms if one.end_ms is None else min(one.end_ms, day.end_ms)
        share = _overlap(edges, max(one.start_ms, day.start_ms), end_ms)
        used += one.gpus * share / width_ms
        over = one.end_ms is not None and one.end_ms <= day.end_ms
        kept_ms = one.start_ms + one.kept_s * 1000 if one.end is End.SAVED else one.start_ms
        good = (
            _overlap(edges, max(one.start_ms, day.start_ms), kept_ms)
            if over and one.end is not End.COMPLETED
            else share
        )
        job = jobs[one.job_id]
        value += job.spec.priority * one.gpus * job.useful_share(one.gpus) * good / HOUR_MS
    for app in day.apps:
        own = sorted((hold for hold in holds if hold.app_id == app.app_id), key=lambda hold: hold.time_ms)
        times = np.array([hold.time_ms for hold in own], float)
        sizes = np.array([0] + [hold.gpus for hold in own], float)
        middles = (edges[:-1] + edges[1:]) / 2
        held = sizes[np.searchsorted(times, middles, side="right")]
        index = np.clip((middles - day.start_ms) // (app.window_s * 1000), 0, len(app.loads) - 1).astype(int)
        wanted = np.array(app.demand_gpus())[index]
        used += np.minimum(held, wanted)
        unmet = np.maximum(wanted - held, 0.0)
        value -= PENALTY_RATIO * app.spec.priority * unmet * width_ms / HOUR_MS
    return used, value


def _overlap(edges: NDArray[np.float64], first_ms: float, last_ms: float) -> NDArray[np.float64]:
    """Milliseconds of [first, last) in each bin."""
    return np.clip(np.minimum(edges[1:], last_ms) - np.maximum(edges[:-1], first_ms), 0.0, None)

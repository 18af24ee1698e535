"""Builds the days of a backtest: `build_span(trace, start, …) -> Day`, one or several days long, at a stated load.

The rules for what a row turns into are `jobs.py`'s and `applications.py`'s; here is which rows, and when. Where one day
of the trace doesn't bring enough work for the pool, rows of later days come too, at the same time of day. The rules in
words: docs/backtest.md. Read next: `workload.py` (the demo's days).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.replay.core import jobs as rules
from services.replay.core.applications import DAY_S, PROFILES, make_app
from services.replay.core.day import Day, DayApp, DayJob
from services.replay.core.trace import Trace, TraceJob
from services.replay.core.workload import CLUSTER, GPUS_MIN, POOL, size_max

DAY_MS = DAY_S * 1000
DAYS_MAX = 5
"""The load series has eleven days, and the first five are an application's history."""
HISTORY_JOBS_MAX = 1_500
"""Jobs of the days before that the forecaster has seen end: a week or two of a pool of this size, some seconds of learning."""
LOAD_MAX = 3.0


@dataclass(frozen=True, slots=True)
class Span:
    """`day`: what is played. `past`: jobs of the days before, for whoever learns from history; none of them is in `day`."""

    day: Day
    past: tuple[DayJob, ...]


def build_span(trace: Trace, start: str, seed: int, *, days: int, gpus: int, load: float, node_gpus: int = 8) -> Span:
    """Raises ValueError for what can't be built, with one sentence for people."""
    if start not in trace.days:
        raise ValueError(f"day {start!r} is not in trace {trace.name}; there are {', '.join(trace.days)}")
    if not 1 <= days <= DAYS_MAX:
        raise ValueError(f"days must be between 1 and {DAYS_MAX}, not {days}")
    if gpus < GPUS_MIN or gpus % node_gpus:
        raise ValueError(f"gpus must be a multiple of {node_gpus} and at least {GPUS_MIN}, not {gpus}")
    if not 0 < load <= LOAD_MAX:
        raise ValueError(f"load must be above 0 and at most {LOAD_MAX:g}, not {load:g}")
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed must be between 0 and {2**31 - 1}, not {seed}")
    start_ms, hours = trace.days[start], 24.0 * days
    apps = _apps(trace, seed, days, gpus)
    shape = rules.Shape(node_gpus=node_gpus, size_max=size_max(gpus, node_gpus, sum(app.peak_gpus for app in apps)))
    bare = Day(start, seed, start_ms, hours, gpus, node_gpus, CLUSTER, POOL, (), apps)
    chosen = _chosen(trace, bare, days, shape, load)
    jobs = tuple(
        rules.make_job(row, number, arrival_ms, shape, _draw(seed, index))
        for number, (arrival_ms, index, row) in enumerate(chosen, start=1)
    )
    taken = {index for _, index, _ in chosen}
    past = [(i, row) for i, row in enumerate(trace.jobs) if row.submit_ms < start_ms and i not in taken]
    return Span(
        Day(start, seed, start_ms, hours, gpus, node_gpus, CLUSTER, POOL, jobs, apps),
        tuple(_past_job(row, index, shape, seed) for index, row in past[-HISTORY_JOBS_MAX:]),
    )


def _draw(seed: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, 1, index]))


def _past_job(row: TraceJob, index: int, shape: rules.Shape, seed: int) -> DayJob:
    job = rules.make_job(row, index, row.submit_ms, shape, _draw(seed, index))
    return DayJob(f"past-{index}", job.arrival_ms, job.spec, job.run_s)


def _apps(trace: Trace, seed: int, days: int, gpus: int) -> tuple[DayApp, ...]:
    """The trace's applications; of the series' days the seed picks the first, early enough that all follow."""
    by_id = {series.app_id: series for series in trace.series}
    first = trace.load_days[seed % len(trace.load_days)]
    found = []
    for profile in PROFILES:
        series = by_id.get(profile.app_id)
        if series is not None:
            available = len(series.loads) * series.window_s // DAY_S
            found.append(make_app(profile, series, max(1, min(first, available - days)), 24.0 * days, gpus))
    return tuple(found)


def _chosen(trace: Trace, day: Day, days: int, shape: rules.Shape, load: float) -> list[tuple[int, int, TraceJob]]:
    """(arrival, row number, row) until the load is reached: rows of the span itself in an order drawn by the seed, then those of
    the days after it, each day's at its own time of day; by arrival."""
    wanted_gpu_s = load * day.capacity_gpu_s - day.app_gpu_s()
    taken_gpu_s = 0.0
    chosen = []
    length_ms = days * DAY_MS
    for fold in range(_folds(trace, day.start_ms, length_ms)):
        first_ms = day.start_ms + fold * length_ms
        rows = [(i, row) for i, row in enumerate(trace.jobs) if first_ms <= row.submit_ms < first_ms + length_ms]
        order = np.random.Generator(np.random.PCG64([day.seed, 0, fold])).permutation(len(rows))
        for position in order.tolist():
            index, row = rows[position]
            arrival_ms = row.submit_ms - fold * length_ms
            inside_s = min(rules.duration_s(row), (day.end_ms - arrival_ms) / 1000)
            chosen.append((arrival_ms, index, row))
            taken_gpu_s += rules.power_of_two(row.gpus, shape.size_max) * inside_s
            if taken_gpu_s >= wanted_gpu_s:
                return sorted(chosen, key=lambda entry: entry[:2])
    if day.apps and not chosen:
        raise ValueError(f"trace {trace.name} has no jobs from {day.name} on")
    reached = (taken_gpu_s + day.app_gpu_s()) / day.capacity_gpu_s
    raise ValueError(
        f"trace {trace.name} brings a load of {reached:.2f} from {day.name} on, not {load:g}: "
        "take an earlier --start, fewer --gpus or a lower --load"
    )


def _folds(trace: Trace, start_ms: int, length_ms: int) -> int:
    last_ms = trace.jobs[-1].submit_ms if trace.jobs else start_ms
    return max(0, last_ms - start_ms) // length_ms + 1

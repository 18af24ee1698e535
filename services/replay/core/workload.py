"""Builds a day: `build_day(trace, day, seed, …) -> Day`, the same bytes for the same arguments.

Owns which rows become jobs, so that the pool is contended by a stated load factor, and when they arrive. What a row turns
into is `jobs.py`'s, what a load series turns into `applications.py`'s. The rules in words: docs/workload.md.
"""

from __future__ import annotations

import numpy as np

from services.replay.core import jobs as rules
from services.replay.core.applications import PROFILES, make_app
from services.replay.core.day import HOUR_MS, Day, DayApp, DayJob
from services.replay.core.trace import Trace, TraceJob

LOAD = 1.3
"""(Batch work that could run inside the day + the applications' load) ÷ capacity: more than fits, as in the trace."""
LOAD_TOLERANCE = 0.01
EVENING_MS = 6 * HOUR_MS
"""Rows submitted this long before the day's start count as what the evening left queued …"""
EVENING_SPREAD_MS = HOUR_MS
"""… and are submitted again in the first hour, in their order (a short day: in its first quarter): at 720×
that is some twenty jobs a second, not a hundred."""
SIZE_SHARE = 4
"""No block above a quarter of the pool. In the trace the largest jobs are 4 % of the cluster; a block of half the pool beside
the applications would make FIFO a straw man that waits half the day for it."""
CLUSTER = "c0"
POOL = "h100"
GPUS_MIN = 16
HOURS_MAX = 24.0


def build_day(
    trace: Trace,
    day: str,
    seed: int,
    *,
    gpus: int = 64,
    node_gpus: int = 8,
    hours: float = HOURS_MAX,
    load: float = LOAD,
) -> Day:
    """A day of `trace` scaled to a pool of `gpus`. Raises ValueError for a day, size or length that can't be built."""
    if day not in trace.days:
        raise ValueError(f"day {day!r} is not in trace {trace.name}; there are {', '.join(trace.days)}")
    if gpus < GPUS_MIN or gpus % node_gpus:
        raise ValueError(f"gpus must be a multiple of {node_gpus} and at least {GPUS_MIN}, not {gpus}")
    if not 0 < hours <= HOURS_MAX:
        raise ValueError(f"hours must be above 0 and at most {HOURS_MAX:g}, not {hours:g}")
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed must be between 0 and {2**31 - 1}, not {seed}")
    start_ms = trace.days[day]
    apps = _apps(trace, seed, hours, gpus)
    shape = rules.Shape(node_gpus=node_gpus, size_max=size_max(gpus, node_gpus, sum(app.peak_gpus for app in apps)))
    bare = Day(day, seed, start_ms, hours, gpus, node_gpus, CLUSTER, POOL, (), apps)
    wanted_gpu_s = load * bare.capacity_gpu_s - bare.app_gpu_s()
    jobs = _jobs(trace, bare, shape, wanted_gpu_s)
    return Day(day, seed, start_ms, hours, gpus, node_gpus, CLUSTER, POOL, jobs, apps)


def _apps(trace: Trace, seed: int, hours: float, gpus: int) -> tuple[DayApp, ...]:
    by_id = {series.app_id: series for series in trace.series}
    load_day = trace.load_days[seed % len(trace.load_days)]
    return tuple(
        make_app(profile, by_id[profile.app_id], load_day, hours, gpus)
        for profile in PROFILES
        if profile.app_id in by_id
    )


def size_max(gpus: int, node_gpus: int, reserved: int) -> int:
    """The largest block the simple policies can ever start beside the reserved peaks, at most a quarter of the pool."""
    left = gpus - reserved
    size = 1
    while size * 2 <= gpus // SIZE_SHARE and size * 2 <= (
        left if size * 2 <= node_gpus else left // node_gpus * node_gpus
    ):
        size *= 2
    return size


def _arrival_ms(row: TraceJob, day: Day) -> int:
    if row.submit_ms >= day.start_ms:
        return row.submit_ms
    spread_ms = min(EVENING_SPREAD_MS, (day.end_ms - day.start_ms) // 4)
    return day.start_ms + (row.submit_ms - day.start_ms + EVENING_MS) * spread_ms // EVENING_MS


def _jobs(trace: Trace, day: Day, shape: rules.Shape, wanted_gpu_s: float) -> tuple[DayJob, ...]:
    """Rows in an order drawn by the seed, until their work inside the day reaches `wanted_gpu_s`; numbered by arrival."""
    first_ms = day.start_ms - EVENING_MS
    rows = [(i, row) for i, row in enumerate(trace.jobs) if first_ms <= row.submit_ms < day.end_ms]
    order = np.random.Generator(np.random.PCG64([day.seed, 0])).permutation(len(rows))
    chosen: list[tuple[int, int, TraceJob]] = []
    taken_gpu_s = 0.0
    for position in order.tolist():
        index, row = rows[position]
        arrival_ms = _arrival_ms(row, day)
        inside_s = min(rules.duration_s(row), (day.end_ms - arrival_ms) / 1000)
        work_gpu_s = rules.power_of_two(row.gpus, shape.size_max) * inside_s
        if taken_gpu_s + work_gpu_s > wanted_gpu_s * (1 + LOAD_TOLERANCE):
            continue
        chosen.append((arrival_ms, index, row))
        taken_gpu_s += work_gpu_s
        if taken_gpu_s >= wanted_gpu_s * (1 - LOAD_TOLERANCE):
            break
    chosen.sort(key=lambda entry: entry[:2])
    return tuple(
        rules.make_job(row, number, arrival_ms, shape, np.random.Generator(np.random.PCG64([day.seed, 1, index])))
        for number, (arrival_ms, index, row) in enumerate(chosen, start=1)
    )

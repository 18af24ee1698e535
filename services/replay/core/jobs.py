"""From a trace row to a job: everything the trace doesn't tell is drawn here, by stated shares from a seeded generator.

Owns the rules of docs/workload.md (sizes, durations per size, kind, priority, user, limit, checkpoint, memory). Refuses to
know the pool's load: which rows become jobs is `workload.py`'s.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from schemas.jobs import CheckpointMode, CheckpointPolicy, JobSpec, Kind, RestartMode, RestartPolicy
from services.replay.core.day import RUN_LABEL, DayJob
from services.replay.core.trace import TraceJob

T = TypeVar("T")

RUN_S_MIN = 60.0
"""Shorter rows are mostly failed starts; below this a replay at 720× would measure its own latency."""
RUN_S_MAX = 12 * 3600.0
"""At the requested size. Philly's longest jobs run for weeks; on a pool a fiftieth of the size one would be the whole day."""
SPEEDUP_IN_NODE = 0.9
SPEEDUP_ACROSS = 0.8
"""Doubling the GPUs divides the time by 2 to this power, inside a node and from one node on."""
SHORT_S = 900.0
SHORT_GPUS_MAX = 2
QUANTIZATION_GPUS_MAX = 8
KINDS_SHORT = ((Kind.DEBUG, 0.45), (Kind.BATCH_INFERENCE, 0.35), (Kind.QUANTIZATION, 0.20))
KINDS_LONG = ((Kind.TRAINING, 0.65), (Kind.BATCH_INFERENCE, 0.25), (Kind.QUANTIZATION, 0.10))
PRIORITIES = ((1, 0.15), (2, 0.25), (3, 0.30), (4, 0.20), (5, 0.10))
PRIORITIES_DEBUG = ((3, 0.4), (4, 0.4), (5, 0.2))
FLEXIBLE_SHARE = 0.7
"""Of training and batch inference: may also run on half and on twice the requested GPUs."""
OPTIMISTIC_SHARE = 0.02
OPTIMISTIC_FACTOR = 0.6
PESSIMISTIC_FACTORS = (1.5, 10.0)
LIMITS_S = tuple(hours * 3600.0 for hours in (0.25, 0.5, 1, 2, 4, 8, 12, 24, 48, 96, 168, 336))
"""People declare round limits. Drawn factor × the longest true duration, rounded up to one of these."""
CHECKPOINT_RUN_S_MIN = 1800.0
CHECKPOINT_SHARE = 0.75
CHECKPOINT_INTERVAL_S = 1800.0
MEMORY_GIB = ((16, 0.2), (24, 0.2), (40, 0.3), (60, 0.2), (72, 0.1))
USERS_PER_TEAM = 5
RESTARTS_MAX = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """What the pool allows: nodes of `node_gpus`, no block above `size_max`."""

    node_gpus: int
    size_max: int


def power_of_two(gpus: int, size_max: int) -> int:
    """The next power of two, at most `size_max` (a power of two)."""
    return min(1 << max(gpus - 1, 0).bit_length(), size_max)


def duration_s(row: TraceJob) -> float:
    """The trace's duration between the stated bounds, at the requested size."""
    return min(max(row.run_s, RUN_S_MIN), RUN_S_MAX)


def run_times(requested: int, sizes: list[int], run_s: float, node_gpus: int) -> dict[int, float]:
    """True duration per size (ms resolution): each doubling gains SPEEDUP_IN_NODE up to a node, SPEEDUP_ACROSS beyond."""

    def speed(gpus: int) -> float:
        inside = min(gpus, node_gpus)
        return float(inside**SPEEDUP_IN_NODE * (gpus / inside) ** SPEEDUP_ACROSS)

    return {size: round(run_s * speed(requested) / speed(size), 3) for size in sizes}


def make_job(row: TraceJob, number: int, arrival_ms: int, shape: Shape, draw: np.random.Generator) -> DayJob:
    """The job of one row; `draw` belongs to this row alone, so that leaving a row out doesn't change the others."""
    requested = power_of_two(row.gpus, shape.size_max)
    run_s = duration_s(row)
    kind = _kind(requested, run_s, draw)
    flexible = kind in (Kind.TRAINING, Kind.BATCH_INFERENCE) and draw.random() < FLEXIBLE_SHARE
    sizes = [requested]
    if flexible:
        sizes = [size for size in (requested // 2, requested, requested * 2) if 1 <= size <= shape.size_max]
    times = run_times(requested, sizes, run_s, shape.node_gpus)
    long_training = kind is Kind.TRAINING and run_s >= CHECKPOINT_RUN_S_MIN
    saves = long_training and draw.random() < CHECKPOINT_SHARE
    user = f"{row.team}-u{int(draw.integers(USERS_PER_TEAM))}"
    spec = JobSpec(
        kind=kind,
        team=row.team,
        user=row.user or user,
        priority=_pick(row.priorities or (PRIORITIES_DEBUG if kind is Kind.DEBUG else PRIORITIES), draw),
        sizes=sizes,
        requested_gpus=requested,
        memory_mib=_pick(MEMORY_GIB, draw) * 1024,
        time_limit_s=_limit_s(times[requested], max(times.values()), draw),
        restart=RestartPolicy(mode=RestartMode.ON_FAILURE, attempts_max=RESTARTS_MAX) if saves else RestartPolicy(),
        checkpoint=CheckpointPolicy(mode=CheckpointMode.SIGNAL, interval_s=CHECKPOINT_INTERVAL_S)
        if saves
        else CheckpointPolicy(),
        template="simulated",
        labels={RUN_LABEL: json.dumps({str(size): seconds for size, seconds in times.items()})},
    )
    return DayJob(job_id=f"j{number:04d}", arrival_ms=arrival_ms, spec=spec, run_s=times)


def _kind(requested: int, run_s: float, draw: np.random.Generator) -> Kind:
    if run_s <= SHORT_S and requested <= SHORT_GPUS_MAX:
        return _pick(KINDS_SHORT, draw)
    kind = _pick(KINDS_LONG, draw)
    return Kind.TRAINING if requested > QUANTIZATION_GPUS_MAX else kind


def _limit_s(requested_s: float, longest_s: float, draw: np.random.Generator) -> float:
    optimistic, exponent = draw.random(), draw.random()
    if optimistic < OPTIMISTIC_SHARE:
        return max(round(requested_s * OPTIMISTIC_FACTOR), RUN_S_MIN / 2)
    low, high = PESSIMISTIC_FACTORS
    wanted = longest_s * low * (high / low) ** exponent
    return next((limit for limit in LIMITS_S if limit >= wanted), LIMITS_S[-1])


def _pick(shares: tuple[tuple[T, float], ...], draw: np.random.Generator) -> T:
    left = draw.random()
    for value, share in shares:
        left -= share
        if left < 0:
            return value
    return shares[-1][0]

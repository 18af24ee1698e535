"""A day as data: batch-like jobs with their true durations, applications with their true load, the pool they share.

Owns the shapes every other module here speaks. Knows nothing of traces, clocks or buses. Read next: `workload.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from schemas.jobs import ApplicationSpec, JobSpec

HOUR_MS = 3_600_000
RUN_LABEL = "simulated/run_s"
"""Label with the true duration per size; read by the simulated driver only."""


@dataclass(frozen=True, slots=True)
class DayJob:
    """One batch-like job. `run_s`: true duration per offered size; it is what happens, nobody plans with it."""

    job_id: str
    arrival_ms: int
    spec: JobSpec
    run_s: dict[int, float]

    @property
    def requested(self) -> int:
        return self.spec.requested_gpus or self.spec.sizes[0]

    def useful_share(self, gpus: int) -> float:
        """Best GPU-seconds over the offered sizes ÷ GPU-seconds at `gpus`."""
        best = min(size * run_s for size, run_s in self.run_s.items())
        return best / (gpus * self.run_s[gpus])


@dataclass(frozen=True, slots=True)
class DayApp:
    """One real-time application. `history`: mean load per window before the start, oldest first; `loads`: from the start on."""

    app_id: str
    spec: ApplicationSpec
    per_gpu: float
    window_s: int
    history: tuple[float, ...]
    loads: tuple[float, ...]

    def demand_gpus(self) -> tuple[float, ...]:
        """GPUs' worth of load per window. Not rounded: what is unmet is load that nobody serves."""
        return tuple(load / self.per_gpu for load in self.loads)

    @property
    def peak_gpus(self) -> int:
        """The daily peak in whole GPUs: what the simple policies hold all day."""
        return max(math.ceil(max(self.demand_gpus(), default=0.0) - 1e-9), self.spec.floor_gpus)


@dataclass(frozen=True, slots=True)
class Day:
    """Jobs by arrival, applications by id. `gpus` on nodes of `node_gpus`, ordered; the day ends `hours` after its start."""

    name: str
    seed: int
    start_ms: int
    hours: float
    gpus: int
    node_gpus: int
    cluster: str
    pool: str
    jobs: tuple[DayJob, ...]
    apps: tuple[DayApp, ...]

    @property
    def end_ms(self) -> int:
        return self.start_ms + round(self.hours * HOUR_MS)

    @property
    def capacity_gpu_s(self) -> float:
        return self.gpus * self.hours * 3600

    def app_gpu_s(self) -> float:
        """GPU-seconds of load the applications bring."""
        return sum(gpus * app.window_s for app in self.apps for gpus in app.demand_gpus())

    def job_gpu_s(self) -> float:
        """GPU-seconds at the requested size that could run between arrival and the day's end."""
        return sum(
            job.requested * min(job.run_s[job.requested], (self.end_ms - job.arrival_ms) / 1000) for job in self.jobs
        )

    def load(self) -> float:
        """What is asked for ÷ what the pool can give: the load factor docs/workload.md states."""
        return (self.app_gpu_s() + self.job_gpu_s()) / self.capacity_gpu_s

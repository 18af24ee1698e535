"""Loads that are hostile to whoever needs much: regular streams of small jobs, one after the other in equal distances."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.jobs import JobSpec, Kind
from services.replay.core.day import Day, DayJob

NODE_GPUS = 8
HOUR_MS = 3_600_000
STREAM_HOURS = 10


def job(name: str, at_ms: int, size: int, hours: float, limit_over: float, priority: int) -> DayJob:
    run_s = round(hours * 3600.0)
    spec = JobSpec(
        kind=Kind.TRAINING,
        team=name[0],
        user="u",
        priority=priority,
        sizes=[size],
        time_limit_s=run_s * limit_over,
        template="simulated",
    )
    return DayJob(name, at_ms, spec, {size: float(run_s)})


@dataclass(frozen=True)
class Shape:
    """A stream that fills the pool but for a little, one job of `run_s` on `size` GPUs after the other in equal distances; and jobs that
    need `large` GPUs in between. `load` in hundredths, `priority` of the stream, `steps` of the window to play it in."""

    run_s: int
    sizes: tuple[int, ...] = (1,)
    gpus: int = 8
    large: tuple[int, ...] = (8,)
    load: int = 97
    steps: int = 96

    def day(self, priority: int = 100) -> Day:
        jobs, at_ms = list[DayJob](), 0
        while at_ms < STREAM_HOURS * HOUR_MS:
            size = self.sizes[len(jobs) % len(self.sizes)]
            jobs.append(job(f"h{len(jobs):03d}", at_ms, size, self.run_s / 3600, 1.0, priority))
            at_ms += self.run_s * 1000 * size * 100 // (self.gpus * self.load)
        jobs += [job(f"v{n}", 1_200_000 * (n + 1), size, 0.7, 1.0, 1) for n, size in enumerate(self.large)]
        ordered = sorted(jobs, key=lambda one: (one.arrival_ms, one.job_id))
        return Day("regular", 0, 0, 36.0, self.gpus, NODE_GPUS, "c0", "h100", tuple(ordered), ())


SHAPES = {
    "an hour less a little": Shape(3500),
    "whole steps": Shape(3600),
    "a step and a little": Shape(905),
    "a step less a little, window of one word": Shape(890, steps=48),
    "pairs": Shape(3500, sizes=(2,)),
    "all widths": Shape(2650, sizes=(1, 2, 1, 4)),
    "two nodes, a gang": Shape(3500, gpus=16, large=(16,)),
    "two nodes, a gang behind a node": Shape(3500, sizes=(1, 2), gpus=16, large=(8, 16)),
    "four nodes, one after the other": Shape(7000, sizes=(4,), gpus=32, large=(16, 8, 32)),
    "longer than the window": Shape(9000, steps=8),
    "much longer than the window, a gang": Shape(14_000, gpus=16, large=(16, 8), steps=8),
}

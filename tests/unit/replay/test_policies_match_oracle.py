"""FIFO and priority backfill equal their minute-by-minute versions on random small days."""

from __future__ import annotations

import random

import pytest

from schemas.jobs import ApplicationSpec, JobSpec, Kind
from services.replay.core.baselines import BACKFILL, FIFO, attempts_of, fifo, priority_backfill
from services.replay.core.day import Day, DayApp, DayJob
from tests.oracle.replay_policies import MINUTE_MS, minute_by_minute

START_MS = 1_500_000_000_000


def random_day(seed: int) -> Day:
    draw = random.Random(seed)
    jobs = []
    for number in range(draw.randint(1, 25)):
        size = draw.choice([1, 1, 1, 2, 4, 8, 16])
        run_minutes = draw.randint(1, 90)
        limit_minutes = draw.choice([run_minutes * 2, run_minutes * 2, max(run_minutes // 2, 1)])
        spec = JobSpec(
            kind=Kind.TRAINING,
            team="a",
            user="b",
            priority=draw.randint(1, 5),
            sizes=[size],
            requested_gpus=size,
            time_limit_s=limit_minutes * 60.0,
            template="simulated",
        )
        arrival_ms = START_MS + draw.randint(0, 120) * MINUTE_MS
        jobs.append(DayJob(f"j{number:02d}", arrival_ms, spec, {size: run_minutes * 60.0}))
    jobs.sort(key=lambda job: (job.arrival_ms, job.job_id))
    app_spec = ApplicationSpec(team="s", user="u", priority=3, floor_gpus=1, peak_gpus=8, switch_max=2)
    loads = tuple(draw.uniform(0, 60) for _ in range(24))
    app = DayApp("chat", app_spec, 10.0, 600, (), loads)
    return Day("d", seed, START_MS, 4.0, 32, 8, "c0", "p0", tuple(jobs), (app,))


@pytest.mark.parametrize("backfill", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_equals_the_slow_version(seed: int, backfill: bool) -> None:
    day = random_day(seed)
    slow = minute_by_minute(day, backfill=backfill)
    fast = {
        attempt.job_id: (
            attempt.gpus,
            (attempt.start_ms - day.start_ms) // MINUTE_MS,
            ((attempt.end_ms or 0) - day.start_ms) // MINUTE_MS,
        )
        for attempt in attempts_of(day, BACKFILL if backfill else FIFO)
    }
    sizes = {job.job_id: job.requested for job in day.jobs}
    assert fast == {job_id: (sizes[job_id], start, end) for job_id, (_, start, end) in slow.items()}


@pytest.mark.parametrize("seed", range(20))
def test_simple_policies_fit_the_pool_and_miss_no_demand(seed: int) -> None:
    day = random_day(seed)
    for result in (fifo(day), priority_backfill(day)):
        assert result.gpus_max <= day.gpus
        assert result.unmet_gpu_hours == 0
        assert result.unmet_cost == 0


def test_fifo_starts_nobody_before_an_earlier_arrival() -> None:
    for seed in range(20):
        day = random_day(seed)
        starts = {attempt.job_id: attempt.start_ms for attempt in attempts_of(day, FIFO)}
        in_order = [starts.get(job.job_id, day.end_ms) for job in day.jobs]
        assert in_order == sorted(in_order)

"""The schedulers a backtest compares with: equal to their slow versions, legal, and EASY keeps its word."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from services.replay.core.baselines import (
    BEST_EFFORT,
    EASY,
    FIFO,
    SCHEDULERS,
    SHORTEST,
    Played,
    Unwatched,
    play,
)
from services.replay.core.blocks import FreeBlocks
from services.replay.core.day import Day, DayJob
from tests.oracle.queue_policies import MINUTE_MS, queue_minute_by_minute
from tests.unit.replay.test_policies_match_oracle import random_day

RULES = {EASY: "easy", BEST_EFFORT: "best_effort", SHORTEST: "shortest"}


class Told(Unwatched):
    """Knows durations, in minutes."""

    def __init__(self, minutes: dict[str, int]) -> None:
        self.minutes = minutes

    def expected_s(self, job: DayJob, gpus: int) -> tuple[float, float]:
        return self.minutes[job.job_id] * 60.0, self.minutes[job.job_id] * 60.0


def run_minutes(job: DayJob) -> int:
    return round(min(job.run_s[job.requested], job.spec.time_limit_s) / 60)


def told(day: Day, seed: int, *, exact: bool) -> Told:
    """The true durations, or up to three times as long."""
    draw = random.Random(seed)
    return Told({job.job_id: run_minutes(job) * (1 if exact else draw.randint(1, 3)) for job in day.jobs})


@pytest.mark.parametrize("scheduler", RULES)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_equals_the_slow_version(seed: int, exact: bool, scheduler: str) -> None:
    day = random_day(seed)
    watch = told(day, seed, exact=exact)
    slow = queue_minute_by_minute(day, RULES[scheduler], watch.minutes)
    played = play(day, scheduler, watch)
    fast = {one.job_id: (one.start_ms - day.start_ms) // MINUTE_MS for one in played.attempts}
    assert fast == {job_id: start for job_id, (_, start) in slow.items()}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("seed", range(6))
def test_every_grid_is_legal(seed: int, scheduler: str) -> None:
    day = random_day(seed)
    played = play(day, scheduler, told(day, seed, exact=False), launch_s=7.0)
    assert_legal(day, played)


def assert_legal(day: Day, played: Played) -> None:
    """At most one holder per GPU; blocks are contiguous, inside a node or made of whole nodes; nobody runs twice."""
    changes = sorted(
        [(block.from_ms, 1, block.gpus) for block in played.blocks]
        + [(block.until_ms, 0, block.gpus) for block in played.blocks]
    )
    taken = 0
    for _, begins, gpus in changes:
        assert not (taken & gpus if begins else gpus & ~taken)
        taken ^= gpus
    for block in played.blocks[1:]:  # the first is what applications hold
        first, size = (block.gpus & -block.gpus).bit_length() - 1, block.gpus.bit_count()
        assert block.gpus == ((1 << size) - 1) << first
        inside = first // day.node_gpus == (first + size - 1) // day.node_gpus
        assert inside or (first % day.node_gpus == 0 and size % day.node_gpus == 0)
    started = [attempt.job_id for attempt in played.attempts]
    assert len(started) == len(set(started))


@pytest.mark.parametrize("seed", range(20))
def test_easy_never_delays_the_start_it_promised_to_the_head(seed: int) -> None:
    day = random_day(seed)
    played = play(day, EASY, told(day, seed, exact=bool(seed % 2)))
    starts = {attempt.job_id: attempt.start_ms for attempt in played.attempts}
    for job_id, promised_ms in played.promised.items():
        if promised_ms < day.end_ms:
            assert starts[job_id] <= promised_ms


def test_easy_fills_the_gap_before_a_large_job_and_fifo_does_not() -> None:
    day = replace(random_day(0), apps=(), gpus=16, jobs=())
    jobs = (
        job_of(day, "long", 0, 8, 60),
        job_of(day, "large", 1, 16, 10),
        job_of(day, "short", 2, 8, 50),
        job_of(day, "too-long", 3, 8, 90),
    )
    day = replace(day, jobs=jobs)
    watch = Told({job.job_id: run_minutes(job) for job in jobs})
    easy = {one.job_id: (one.start_ms - day.start_ms) // MINUTE_MS for one in play(day, EASY, watch).attempts}
    fifo = {one.job_id: (one.start_ms - day.start_ms) // MINUTE_MS for one in play(day, FIFO).attempts}
    assert easy == {"long": 0, "short": 2, "large": 60, "too-long": 70}
    assert fifo == {"long": 0, "large": 60, "short": 70, "too-long": 70}


def job_of(day: Day, name: str, arrival_minute: int, size: int, minutes: int) -> DayJob:
    from schemas.jobs import JobSpec, Kind

    spec = JobSpec(
        kind=Kind.TRAINING, team="a", user="b", priority=1, sizes=[size], requested_gpus=size, template="simulated"
    )
    return DayJob(name, day.start_ms + arrival_minute * MINUTE_MS, spec, {size: minutes * 60.0})


def test_a_launch_holds_gpus_before_the_job_runs() -> None:
    day = replace(random_day(0), apps=(), jobs=())
    day = replace(day, jobs=(job_of(day, "a", 0, 32, 10), job_of(day, "b", 0, 32, 10)))
    first, second = play(day, FIFO, launch_s=30.0).attempts
    assert first.start_ms == day.start_ms + 30_000
    assert second.start_ms == (first.end_ms or 0) + 30_000


def test_a_scheduler_that_was_told_nothing_may_not_ask() -> None:
    with pytest.raises(LookupError, match="knows no durations"):
        play(random_day(3), SHORTEST)


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_free_block_is_the_first_a_search_finds(seed: int) -> None:
    draw = random.Random(seed)
    blocks = FreeBlocks(24, 8, draw.choice([0, 3]))
    blocks.free &= draw.getrandbits(24)
    for size in (1, 2, 4, 8, 16):
        firsts = [
            first
            for first in range(24 - size + 1)
            if all(blocks.free >> gpu & 1 for gpu in range(first, first + size))
            and (first % 8 + size <= 8 or (first % 8 == 0 and size % 8 == 0))
        ]
        assert blocks.lowest(size) == (firsts[0] if firsts else None)


def test_taking_what_is_taken_is_a_mistake() -> None:
    blocks = FreeBlocks(8, 8, 0)
    blocks.take(2, 2)
    with pytest.raises(ValueError, match="not all free"):
        blocks.take(3, 1)
    with pytest.raises(ValueError, match="not all taken"):
        blocks.release(1, 2)

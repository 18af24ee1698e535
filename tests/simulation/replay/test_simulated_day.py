"""A simulated day with the services' real handlers: the same bytes every time, and nothing that a pool can't do."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from services.replay.core.day import Day
from services.replay.core.observation import Observation
from services.replay.simulate import DayOptions, Simulated, day_of, simulate_day

OPTIONS = DayOptions(seed=1, hours=1.5, gpus=32)


@pytest.fixture(scope="module")
def day() -> Day:
    return day_of(OPTIONS)


@pytest.fixture(scope="module")
def simulated(day: Day) -> Simulated:
    return simulate_day(day)


def test_bit_identical_every_time(day: Day, simulated: Simulated) -> None:
    again = simulate_day(day)
    assert again.digest == simulated.digest
    assert again.outcome == simulated.outcome


def test_every_job_has_a_fate(day: Day, simulated: Simulated) -> None:
    result = simulated.outcome
    assert result.jobs == len(day.jobs) == result.completed + result.timed_out + result.running + result.waiting
    assert result.completed > 0
    assert simulated.decisions > 0
    assert (simulated.rejected, simulated.dead_letters, simulated.violations) == (0, 0, [])
    known = simulated.observation.statuses.keys() | {job.job_id for job in day.jobs if job.arrival_ms >= day.end_ms}
    assert {job.job_id for job in day.jobs} <= known


def test_no_gpu_serves_two_at_once(day: Day, simulated: Simulated) -> None:
    holds = _holds(simulated.observation)
    for entries in holds.values():
        entries.sort()
        for (_, until_ms, one), (since_ms, _, other) in itertools.pairwise(entries):
            assert until_ms <= since_ms, f"{one} and {other} overlap"


def test_blocks_are_offered_sizes_and_applications_never_fall_below_their_floor(day: Day, simulated: Simulated) -> None:
    sizes = {job.job_id: job.spec.sizes for job in day.jobs}
    for attempt in simulated.observation.attempts():
        assert attempt.gpus in sizes[attempt.job_id]
    floors = {app.app_id: app.spec.floor_gpus for app in day.apps}
    for hold in simulated.observation.holds:
        assert hold.gpus >= floors[hold.app_id]


def test_a_bundled_day_by_name_and_the_seed_pick_days() -> None:
    assert day_of(DayOptions(seed=1)).name == "2017-11-09"
    assert day_of(DayOptions(seed=5, trace=Path("2017-11-20"), hours=1.0)).name == "2017-11-20"


def _holds(observation: Observation) -> dict[tuple[str, int], list[tuple[int, int, str]]]:
    found: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    for block in [*observation.past, *observation.blocks.values()]:
        until_ms = block.until_ms or observation.log.now_ms
        for part in block.nodes:
            for gpu in part.gpus:
                found.setdefault((part.node, gpu), []).append((block.since_ms, until_ms, block.owner))
    return found

"""The bundled days: contended as stated, different from each other, the same bytes every time."""

from __future__ import annotations

import hashlib
import json

import msgspec
import pytest

from services.replay.core.day import RUN_LABEL, Day
from services.replay.core.jobs import RUN_S_MAX, RUN_S_MIN, power_of_two, run_times
from services.replay.core.trace import Trace
from services.replay.core.workload import build_day
from services.replay.shell.bundled import bundled_trace, day_of_seed

SEEDS = range(10)
DIGEST_OF_SEED_1 = "23746e911be0f8e82a02a7803de27be945b70989371ee372cdec8ff1a872be7d"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return bundled_trace()


@pytest.fixture(scope="module")
def days(trace: Trace) -> list[Day]:
    return [build_day(trace, day_of_seed(trace, seed), seed) for seed in SEEDS]


def digest(day: Day) -> str:
    return hashlib.sha256(msgspec.json.encode(day)).hexdigest()


def test_same_arguments_same_bytes(trace: Trace, days: list[Day]) -> None:
    assert digest(build_day(bundled_trace(), days[1].name, 1)) == digest(days[1])
    assert digest(days[1]) == DIGEST_OF_SEED_1, "the rules or the data changed: say so in docs/workload.md"


def test_ten_seeds_are_ten_days(days: list[Day]) -> None:
    assert len({day.name for day in days}) == len(days)
    assert len({digest(day) for day in days}) == len(days)


def test_another_seed_draws_other_jobs_from_the_same_day(trace: Trace, days: list[Day]) -> None:
    assert digest(build_day(trace, days[1].name, 13)) != digest(days[1])


def test_every_day_is_contended_as_stated(days: list[Day]) -> None:
    for day in days:
        assert 1.2 <= day.load() <= 1.4, day.name
        assert 0.3 <= sum(app.peak_gpus for app in day.apps) / day.gpus <= 0.46, day.name


def test_jobs_keep_the_rules(days: list[Day]) -> None:
    for day in days:
        assert [job.arrival_ms for job in day.jobs] == sorted(job.arrival_ms for job in day.jobs)
        for job in day.jobs:
            assert day.start_ms <= job.arrival_ms < day.end_ms
            assert job.requested in job.spec.sizes
            assert all(size & (size - 1) == 0 and size <= day.gpus // 4 for size in job.spec.sizes)
            assert sorted(job.run_s) == job.spec.sizes
            assert RUN_S_MIN <= job.run_s[job.requested] <= RUN_S_MAX
            assert json.loads(job.spec.labels[RUN_LABEL]) == {str(size): run_s for size, run_s in job.run_s.items()}
            assert 0 < job.useful_share(job.requested) <= 1


def test_declared_limits_are_mostly_pessimistic(days: list[Day]) -> None:
    jobs = [job for day in days for job in day.jobs]
    short = sum(job.spec.time_limit_s < job.run_s[job.requested] for job in jobs)
    assert 0.005 <= short / len(jobs) <= 0.04
    generous = [job for job in jobs if job.spec.time_limit_s >= job.run_s[job.requested]]
    assert all(job.spec.time_limit_s >= 1.5 * max(job.run_s.values()) for job in generous)


def test_history_lies_before_the_day(days: list[Day]) -> None:
    for day in days:
        for app in day.apps:
            assert len(app.history) * app.window_s >= 5 * 86_400
            assert len(app.loads) * app.window_s == day.hours * 3600


@pytest.mark.parametrize(("gpus", "hours"), [(16, 24.0), (32, 2.0), (64, 0.5), (128, 6.0), (512, 24.0)])
def test_other_pools_and_lengths(trace: Trace, gpus: int, hours: float) -> None:
    day = build_day(trace, "2017-11-09", 1, gpus=gpus, hours=hours)
    assert all(job.arrival_ms < day.end_ms for job in day.jobs)
    assert day.jobs
    assert sum(app.peak_gpus for app in day.apps) < gpus
    assert max(max(job.spec.sizes) for job in day.jobs) <= gpus // 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"day": "2017-12-24"}, "not in trace philly"),
        ({"gpus": 12}, "multiple of 8"),
        ({"gpus": 8}, "at least 16"),
        ({"hours": 0}, "hours"),
        ({"hours": 25}, "hours"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_days_are_refused(trace: Trace, arguments: dict, says: str) -> None:
    given = {"day": "2017-11-09", "seed": 1} | arguments
    with pytest.raises(ValueError, match=says):
        build_day(trace, given.pop("day"), given.pop("seed"), **given)


def test_sizes_are_rounded_up_and_capped() -> None:
    assert [power_of_two(gpus, 16) for gpus in (1, 2, 3, 6, 8, 12, 24, 128)] == [1, 2, 4, 8, 8, 16, 16, 16]


def test_more_gpus_are_faster_and_less_efficient() -> None:
    times = run_times(8, [4, 8, 16], 3600.0, 8)
    assert times[8] == 3600
    assert times[4] == pytest.approx(3600 * 2**0.9, abs=1e-3)
    assert times[16] == pytest.approx(3600 / 2**0.8, abs=1e-3)

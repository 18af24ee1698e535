"""The outcome of days small enough to work out on paper."""

from __future__ import annotations

import pytest

from schemas.jobs import ApplicationSpec, JobSpec, Kind
from services.replay.core.day import HOUR_MS, Day, DayApp, DayJob
from services.replay.core.outcome import Attempt, End, Hold, Outcome, outcome, percentile, size_class

START_MS = 1_500_000_000_000


def job(job_id: str, priority: int, run_s: dict[int, float], *, arrival_h: float = 0.0, requested: int = 0) -> DayJob:
    sizes = sorted(run_s)
    spec = JobSpec(
        kind=Kind.TRAINING,
        team="a",
        user="b",
        priority=priority,
        sizes=sizes,
        requested_gpus=requested or sizes[0],
        template="simulated",
    )
    return DayJob(job_id, START_MS + round(arrival_h * HOUR_MS), spec, run_s)


def app(loads: tuple[float, ...], priority: int = 2) -> DayApp:
    spec = ApplicationSpec(team="s", user="u", priority=priority, floor_gpus=1, peak_gpus=4, switch_max=2)
    return DayApp("chat", spec, 10.0, 3600, (), loads)


def day(*jobs: DayJob, apps: tuple[DayApp, ...] = (), hours: float = 4.0, gpus: int = 8) -> Day:
    return Day("d", 1, START_MS, hours, gpus, 8, "c0", "p0", jobs, apps)


def at(hours: float) -> int:
    return START_MS + round(hours * HOUR_MS)


def measured(built: Day, attempts: list[Attempt], holds: list[Hold] | None = None) -> Outcome:
    return outcome(built, "mine", attempts, holds or [])


def test_one_completed_job() -> None:
    built = day(job("a", 3, {2: 7200.0}, arrival_h=0.5))
    result = measured(built, [Attempt("a", at(1), at(3), 2, End.COMPLETED)])
    assert result.value == result.batch_value == 3 * 2 * 2  # priority × GPUs × hours
    assert result.utilization == result.held == result.useful == 4 / 32
    assert (result.completed, result.running, result.waiting) == (1, 0, 0)
    assert result.completed_per_gpu_day == 1 / (8 * 4 / 24)
    assert result.wait_s["2-4"].p50_s == 1800
    assert result.kinds["training"].gpu_hours == 4


def test_an_inefficient_size_earns_no_more() -> None:
    built = day(job("a", 1, {1: 7200.0, 2: 4800.0}))  # 2 GPU-hours at best, 2.67 on two GPUs
    result = measured(built, [Attempt("a", at(0), at(4800 / 3600), 2, End.COMPLETED)])
    assert result.value == pytest.approx(2.0)
    assert result.utilization == pytest.approx(2 * 4800 / 3600 / 32)
    assert result.useful == pytest.approx(2 / 32)


def test_only_work_inside_the_day_counts() -> None:
    built = day(job("a", 1, {4: 36_000.0}), job("b", 1, {1: 60.0}))
    result = measured(
        built, [Attempt("a", at(3), at(13), 4, End.COMPLETED), Attempt("b", at(4.5), None, 1, End.RUNNING)]
    )
    assert result.value == 4
    assert (result.completed, result.running, result.waiting) == (0, 1, 1)
    assert result.wait_s["1"].unstarted == 1
    assert result.wait_s["1"].p99_s == 4 * 3600


def test_lost_work_counts_nothing_and_saved_work_what_was_saved() -> None:
    built = day(job("a", 1, {1: 7200.0}), job("b", 1, {1: 7200.0}), job("c", 5, {1: 7200.0}))
    result = measured(
        built,
        [
            Attempt("a", at(0), at(1), 1, End.LOST),
            Attempt("a", at(1), at(3), 1, End.COMPLETED),
            Attempt("b", at(0), at(1), 1, End.SAVED, kept_s=1800.0),
            Attempt("b", at(1), None, 1, End.RUNNING),
            Attempt("c", at(0), at(1), 1, End.TIMED_OUT),
        ],
    )
    assert result.value == 2 + 0.5 + 3
    assert result.utilization == (3 + 4 + 1) / 32
    assert result.interruptions == 2
    assert (result.completed, result.running, result.timed_out) == (1, 1, 1)


def test_unmet_demand_costs_ratio_times_priority() -> None:
    built = day(apps=(app((10.0, 25.0, 40.0, 5.0)),))  # 1, 2.5, 4, 0.5 GPUs
    result = measured(built, [], [Hold("chat", at(0), 2), Hold("chat", at(2.5), 4)])
    assert result.unmet_gpu_hours == pytest.approx(0.5 + 0.5 * 2)
    assert result.unmet_cost == pytest.approx(7 * 2 * 1.5)
    assert result.value == pytest.approx(-21)
    served = 1 + 2 + 0.5 * 2 + 0.5 * 4 + 0.5
    assert result.utilization == pytest.approx(served / 32)
    assert result.held == pytest.approx((2 * 2.5 + 4 * 1.5) / 32)
    assert result.demand_gpu_hours == pytest.approx(8)


def test_without_a_hold_all_demand_is_unmet() -> None:
    result = measured(day(apps=(app((10.0, 10.0, 10.0, 10.0)),)), [])
    assert result.unmet_gpu_hours == 4


def test_holds_before_the_start_count_from_the_start() -> None:
    result = measured(day(apps=(app((10.0,) * 4),)), [], [Hold("chat", at(-1), 1)])
    assert result.unmet_gpu_hours == 0
    assert result.held == 4 / 32


def test_the_most_gpus_taken_sees_back_to_back_as_one() -> None:
    built = day(job("a", 1, {8: 3600.0}), job("b", 1, {4: 3600.0}), apps=(app((10.0,) * 4),))
    attempts = [Attempt("a", at(0), at(1), 8, End.COMPLETED), Attempt("b", at(1), at(2), 4, End.COMPLETED)]
    assert measured(built, attempts).gpus_max == 8
    assert measured(built, attempts, [Hold("chat", at(0.5), 1)]).gpus_max == 9


def test_what_the_day_does_not_know_is_an_error() -> None:
    with pytest.raises(KeyError):
        measured(day(), [Attempt("x", at(0), None, 1, End.RUNNING)])
    with pytest.raises(KeyError):
        measured(day(), [], [Hold("x", at(0), 1)])


def test_percentiles_are_nearest_rank() -> None:
    assert percentile([], 0.5) == 0
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile([5], 0.01) == 5


def test_size_classes() -> None:
    assert [size_class(size) for size in (1, 2, 4, 8, 16, 64)] == ["1", "2-4", "2-4", "8", ">8", ">8"]

"""A P90 counts once it has passed, hits and misses alike; the runs of a batch count hardly more than one."""

from __future__ import annotations

from math import log

from services.forecaster.core.calibration import Calibration
from services.forecaster.core.promises import Promise, Promises

P90_S = 1_000.0


def queue(**limits: int) -> tuple[Promises, Calibration]:
    calibration = Calibration()
    return Promises(calibration, **limits), calibration


def promise() -> Promise:
    return Promise("red", 1, log(P90_S))


def test_a_hit_and_a_miss_count_at_the_same_moment() -> None:
    promises, calibration = queue()
    for run in ("ends", "goes on"):
        promises.made(run, promise(), 0)
    promises.ended("ends", 60.0)
    promises.settle(999_000)
    assert (calibration.covered, calibration.missed) == (0, 0)
    promises.settle(1_000_000)
    assert (calibration.covered, calibration.missed) == (1, 1)
    promises.ended("goes on", 5_000.0)
    promises.settle(10_000_000)
    assert (calibration.covered, calibration.missed) == (1, 1), "it has counted"


def test_a_run_that_was_stopped_from_outside_never_counts() -> None:
    promises, calibration = queue()
    promises.made("a", promise(), 0)
    promises.forget("a")
    promises.settle(10_000_000)
    assert calibration.covered + calibration.missed == len(promises) == 0


def test_a_run_told_again_takes_its_own_place() -> None:
    promises, calibration = queue()
    promises.made("a", promise(), 0)
    promises.made("a", promise(), 500_000)
    promises.ended("a", 1_200.0)
    promises.settle(1_000_000)
    assert calibration.missed == 0
    promises.settle(1_500_000)
    assert (calibration.covered, calibration.missed) == (0, 1)


def test_a_faster_pool_is_through_sooner() -> None:
    promises, calibration = queue()
    promises.made("a", promise(), 0, speed=2.0)
    promises.settle(500_000)
    assert calibration.missed == 1


def test_the_runs_of_a_batch_count_little_more_than_one() -> None:
    (one, alone), (many, batch) = queue(), queue()
    one.made(0, promise(), 0)
    one.settle(2_000_000)
    for run in range(100):
        many.made(run, promise(), 0)
    many.settle(2_000_000)
    assert batch.missed == 100
    assert batch.offset("red", 1) < 6 * alone.offset("red", 1)


def test_the_queue_is_bounded_and_what_is_due_first_makes_room() -> None:
    promises, calibration = queue(promises_max=3)
    for run in range(10):
        promises.made(run, promise(), run)
        if run % 2:
            promises.ended(run, 1.0)
    assert len(promises) == 3
    assert calibration.missed == 0, "those that went early and still ran say nothing"
    for _ in range(50):
        promises.made("again", promise(), 100)
    assert len(promises) <= 3

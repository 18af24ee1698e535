"""gpugrid's planner in a small backtest: legal, within floors, the same bytes every time, and it is shown what its level says."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from schemas.executions import JobCompleted
from schemas.forecasts import DemandForecast, DurationForecast
from schemas.jobs import JobAccepted
from services.allocator.core.config import Policy
from services.replay.backtest import (
    Backtest,
    BacktestOptions,
    run_backtest,
    runs_of,
    settled,
    span_of,
)
from services.replay.core.baselines import EASY, FIFO, SHORTEST
from services.replay.core.beliefs import LIMIT_UNKNOWN_S, Beliefs, Level
from services.replay.core.comparison import GPUGRID
from services.replay.core.day import Day
from services.replay.core.occurrences import Learner, accepted, over
from services.replay.core.outcome import End
from services.replay.core.rolling import Rolled, Rolling
from services.replay.core.verdict import rivals
from tests.unit.replay.test_backtest_baselines import assert_legal

SMALL = BacktestOptions(gpus=16, load=0.8, seed=1)
POLICY = Policy(forecast_wait_ms=0, iterations=4)


@pytest.fixture(scope="module")
def day() -> Day:
    return span_of(settled(SMALL)).day


@pytest.fixture(scope="module")
def rolled(day: Day) -> Rolled:
    return Rolling(day, Beliefs(day, Level.TRUE), POLICY, launch_s=5.0).play()


def test_blocks_are_legal_and_jobs_run_their_true_duration(day: Day, rolled: Rolled) -> None:
    jobs = {job.job_id: job for job in day.jobs}
    for attempt in rolled.attempts:
        job = jobs[attempt.job_id]
        assert attempt.start_ms >= job.arrival_ms + 5_000
        if attempt.end is End.COMPLETED and attempt.end_ms is not None:
            assert attempt.end_ms - attempt.start_ms == round(job.run_s[attempt.gpus] * 1000)
        if attempt.end is End.TIMED_OUT and attempt.end_ms is not None:
            assert attempt.end_ms - attempt.start_ms == round(job.spec.time_limit_s * 1000)
    taken = 0
    edges = sorted(
        [(block.until_ms, 0, block.gpus) for block in rolled.blocks]
        + [(block.from_ms, 1, block.gpus) for block in rolled.blocks]
    )
    for _, begins, gpus in edges:
        assert not (taken & gpus if begins else gpus & ~taken)
        taken ^= gpus
    assert {attempt.end for attempt in rolled.attempts} >= {End.COMPLETED}


def test_applications_keep_their_floors(day: Day, rolled: Rolled) -> None:
    floors = {app.app_id: app.spec.floor_gpus for app in day.apps}
    peaks = {app.app_id: app.spec.peak_gpus for app in day.apps}
    assert {hold.app_id for hold in rolled.holds} == set(floors)
    for hold in rolled.holds:
        assert floors[hold.app_id] <= hold.gpus <= peaks[hold.app_id]


def test_the_same_options_give_the_same_bytes_in_one_process_or_two() -> None:
    options = BacktestOptions(
        trace="lingjun", start="1", gpus=16, load=0.4, levels=(Level.FORECAST,), schedulers=(FIFO, GPUGRID)
    )
    assert _bytes(run_backtest(options, workers=1)) == _bytes(run_backtest(options, workers=2))


def _bytes(found: Backtest) -> bytes:
    """All but wall time."""
    return msgspec.json.encode(msgspec.structs.replace(found, took=[]))


def test_levels_are_what_they_say(day: Day) -> None:
    job = next(one for one in day.jobs if len(one.spec.sizes) > 1 and one.spec.time_limit_s > max(one.run_s.values()))
    for level in (Level.TRUE, Level.LIMIT, Level.NONE):
        beliefs = Beliefs(day, level)
        said = beliefs.tell(accepted(day, job, beliefs.spec(job)), job.arrival_ms)
        if level is Level.NONE:
            assert said == []
            assert beliefs.spec(job).time_limit_s == LIMIT_UNKNOWN_S
            continue
        assert beliefs.spec(job) == job.spec
        (forecast,) = said
        assert isinstance(forecast, DurationForecast)
        # The limit was declared for the slowest size; larger ones are believed to end sooner.
        limits = {gpus: job.spec.time_limit_s * min(job.spec.sizes) / gpus for gpus in job.spec.sizes}
        wanted = job.run_s if level is Level.TRUE else limits
        assert {size.gpus: size.p50_s for size in forecast.sizes} == wanted
        assert beliefs.expected_s(job, job.requested) == (wanted[job.requested], wanted[job.requested])


def test_forecasts_learn_from_what_ended_and_from_nothing_else(day: Day) -> None:
    heard: list[object] = []

    class Listening:
        """Hears what the forecaster hears."""

        def recover(self, record: object) -> None:
            raise AssertionError("nothing happened before this day")

        def handle(self, record: object, now: object) -> list[object]:
            from schemas.codec import decode_record

            heard.append(decode_record(record).event)  # type: ignore[arg-type]
            return []

        def tick(self, now: object) -> list[object]:
            return []

    Rolling(day, Beliefs(day, Level.FORECAST, Listening()), POLICY).play()  # type: ignore[arg-type]
    told = {event.job_id for event in heard if isinstance(event, JobAccepted)}
    assert told == {job.job_id for job in day.jobs if job.arrival_ms < day.end_ms}
    ended = [event for event in heard if isinstance(event, JobCompleted)]
    assert ended
    assert all(event.time_ms < day.end_ms for event in ended)
    assert not any(isinstance(event, DurationForecast | DemandForecast) for event in heard)


def test_a_simple_scheduler_has_a_forecaster_of_its_own(day: Day) -> None:
    """What it is told comes from its own run: a job it never started is never heard of as ended."""
    beliefs = Beliefs(day, Level.TRUE)
    learner = Learner(day, beliefs)
    job = day.jobs[0]
    learner.arrived(job, job.arrival_ms)
    learner.started(job, 0, job.arrival_ms)
    learner.ended(job, End.COMPLETED, job.arrival_ms + 60_000)
    assert learner.expected_s(job, job.requested)[0] == min(job.run_s[job.requested], job.spec.time_limit_s)
    assert over(day, job.job_id, 1, "n00", 0, 60_000, End.TIMED_OUT).cause.value == "time_limit"  # type: ignore[attr-defined]


def test_runs_and_rivals() -> None:
    options = BacktestOptions(levels=(Level.TRUE, Level.NONE), schedulers=(FIFO, EASY, GPUGRID))
    assert [run.name for run in runs_of(options)] == [
        "fifo",
        "easy_backfill, true",
        "gpugrid, true",
        "easy_backfill, none",
        "gpugrid, none",
    ]
    found = run_backtest(replace(SMALL, levels=(Level.TRUE, Level.NONE), schedulers=(FIFO, SHORTEST)), workers=1)
    assert list(rivals("none", found.findings)) == [FIFO, SHORTEST]
    assert rivals("none", found.findings)[SHORTEST].level == "none"
    assert found.verdict.levels == []


def test_assert_legal_is_not_blind(rolled: Rolled, day: Day) -> None:
    doubled = replace(rolled.blocks[0], gpus=rolled.blocks[0].gpus)
    with pytest.raises(AssertionError):
        assert_legal(day, Rolled(rolled.attempts, rolled.holds, [*rolled.blocks, doubled], {}))

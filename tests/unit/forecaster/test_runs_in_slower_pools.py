"""Durations are those of the preferred pool: a run at half the speed teaches half its time, and its own forecast is told so, too."""

from __future__ import annotations

from msgspec.structs import replace

from schemas.executions import JobCompleted
from schemas.forecasts import DurationForecast
from services.forecaster.core.handler import ForecasterHandler
from tests.build import CLUSTER, START_MS, accepted
from tests.unit.forecaster.forecaster_builders import Stream, events, handler, now, started

HOUR_MS = 3_600_000


def runs(speed: float, hours: float, count: int = 30) -> ForecasterHandler:
    """A handler that has seen so many runs of one thing, each in a pool of that speed for so long."""
    made, stream = handler(), Stream()
    for number in range(count):
        at_ms, job_id = START_MS + number * HOUR_MS * 8, f"j{number}"
        end_ms = at_ms + round(hours * HOUR_MS)
        ended = JobCompleted(job_id=job_id, attempt=1, node="n00", cluster=CLUSTER, time_ms=end_ms, run_s=hours * 3600)
        for event in (accepted(job_id, 1, at_ms=at_ms), replace(started(job_id, at_ms), speed=speed), ended):
            made.handle(stream.add(event), now(at_ms))
    return made


def next_forecast(made: ForecasterHandler) -> DurationForecast:
    stream = Stream()
    stream.offsets = {"jobs": 1000, "executions": 1000}
    (said,) = events(made.handle(stream.add(accepted("next", 1, at_ms=START_MS)), now(START_MS + 1000 * HOUR_MS)))
    assert isinstance(said, DurationForecast)
    return said


def test_a_run_at_half_the_speed_teaches_what_it_would_have_taken_where_it_prefers_to_run() -> None:
    assert next_forecast(runs(0.5, hours=4)).sizes == next_forecast(runs(1.0, hours=2)).sizes


def test_a_running_job_is_looked_at_when_its_time_in_this_pool_has_passed() -> None:
    made, stream = runs(1.0, hours=2), Stream()
    stream.offsets = {"jobs": 1000, "executions": 1000}
    begin_ms = START_MS + 1000 * HOUR_MS
    made.handle(stream.add(accepted("slow", 1, at_ms=begin_ms)), now(begin_ms))
    made.handle(stream.add(replace(started("slow", begin_ms), speed=0.5)), now(begin_ms))
    early = events(made.tick(now(begin_ms + 3 * HOUR_MS)))
    assert not any(isinstance(event, DurationForecast) for event in early)
    later = events(made.tick(now(begin_ms + 4 * HOUR_MS)))
    (said,) = [event for event in later if isinstance(event, DurationForecast)]
    assert said.elapsed_s == 4 * 3600
    assert 2 * 3600 < said.sizes[0].p50_s < 3 * 3600

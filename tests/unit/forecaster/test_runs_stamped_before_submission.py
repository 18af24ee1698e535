"""A run whose start is stamped before its job was submitted was timed by a wrong clock: it teaches nothing, and it is counted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from schemas.executions import JobStopped, StopCause
from services.forecaster.core.ledger import CLOCKS_AGREE_MS
from tests.build import CLUSTER, START_MS, accepted, failed
from tests.unit.forecaster.forecaster_builders import Stream, completed, handler, now, started

HOUR_MS = 3_600_000
SKEWS_MS = (CLOCKS_AGREE_MS + 1, 60_000, HOUR_MS, 30 * 24 * HOUR_MS)


def learnt(start_ms: int, *end, first: str = "accepted") -> tuple[int, int, int]:
    """(ended, running, counted as dirty) after one run that began at `start_ms` of a job submitted at START_MS."""
    made, stream = handler(), Stream()
    events = [accepted("j", 1), started("j", start_ms), *end]
    for event in events if first == "accepted" else [*events[1:], events[0]]:
        made.handle(stream.add(event), now(START_MS + HOUR_MS))
    state = made.cluster(CLUSTER)
    assert state is not None
    history = state.durations.history
    return history.ended, history.running, state.ledger.ignored["started_before_submission"]


@pytest.mark.parametrize("ahead_ms", SKEWS_MS)
@pytest.mark.parametrize("first", ["accepted", "executions"])
def test_it_is_no_observation_and_no_lower_bound(ahead_ms: int, first: str) -> None:
    start_ms = START_MS - ahead_ms
    stopped = JobStopped(
        job_id="j", attempt=1, node="n00", cluster=CLUSTER, time_ms=START_MS, cause=StopCause.DRAIN, run_s=600.0
    )
    for end in (completed("j", start_ms + 600_000, 600.0), stopped, replace(failed("j", "n00", START_MS), run_s=600.0)):
        assert learnt(start_ms, end, first=first) == (0, 0, 1)


@pytest.mark.parametrize("ahead_ms", [CLOCKS_AGREE_MS, 1, 0, -HOUR_MS])
def test_clocks_that_agree_as_well_as_clocks_do_are_believed(ahead_ms: int) -> None:
    start_ms = START_MS - ahead_ms
    assert learnt(start_ms, completed("j", start_ms + 600_000, 600.0)) == (1, 0, 0)


def test_an_end_whose_start_never_came_is_judged_by_the_start_it_implies() -> None:
    made, stream = handler(), Stream()
    for event in (accepted("j", 1), completed("j", START_MS + 60_000, 600.0)):
        made.handle(stream.add(event), now(START_MS + HOUR_MS))
    state = made.cluster(CLUSTER)
    assert state is not None
    assert (state.durations.history.ended, state.ledger.ignored["started_before_submission"]) == (0, 1)

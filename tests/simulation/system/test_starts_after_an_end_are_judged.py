"""What failed for good, or reached its limit, is not started again once that was known; the judge says so, and only then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas.base import Event
from schemas.decisions import Placed
from schemas.executions import CardsShaped, StopCause
from schemas.jobs import RestartMode, RestartPolicy
from schemas.status import NodeGpus
from tests import build
from tests.simulation.system.check_jobs import check_jobs, lives_of
from tests.simulation.system.evidence import Evidence
from tests.simulation.system.world import START_MS

FAILED = build.failed("a", "n00", START_MS)
TIMED_OUT = build.stopped("a", "n00", START_MS, StopCause.TIME_LIMIT)
DRAINED = build.stopped("a", "n00", START_MS, StopCause.DRAIN)
NEVER = RestartPolicy()
TRIES = RestartPolicy(mode=RestartMode.ON_FAILURE, attempts_max=3)


def decision(sequence: int, heard: list[Event], *effects: Any) -> Any:
    inputs = [build.decision_input(event, id=f"{sequence}/{number}") for number, event in enumerate(heard)]
    return SimpleNamespace(sequence=sequence, now_ms=START_MS + sequence, inputs=inputs, effects=effects)


def starts(attempt: int, *nodes: str) -> Placed:
    placed = [NodeGpus(node=node, gpus=[0]) for node in nodes]
    return Placed(job_id="a", attempt=attempt, pool="h100", gpus=len(nodes), placed=placed, p50_s=1.0, p90_s=1.0)


def found(restart: RestartPolicy, heard: Event, at: int, nodes: tuple[str, ...] = ("n00",), **topics: Any) -> list[str]:
    """Attempt 2 starts with decision 3, what became of attempt 1 is known with decision `at`."""
    log = [
        decision(1, [build.accepted("a", len(nodes), restart=restart)], starts(1, *nodes)),
        decision(2, [heard] if at == 2 else []),
        decision(3, [heard] if at == 3 else [], starts(2, "n05")),
        decision(4, [heard] if at == 4 else []),
    ]
    said = {"jobs": [], "job-status": [], "job-events": [], "executions": [], **topics}
    evidence = cast("Evidence", cast("Any", SimpleNamespace(accepted=log, said=said, drained=True)))
    return check_jobs(evidence, lives_of(evidence))


@pytest.mark.parametrize(("restart", "heard"), [(NEVER, FAILED), (NEVER, TIMED_OUT), (TRIES, TIMED_OUT)])
def test_a_start_after_the_end_was_known_is_found(restart: RestartPolicy, heard: Event) -> None:
    assert found(restart, heard, 2) == [
        "a was known to be over for good with decision 2 and started again with decision 3"
    ]
    assert found(restart, heard, 3) == [], "heard with the same decision"
    assert found(restart, heard, 4) == []


@pytest.mark.parametrize(("restart", "heard"), [(TRIES, FAILED), (NEVER, DRAINED)])
def test_what_may_be_tried_again_may_start(restart: RestartPolicy, heard: Event) -> None:
    assert found(restart, heard, 2) == []


def test_a_gangs_part_and_what_is_on_cards_that_may_go_can_break_without_being_over() -> None:
    assert found(NEVER, FAILED, 2, ("n00", "n01")) == []
    shaped = CardsShaped(node="n00", cluster=build.CLUSTER, time_ms=START_MS, revision=1, pools=["h100"])
    assert found(NEVER, FAILED, 2, executions=[SimpleNamespace(event=shaped)]) == []

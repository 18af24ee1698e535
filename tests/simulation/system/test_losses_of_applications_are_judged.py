"""The judge of applications: GPUs go with their node, its cards, an order to withdraw or a decision, and not without one of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from schemas.base import Event
from schemas.decisions import Scaled
from schemas.executions import CardsShaped
from schemas.jobs import JobRevoked
from schemas.nodes import Health
from schemas.status import NodeGpus
from services.allocator.core.state import State
from tests import build
from tests.allocator_driver import Driver
from tests.simulation.system.check_applications import given_otherwise, spoken_of, taken_without_a_word

STARTED = build.started("app", "n00", build.START_MS)
"""A word of the node's executor: no reason to take anything."""
LOST = build.node("n00", health=Health.LOST)
SHAPED = CardsShaped(node="n00", cluster=build.CLUSTER, time_ms=build.START_MS, revision=1, pools=["half"])
REVOKED = JobRevoked(job_id="app", cluster=build.CLUSTER, revoked_ms=build.START_MS)


def serving() -> State:
    driver = Driver().give(*(build.node(f"n{i:02}", order=i) for i in range(2)))
    return driver.give(build.application("app", floor=10, peak=10, switch_max=10)).state


@pytest.mark.parametrize(("said", "founded"), [(STARTED, False), (LOST, True), (SHAPED, True), (REVOKED, True)])
@pytest.mark.parametrize("all_of_it", [False, True])
def test_what_is_gone_without_a_decision_needs_a_word_that_says_why(
    said: Event, founded: bool, all_of_it: bool
) -> None:
    state = serving()
    before = spoken_of(state)
    assert set(before["app"]) == {"n00", "n01"}
    part = next(part for part in state.apps["app"].parts if part.node == "n00")
    part.gpus.pop()
    if all_of_it:
        state.apps["app"].parts.remove(part)
    assert bool(taken_without_a_word(before, state, [build.decision_input(said)])) is not founded


def test_a_word_of_another_node_explains_nothing() -> None:
    state = serving()
    before = spoken_of(state)
    state.apps["app"].parts = [part for part in state.apps["app"].parts if part.node != "n01"]
    assert taken_without_a_word(before, state, [build.decision_input(LOST)])


def test_what_it_holds_is_what_the_decision_gave() -> None:
    state = serving()
    parts = [NodeGpus(node=part.node, gpus=part.gpus) for part in state.apps["app"].parts]
    effect = Scaled(app_id="app", pool=build.POOL, placed=parts, switched=0)
    assert not given_otherwise(state, [effect])
    assert given_otherwise(state, [replace(effect, placed=parts[:1])])

"""The table of an attempt's life: complete, and closed at its ends."""

from __future__ import annotations

import itertools

import pytest

from services.executor.core.lifecycle import FINAL, IGNORED, TRANSITIONS, Event, LifecycleError, State, advance

PAIRS = list(itertools.product(State, Event))


def test_every_state_and_event_has_exactly_one_answer():
    defined, ignored, refused = [], [], []
    for pair in PAIRS:
        try:
            (ignored if advance(*pair) is None else defined).append(pair)
        except LifecycleError:
            refused.append(pair)
    assert sorted(map(str, defined)) == sorted(map(str, TRANSITIONS))
    assert sorted(map(str, ignored)) == sorted(map(str, IGNORED))
    assert not set(TRANSITIONS) & set(IGNORED)
    assert len(defined) + len(ignored) + len(refused) == len(State) * len(Event)


@pytest.mark.parametrize("state", FINAL)
def test_nothing_leads_out_of_an_end(state):
    assert not [pair for pair in TRANSITIONS if pair[0] is state]
    assert advance(state, Event.START) is None


@pytest.mark.parametrize("state", FINAL)
@pytest.mark.parametrize("event", [Event.SUCCEEDED, Event.BROKE, Event.TERMINATED, Event.STARTED])
def test_an_attempt_ends_once(state, event):
    with pytest.raises(LifecycleError):
        advance(state, event)


def test_every_state_can_reach_an_end():
    reaches = dict.fromkeys(FINAL)
    for _ in State:
        for (state, _event), following in TRANSITIONS.items():
            if following in reaches:
                reaches[state] = None
    assert set(reaches) == set(State)


def test_every_state_is_reached_from_waiting():
    reached = {State.WAITING: None}
    for _ in State:
        for (state, _event), following in TRANSITIONS.items():
            if state in reached:
                reached[following] = None
    assert set(reached) == set(State)


@pytest.mark.parametrize("state", [State.RUNNING, State.CHECKPOINTING, State.STOPPING])
def test_gpus_let_go_change_nothing_whatever_else_is_under_way(state: State) -> None:
    assert advance(state, Event.RELEASED) is state

"""The table of a job's phases: complete, closed at its ends, and what the public is shown of it."""

from __future__ import annotations

import itertools

import pytest

from schemas.status import FINAL_STATES, JobState
from services.allocator.core.phases import (
    FINAL,
    HOLDING,
    IGNORED,
    PHASES,
    PUBLIC,
    WAITING,
    Happening,
    Phase,
    PhaseError,
    following,
)

PAIRS = list(itertools.product(Phase, Happening))


def test_every_phase_and_event_has_exactly_one_answer():
    moved, kept, refused = [], [], []
    for phase, happening in PAIRS:
        try:
            found = following(phase, happening)
        except PhaseError:
            refused.append((phase, happening))
            continue
        (kept if found is phase else moved).append((phase, happening))
    assert sorted(map(str, moved)) == sorted(str(pair) for pair, to in PHASES.items() if to is not pair[0])
    assert not set(PHASES) & set(IGNORED)
    assert set(IGNORED) <= set(kept)
    assert len(moved) + len(kept) + len(refused) == len(Phase) * len(Happening)


def test_the_phases_are_waiting_holding_or_final():
    assert sorted([*WAITING, *HOLDING, *FINAL], key=str) == sorted(Phase, key=str)


@pytest.mark.parametrize("phase", FINAL)
def test_nothing_leads_out_of_an_end(phase):
    assert {following(phase, happening) for happening in Happening} == {phase}


def test_every_phase_is_reached_and_can_end():
    reached, ends = {Phase.ACCEPTED}, set(FINAL)
    for _ in Phase:
        reached |= {to for (of, _), to in PHASES.items() if of in reached}
        ends |= {of for (of, _), to in PHASES.items() if to in ends}
    assert reached == ends == set(Phase)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in FINAL])
def test_a_cancellation_ends_every_phase_at_once_or_after_a_stop(phase):
    stopped = phase if phase in WAITING else following(phase, Happening.STOP)
    assert following(stopped, Happening.CANCEL) is Phase.CANCELLED


def test_the_public_sees_final_states_for_final_phases_only():
    assert {PUBLIC[phase] for phase in FINAL} == FINAL_STATES - {JobState.REFUSED}
    assert not {PUBLIC[phase] for phase in Phase if phase not in FINAL} & FINAL_STATES

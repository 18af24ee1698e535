"""What is due, as a table: what runs here, what is placed, what has to be done."""

from __future__ import annotations

import msgspec
import pytest

from schemas.executions import StopCause
from schemas.placements import Desired
from services.executor.core.journal import HEALTHY_RUN_MS, Applied, Moved, NodeState, Revived, RunFacts
from services.executor.core.lifecycle import Event
from services.executor.core.reconcile import Refusal, RequestCheckpoint, Rescale, Start, Stop, Withdraw, due, refusal
from tests.unit.executor.executor_rig import SAVES, assignment, placed

FACTS = RunFacts(started_ms=0)
A = assignment("a", 0, 1)
SAVER = assignment("a", 0, 1, checkpoint=SAVES)
APP = assignment("app", 0, 1, application=True)


def running(*assignments) -> NodeState:
    state = NodeState()
    state.fold(Applied(epoch=1, sequence=1))
    for each in assignments:
        key = f"{each.job_id}/{each.attempt}"
        state.fold(Moved(key=key, event=Event.START, assignment=each, sequence=1))
        state.fold(Moved(key=key, event=Event.STARTED, facts=FACTS))
    return state


def stop(run, cause=StopCause.DRAIN):
    return msgspec.structs.replace(run, desired=Desired.STOP, stop_cause=cause)


def changed(run, **fields):
    return msgspec.structs.replace(run, **fields)


@pytest.mark.parametrize(
    ("here", "wanted", "actions"),
    [
        ([], [A], [Start(A)]),
        ([A], [A], []),
        ([A], [], [Stop("a/1", StopCause.FENCED, save_first=False)]),
        ([SAVER], [], [Stop("a/1", StopCause.FENCED, save_first=False)]),
        ([SAVER], [stop(SAVER)], [Stop("a/1", StopCause.DRAIN, save_first=True)]),
        ([SAVER], [stop(SAVER, StopCause.NODE_LOST)], [Stop("a/1", StopCause.NODE_LOST, save_first=False)]),
        ([A], [stop(A, None)], [Stop("a/1", StopCause.CANCELLED, save_first=False)]),
        ([], [stop(A)], [Withdraw(stop(A), StopCause.DRAIN)]),
        ([SAVER], [changed(SAVER, checkpoint_request=3)], [RequestCheckpoint("a/1", 3)]),
        ([A], [A, assignment("b", 1, 2)], []),
        ([A], [A, assignment("b", 2)], [Start(assignment("b", 2))]),
        ([A], [assignment("b", 1)], [Stop("a/1", StopCause.FENCED, save_first=False)]),
        ([], [assignment("a", 0), assignment("b", 0)], [Start(assignment("a", 0))]),
        ([APP], [changed(APP, gpus=[1, 2])], [Rescale("app/1", (1, 2))]),
        ([APP], [changed(APP, gpus=[1, 0])], [Rescale("app/1", (1, 0))]),
        ([A], [changed(A, gpus=[0, 1, 2])], []),
        ([APP, assignment("b", 2)], [changed(APP, gpus=[0, 2, 3]), assignment("b", 2)], [Rescale("app/1", (0, 3))]),
        (  # what one gives up another gets once it was let go, whoever is listed first
            [assignment("app", 3, 6, application=True)],
            [assignment("b", 3), assignment("app", 6, application=True)],
            [Rescale("app/1", (6,))],
        ),
        (
            [assignment("app", 0, application=True), assignment("other", 1, 2, application=True)],
            [assignment("app", 0, 1, application=True), assignment("other", 2, application=True)],
            [Rescale("other/1", (2,))],
        ),
        (
            [A],
            [assignment("a", 4, attempt=2)],
            [Stop("a/1", StopCause.FENCED, save_first=False)],
        ),
    ],
)
def test_what_is_due(here, wanted, actions):
    assert due(running(*here), placed(2, *wanted)) == actions


def test_nothing_is_due_twice_while_a_start_or_a_stop_is_under_way():
    state = running(A)
    state.fold(Moved(key="a/1", event=Event.STOP, cause=StopCause.DRAIN))
    assert due(state, placed(2)) == []
    assert due(state, placed(2, stop(A))) == []
    starting = NodeState()
    starting.fold(Moved(key="a/1", event=Event.START, assignment=A))
    assert due(starting, placed(2, A)) == []


@pytest.mark.parametrize("event", [Event.SUCCEEDED, Event.BROKE])
def test_what_ended_is_not_started_again(event):
    state = running(A)
    state.fold(Moved(key="a/1", event=event))
    assert due(state, placed(9, A)) == []
    assert due(state, placed(9, stop(A))) == []


def test_an_application_that_crashed_returns_after_its_back_off_only():
    state = running(APP)
    state.fold(Moved(key="app/1", event=Event.BROKE))
    assert due(state, placed(1, APP)) == []
    state.fold(Applied(epoch=1, sequence=2))
    assert due(state, placed(2, APP)) == []
    state.fold(Revived(key="app/1"))
    assert due(state, placed(2, APP)) == [Start(APP)]
    state.fold(Moved(key="app/1", event=Event.START, assignment=APP, sequence=2))
    assert (state.runs["app/1"].spawn, state.runs["app/1"].crashes) == (2, 1)


@pytest.mark.parametrize(("ran_ms", "crashes"), [(0, 2), (HEALTHY_RUN_MS - 1, 2), (HEALTHY_RUN_MS, 1)])
def test_an_application_that_ran_well_begins_its_back_off_anew(ran_ms, crashes):
    state = running(APP)
    state.fold(Moved(key="app/1", event=Event.BROKE, time_ms=0))
    state.fold(Revived(key="app/1"))
    state.fold(Moved(key="app/1", event=Event.START, assignment=APP, sequence=1))
    state.fold(Moved(key="app/1", event=Event.STARTED, facts=FACTS))
    state.fold(Moved(key="app/1", event=Event.SUCCEEDED, time_ms=ran_ms))
    assert state.ended["app/1"].crashes == crashes


def test_a_checkpoint_that_was_asked_of_an_earlier_attempt_is_not_asked_of_the_next():
    again = changed(SAVER, attempt=2, checkpoint_request=3)
    state = running(again)
    assert due(state, placed(1, again)) == []
    assert due(state, placed(2, changed(again, checkpoint_request=4))) == [RequestCheckpoint("a/2", 4)]


def test_what_never_ran_is_started_on_what_is_placed_now():
    state = running()
    state.fold(Moved(key="app/1", event=Event.START, assignment=APP, sequence=1))
    state.fold(Moved(key="app/1", event=Event.NEVER_STARTED))
    moved = changed(APP, gpus=[2])
    other = assignment("b", 0, 1)
    actions = due(state, placed(2, other, moved))
    assert actions == [Start(other), Start(moved)]
    for number, start in enumerate((other, moved)):
        state.fold(Moved(key=f"{start.job_id}/1", event=Event.START, assignment=start, sequence=2))
        assert (state.runs[f"{start.job_id}/1"].held, len(state.runs)) == (start.gpus, 2), number
    assert state.runs["app/1"].assignment == moved
    assert (state.runs["app/1"].sequence, state.runs["app/1"].spawn) == (2, 2)


def test_a_gpu_that_is_blocked_gets_nothing():
    state = running()
    both = placed(1, A, assignment("b", 2))
    assert due(state, both, {1: "5 MiB in use"}) == [Start(assignment("b", 2))]


@pytest.mark.parametrize("drain_s", [0.0, 30.0])
def test_gpus_an_application_gives_up_are_free_only_once_it_let_go(drain_s):
    slow = changed(APP, drain_s=drain_s)
    state = running(slow)
    smaller = placed(2, changed(slow, gpus=[0]), assignment("b", 1))
    assert due(state, smaller) == [Rescale("app/1", (0,))]
    state.fold(Moved(key="app/1", event=Event.RESCALED, gpus=[0]))
    assert (state.runs["app/1"].gpus, state.runs["app/1"].leaving) == ([0], [1])
    assert due(state, smaller) == []
    state.fold(Moved(key="app/1", event=Event.RELEASED, gpus=[1]))
    assert due(state, smaller) == [Start(assignment("b", 1))]


def test_a_gpu_that_is_given_back_while_draining_stays():
    slow = changed(APP, drain_s=30.0)
    state = running(slow)
    state.fold(Moved(key="app/1", event=Event.RESCALED, gpus=[0]))
    assert due(state, placed(2, slow)) == [Rescale("app/1", (0, 1))]
    state.fold(Moved(key="app/1", event=Event.RESCALED, gpus=[0, 1]))
    state.fold(Moved(key="app/1", event=Event.RELEASED, gpus=[1]))
    assert state.runs["app/1"].held == [0, 1]


@pytest.mark.parametrize(
    ("epoch", "sequence", "wanted"),
    [
        (1, 2, None),
        (2, 0, None),
        (1, 1, Refusal.REPEATED),
        (1, 0, Refusal.OUTDATED),
        (0, 9, Refusal.OUTDATED),
    ],
)
def test_the_highest_epoch_then_sequence_counts(epoch, sequence, wanted):
    assert refusal(running(), placed(sequence, epoch=epoch)) is wanted

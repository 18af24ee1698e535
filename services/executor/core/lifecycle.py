"""The life of one attempt on one node, as a table: everything about transitions is here, and the table knows no process.

Owns: states, events, and which event leads where. Refuses: events that can't happen in a state (`LifecycleError`: a bug,
not bad input). Events that may arrive late because two tasks raced are listed as ignored. Read next: `reconcile.py`
(which events are due), `journal.py` (how they are remembered).
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """`WAITING` is also the state of everything this node has never heard of; the last three are final."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class Event(Enum):
    """What happens to an attempt: `START`, `CHECKPOINT` and `STOP` are wanted by the placement, the others come from the driver.

    `ANSWERED` is a checkpoint that was asked for, `SAVED` one the job made by itself; `RELEASED`: an application let go of GPUs.
    """

    START = "start"
    STARTED = "started"
    START_FAILED = "start_failed"
    NEVER_STARTED = "never_started"
    RESCALED = "rescaled"
    RELEASED = "released"
    SAVED = "saved"
    CHECKPOINT = "checkpoint"
    ANSWERED = "answered"
    UNANSWERED = "unanswered"
    STOP = "stop"
    SUCCEEDED = "succeeded"
    BROKE = "broke"
    TERMINATED = "terminated"


class LifecycleError(AssertionError):
    """An event that can't happen in this state: a bug in the executor."""


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.WAITING, Event.START): State.STARTING,
    (
        State.WAITING,
        Event.STOP,
    ): State.STOPPED,  # placed and withdrawn before it began: reported, so that GPUs are released
    (State.STARTING, Event.STARTED): State.RUNNING,
    (State.STARTING, Event.START_FAILED): State.FAILED,
    (State.STARTING, Event.NEVER_STARTED): State.WAITING,  # after a crash, proven: it may be started once more
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.RUNNING, Event.RESCALED): State.RUNNING,
    (State.RUNNING, Event.RELEASED): State.RUNNING,
    (State.RUNNING, Event.SAVED): State.RUNNING,
    (State.RUNNING, Event.CHECKPOINT): State.CHECKPOINTING,
    (State.RUNNING, Event.STOP): State.STOPPING,
    (State.RUNNING, Event.SUCCEEDED): State.COMPLETED,
    (State.RUNNING, Event.BROKE): State.FAILED,
    (State.CHECKPOINTING, Event.ANSWERED): State.RUNNING,
    (State.CHECKPOINTING, Event.UNANSWERED): State.RUNNING,
    (State.CHECKPOINTING, Event.SAVED): State.CHECKPOINTING,
    (State.CHECKPOINTING, Event.RELEASED): State.CHECKPOINTING,
    (State.CHECKPOINTING, Event.STOP): State.STOPPING,
    (State.CHECKPOINTING, Event.SUCCEEDED): State.COMPLETED,
    (State.CHECKPOINTING, Event.BROKE): State.FAILED,
    (State.STOPPING, Event.STARTED): State.STOPPING,  # the stop overtook the start
    (State.STOPPING, Event.START_FAILED): State.FAILED,
    (State.STOPPING, Event.NEVER_STARTED): State.STOPPED,
    (State.STOPPING, Event.ANSWERED): State.STOPPING,
    (State.STOPPING, Event.UNANSWERED): State.STOPPING,
    (State.STOPPING, Event.SAVED): State.STOPPING,
    (State.STOPPING, Event.RELEASED): State.STOPPING,
    (State.STOPPING, Event.SUCCEEDED): State.COMPLETED,  # it was faster than the stop: a real end counts
    (State.STOPPING, Event.BROKE): State.FAILED,  # it had failed before anyone wanted to stop it
    (State.STOPPING, Event.TERMINATED): State.STOPPED,
}

FINAL = (State.COMPLETED, State.FAILED, State.STOPPED)

IGNORED: tuple[tuple[State, Event], ...] = (
    (State.STARTING, Event.START),
    (State.RUNNING, Event.START),
    (State.CHECKPOINTING, Event.START),
    (State.CHECKPOINTING, Event.CHECKPOINT),  # one request at a time; a higher one is due again after the answer
    (State.STOPPING, Event.CHECKPOINT),
    (State.STOPPING, Event.STOP),
    *((state, event) for state in FINAL for event in (Event.START, Event.STOP, Event.CHECKPOINT, Event.RESCALED)),
    *((state, event) for state in FINAL for event in (Event.ANSWERED, Event.UNANSWERED)),
    *((state, event) for state in FINAL for event in (Event.SAVED, Event.RELEASED)),
)
"""A repeated wish, or an answer that comes after the end: nothing changes. Above all, what ended is never started again."""

_IGNORED = frozenset(IGNORED)


def advance(state: State, event: Event) -> State | None:
    """The next state, or None where the event is ignored. Raises LifecycleError where it can't happen."""
    following = TRANSITIONS.get((state, event))
    if following is None and (state, event) not in _IGNORED:
        raise LifecycleError(f"{event.value} can't happen to an attempt that is {state.value}")
    return following

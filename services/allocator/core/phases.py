"""The life of a job, as a table: everything about its transitions is here, and the table knows no reports and no grid.

Owns: phases, what happens to a job, and which event leads where. Job status shows fewer states than there are phases (`PUBLIC`). Refuses:
events that can't happen in a phase (`PhaseError`: a bug, not bad input). The life of one attempt on one node is the executor's
table. `docs/lifecycle.md` is drawn from both. Read next: `lifecycle.py` (which events follow from reports and orders).
"""

from __future__ import annotations

from enum import Enum

from schemas.status import JobState


class Phase(Enum):
    """`ACCEPTED`: nothing has been said about it yet. `PLANNED`: it waits, and its start is planned. `LOST`: its node is lost, it
    waits for a place before it is told anything else. `CHECKPOINTING`: an operator asked for a checkpoint."""

    ACCEPTED = "accepted"
    QUEUED = "queued"
    PLANNED = "planned"
    STARTING = "starting"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    STOPPING = "stopping"
    LOST = "lost"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class Happening(Enum):
    """`STARTED`: on all its nodes. `LOSE`: nothing of it is alive, and a node was lost. The last four end it."""

    WAIT = "wait"
    PLAN = "plan"
    PLACE = "place"
    STARTED = "started"
    CHECKPOINT = "checkpoint"
    SAVED = "saved"
    STOP = "stop"
    LOSE = "lose"
    REQUEUE = "requeue"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    TIME_OUT = "time_out"


class PhaseError(AssertionError):
    """An event that can't happen in this phase: a bug in the allocator."""


WAITING = (Phase.ACCEPTED, Phase.QUEUED, Phase.PLANNED, Phase.LOST)
HOLDING = (Phase.STARTING, Phase.RUNNING, Phase.CHECKPOINTING, Phase.STOPPING)
FINAL = (Phase.COMPLETED, Phase.FAILED, Phase.CANCELLED, Phase.TIMED_OUT)
TRIED = tuple(phase for phase in WAITING if phase is not Phase.ACCEPTED)
"""It may have been placed before, and how that ended may still be reported."""
_LATE = {
    Happening.COMPLETE: Phase.COMPLETED,
    Happening.FAIL: Phase.FAILED,
    Happening.TIME_OUT: Phase.TIMED_OUT,
}

PHASES: dict[tuple[Phase, Happening], Phase] = {
    **{(phase, Happening.WAIT): Phase.QUEUED for phase in WAITING if phase is not Phase.QUEUED},
    **{(phase, Happening.PLAN): Phase.PLANNED for phase in WAITING if phase is not Phase.PLANNED},
    **{(phase, Happening.PLACE): Phase.STARTING for phase in WAITING},
    **{(phase, Happening.CANCEL): Phase.CANCELLED for phase in (*WAITING, Phase.STOPPING)},
    **{(phase, happening): end for phase in TRIED for happening, end in _LATE.items()},
    (Phase.PLANNED, Happening.REQUEUE): Phase.QUEUED,  # a failure, heard late: it waits for its back-off
    (Phase.LOST, Happening.REQUEUE): Phase.QUEUED,
    (Phase.STARTING, Happening.STARTED): Phase.RUNNING,
    (Phase.RUNNING, Happening.CHECKPOINT): Phase.CHECKPOINTING,
    (Phase.CHECKPOINTING, Happening.SAVED): Phase.RUNNING,
    **{(phase, Happening.STOP): Phase.STOPPING for phase in HOLDING if phase is not Phase.STOPPING},
    **{(phase, Happening.LOSE): Phase.LOST for phase in HOLDING},
    **{(phase, Happening.REQUEUE): Phase.QUEUED for phase in HOLDING},
    **{
        (phase, Happening.COMPLETE): Phase.COMPLETED for phase in HOLDING
    },  # faster than a stop, or than its own start's report
    **{(phase, Happening.FAIL): Phase.FAILED for phase in HOLDING},
    **{(phase, Happening.TIME_OUT): Phase.TIMED_OUT for phase in HOLDING},  # an executor may enforce the limit first
}

IGNORED: tuple[tuple[Phase, Happening], ...] = (
    (Phase.QUEUED, Happening.WAIT),
    (Phase.PLANNED, Happening.PLAN),
    (Phase.QUEUED, Happening.REQUEUE),
    *((phase, Happening.STARTED) for phase in HOLDING if phase is not Phase.STARTING),
    *((phase, Happening.CHECKPOINT) for phase in HOLDING if phase is not Phase.RUNNING),
    *((phase, Happening.SAVED) for phase in HOLDING if phase is not Phase.CHECKPOINTING),
    (Phase.STOPPING, Happening.STOP),
    *((phase, happening) for phase in FINAL for happening in Happening),
)
"""Said again, overtaken by a stop, or after the end: nothing changes. Above all, what ended never comes back."""

PUBLIC: dict[Phase, JobState] = {
    **dict.fromkeys(WAITING, JobState.QUEUED),
    Phase.STARTING: JobState.STARTING,
    Phase.RUNNING: JobState.RUNNING,
    Phase.CHECKPOINTING: JobState.RUNNING,
    Phase.STOPPING: JobState.STOPPING,
    Phase.COMPLETED: JobState.COMPLETED,
    Phase.FAILED: JobState.FAILED,
    Phase.CANCELLED: JobState.CANCELLED,
    Phase.TIMED_OUT: JobState.TIMED_OUT,
}
"""What `job-status` calls it."""

_IGNORED = frozenset(IGNORED)


def following(phase: Phase, happening: Happening) -> Phase:
    """The next phase, the same one where the event changes nothing. Raises PhaseError where it can't happen."""
    found = PHASES.get((phase, happening))
    if found is None:
        if (phase, happening) not in _IGNORED:
            raise PhaseError(f"{happening.value} can't happen to a job that is {phase.value}")
        return phase
    return found

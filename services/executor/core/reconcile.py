"""From what runs on a node and what is placed there to what has to be done now.

Owns: which placement counts (`refusal`) and the difference between wanted and real (`due`). Level-triggered: `due` is asked
again whenever something ended or a newer placement came, and answers nothing once the node is as wanted. Promises, whatever
the allocator says: a GPU is never given to two runs, an attempt that ended is never started again, what isn't listed is
stopped. Refuses: doing anything. Read next: `lifecycle.py`, `shell/node.py`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import Enum

from schemas.executions import StopCause
from schemas.jobs import CheckpointMode
from schemas.placements import Assignment, Desired, NodePlaced
from services.executor.core.journal import LocalRun, NodeState, RunKey, run_key
from services.executor.core.lifecycle import State


class Refusal(Enum):
    """Why a placement is not carried out. Both are part of normal life: topics repeat, and fenced allocators linger."""

    REPEATED = "repeated"
    OUTDATED = "outdated"


@dataclass(frozen=True, slots=True)
class Start:
    """Run it now; its GPUs are free."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Withdraw:
    """It never ran and shall not: say that it is stopped, so that nobody waits for its GPUs."""

    assignment: Assignment
    cause: StopCause


@dataclass(frozen=True, slots=True)
class RequestCheckpoint:
    """Ask it to save its work and go on."""

    key: RunKey
    request: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End it; `save_first` if its work may and can be saved."""

    key: RunKey
    cause: StopCause
    save_first: bool


@dataclass(frozen=True, slots=True)
class Rescale:
    """An application holds these GPUs from now on."""

    key: RunKey
    gpus: tuple[int, ...]


Action = Start | Withdraw | RequestCheckpoint | Stop | Rescale

UNOWNED_CAUSES = (StopCause.FENCED, StopCause.NODE_LOST)
"""The job may run elsewhere by now: a checkpoint written here could overwrite a newer one, so none is asked for."""


def refusal(state: NodeState, placed: NodePlaced) -> Refusal | None:
    """None if `placed` is newer than everything this node has applied."""
    offered = (placed.epoch, placed.sequence)
    applied = (state.epoch, state.sequence)
    if offered > applied:
        return None
    return Refusal.REPEATED if offered == applied else Refusal.OUTDATED


def due(state: NodeState, placed: NodePlaced, blocked: Container[int] = ()) -> list[Action]:
    """What to do now for `placed`, the newest accepted placement: stops first, then applications, then starts on what is free.

    What an application gives up stays its own until it has been told and let go: then `due` is asked again. `blocked`: GPUs that
    hold something which is no run of ours.
    """
    wanted = {run_key(assignment.job_id, assignment.attempt): assignment for assignment in placed.assignments}
    holders = _holders(state)
    changes: list[Action] = []
    starts: list[Action] = []
    for key, assignment in wanted.items():
        run = state.runs.get(key)
        if assignment.desired is not Desired.RUN or state.state_of(key) is State.STOPPED:
            continue
        if run is None or run.state is State.WAITING:
            if _startable(state, assignment, holders, blocked):
                starts.append(Start(assignment))
                holders.update(dict.fromkeys(assignment.gpus, key))
        elif run.state is State.RUNNING:
            changes.extend(_changes(run, assignment, holders, blocked))
    return [*_stops(state, wanted), *changes, *starts]


def stop_of(run: LocalRun, cause: StopCause) -> Stop:
    """How a run is stopped for a cause."""
    can_save = run.assignment.checkpoint.mode is not CheckpointMode.NONE
    return Stop(run.key, cause, save_first=can_save and cause not in UNOWNED_CAUSES)


def _stops(state: NodeState, wanted: dict[RunKey, Assignment]) -> list[Action]:
    found: list[Action] = []
    for key, run in state.runs.items():
        assignment = wanted.get(key)
        if assignment is not None and assignment.desired is Desired.RUN:
            continue
        cause = StopCause.FENCED if assignment is None else assignment.stop_cause or StopCause.CANCELLED
        if run.state is State.WAITING:
            found.append(Withdraw(run.assignment, cause))
        elif run.state is not State.STOPPING:
            found.append(stop_of(run, cause))
    for key, assignment in wanted.items():
        if assignment.desired is Desired.STOP and key not in state.runs and key not in state.ended:
            found.append(Withdraw(assignment, assignment.stop_cause or StopCause.CANCELLED))
    return found


def _holders(state: NodeState) -> dict[int, RunKey]:
    """GPU → who has it. A run that waits after a failed recovery holds nothing: no process exists."""
    return {gpu: key for key, run in state.runs.items() if run.state is not State.WAITING for gpu in run.held}


def _startable(state: NodeState, assignment: Assignment, holders: dict[int, RunKey], blocked: Container[int]) -> bool:
    """All its GPUs are free, and no other attempt of the same job is alive here."""
    if any(gpu in holders or gpu in blocked for gpu in assignment.gpus):
        return False
    return not any(
        run.assignment.job_id == assignment.job_id and run.state is not State.WAITING for run in state.runs.values()
    )


def _changes(
    run: LocalRun, assignment: Assignment, holders: dict[int, RunKey], blocked: Container[int]
) -> list[Action]:
    changes: list[Action] = []
    if assignment.application:
        granted = tuple(
            gpu
            for gpu in assignment.gpus
            if holders.get(gpu, run.key) == run.key and (gpu in run.gpus or gpu not in blocked)
        )
        if granted != tuple(run.gpus):
            changes.append(Rescale(run.key, granted))
            holders.update(dict.fromkeys(granted, run.key))
    if assignment.checkpoint_request > run.checkpoint_request:
        changes.append(RequestCheckpoint(run.key, assignment.checkpoint_request))
    return changes

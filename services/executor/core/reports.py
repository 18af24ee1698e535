"""What the executor says about its runs: one event per fact, with an id that a repetition repeats.

Owns: the mapping from a run and its exit to the event of the contract. Refuses: guessing (a process that vanished is
`failed` with cause unknown, never completed). Read next: `schemas/executions.py`, `journal.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.base import Event as Payload
from schemas.executions import (
    FailureCause,
    HeldGpus,
    JobCheckpointed,
    JobCompleted,
    JobFailed,
    JobPrepared,
    JobProgressed,
    JobReady,
    JobStarted,
    JobStopped,
    NodeReported,
    QuarantinedGpu,
    StopCause,
)
from schemas.placements import Assignment
from services.executor.core.journal import LocalRun, NodeState
from services.executor.core.lifecycle import Event, State

DETAIL_LENGTH_MAX = 4096
"""The contract's limit for text."""
REASON_LENGTH_MAX = 256
"""And for short text."""


@dataclass(frozen=True, slots=True)
class Report:
    """An event to publish: `key` is its record key, `id` its deterministic identity."""

    event: Payload
    id: str
    key: str
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, in domain time. `cause` None: with success."""

    time_ms: int
    cause: FailureCause | None = None
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job says it is."""

    step: int | None = None
    fraction: float | None = None
    samples_per_s: float | None = None


def exit_event(run: LocalRun, exit: Exit) -> Event:
    """Which lifecycle event an exit is.

    The exit of a run that is being stopped may be learned late: what it did before the stop was wanted counts as its own
    end, and so does success before any force was used, unless it answered the checkpoint request and left.
    """
    own_end = Event.SUCCEEDED if exit.cause is None else Event.BROKE
    if run.state is not State.STOPPING or (run.stop_ms is not None and exit.time_ms < run.stop_ms):
        return own_end
    unforced = run.terminating_ms is None or exit.time_ms < run.terminating_ms
    return own_end if exit.cause is None and unforced and not run.checkpointed else Event.TERMINATED


def prepared(
    node: str, cluster: str, assignment: Assignment, *, gpu_model: str, driver: str, port: int | None, time_ms: int
) -> Report:
    """This node's part of a gang could start."""
    event = JobPrepared(
        **_about(assignment, node, cluster, time_ms),
        gpu_model=gpu_model,
        driver=driver,
        port=port,
    )
    return _report(event, assignment, node, f"prepared/{time_ms}", assignment.traceparent)


def progressed(node: str, cluster: str, run: LocalRun, progress: Progress, time_ms: int) -> Report:
    """What the job said about itself; not journalled, the next one says more."""
    event = JobProgressed(
        **_about(run.assignment, node, cluster, time_ms),
        step=progress.step,
        fraction=progress.fraction,
        samples_per_s=progress.samples_per_s,
    )
    return _report(event, run.assignment, node, f"progressed/{time_ms}", run.traceparent)


def ready(node: str, cluster: str, run: LocalRun, *, serves: bool, time_ms: int) -> Report:
    """An application began to serve, or ceased to."""
    event = JobReady(
        **_about(run.assignment, node, cluster, time_ms),
        ready=serves,
    )
    fact = f"{'ready' if serves else 'unready'}/{time_ms}"
    return _report(event, run.assignment, node, fact, run.traceparent, run.spawn)


def started(node: str, cluster: str, run: LocalRun, *, wall_ms: int, traceparent: str) -> Report:
    """`run.facts` is known."""
    assert run.facts is not None
    event = JobStarted(
        **_about(run.assignment, node, cluster, run.facts.started_ms),
        wall_ms=wall_ms,
        gpus=list(run.gpus),
        sequence=run.sequence,
        pid=run.facts.pid,
        speed=run.assignment.speed,
    )
    return _report(event, run.assignment, node, "started", traceparent, run.spawn)


def checkpointed(node: str, cluster: str, run: LocalRun, *, label: str, time_ms: int) -> Report:
    """`label` tells the requests of one run apart."""
    event = JobCheckpointed(
        **_about(run.assignment, node, cluster, time_ms),
        fraction=run.saved_fraction,
        location=run.saved_location,
    )
    return _report(event, run.assignment, node, f"checkpointed/{label}", run.traceparent, run.spawn)


def ended(node: str, cluster: str, run: LocalRun, event: Event, exit: Exit) -> Report:
    """The final report of a run that left through `event`."""
    match event:
        case Event.SUCCEEDED:
            return _completed(node, cluster, run, exit)
        case Event.TERMINATED | Event.NEVER_STARTED:
            return _stopped(node, cluster, run, exit)
        case _:
            return failed(node, cluster, run, exit)


def withdrawn(node: str, cluster: str, assignment: Assignment, spawn: int, cause: StopCause, time_ms: int) -> Report:
    """It was stopped before it began, for the `spawn`th time."""
    event = JobStopped(
        **_about(assignment, node, cluster, time_ms),
        cause=cause,
        fraction=assignment.resume_fraction,
    )
    return _report(event, assignment, node, "stopped", assignment.traceparent, spawn)


def failed(node: str, cluster: str, run: LocalRun, exit: Exit) -> Report:
    """It could not start, or ended without success."""
    event = JobFailed(
        **_about(run.assignment, node, cluster, exit.time_ms),
        cause=exit.cause or FailureCause.UNKNOWN,
        exit_code=exit.exit_code,
        signal=exit.signal,
        detail=exit.detail[:DETAIL_LENGTH_MAX],
        run_s=_run_s(run, exit),
    )
    return _report(event, run.assignment, node, "failed", run.traceparent, run.spawn)


def node_reported(
    node: str,
    cluster: str,
    state: NodeState,
    time_ms: int,
    quarantined: dict[int, str],
    datasets: list[str],
    number: int,
) -> Report:
    """Everything that is alive here now, and GPUs that can't be given to anybody. `number` counts the reports of one executor."""
    running = [
        HeldGpus(job_id=run.assignment.job_id, attempt=run.assignment.attempt, gpus=run.held)
        for run in state.runs.values()
        if run.state is not State.WAITING
    ]
    event = NodeReported(
        node=node,
        cluster=cluster,
        time_ms=time_ms,
        applied=max(state.sequence, 0),
        epoch=max(state.epoch, 0),
        boot_id=state.boot_id,
        running=running,
        quarantined=[QuarantinedGpu(gpu=gpu, reason=reason[:REASON_LENGTH_MAX]) for gpu, reason in quarantined.items()],
        datasets=datasets,
    )
    fact = "reported" if number == 1 else f"reported/{number}"
    return Report(event, id=f"{node}/{state.boot_id}/{state.count}/{fact}", key=node)


def _completed(node: str, cluster: str, run: LocalRun, exit: Exit) -> Report:
    event = JobCompleted(
        **_about(run.assignment, node, cluster, exit.time_ms),
        run_s=_run_s(run, exit),
    )
    return _report(event, run.assignment, node, "completed", run.traceparent, run.spawn)


def _stopped(node: str, cluster: str, run: LocalRun, exit: Exit) -> Report:
    event = JobStopped(
        **_about(run.assignment, node, cluster, exit.time_ms),
        cause=run.stop_cause or StopCause.CANCELLED,
        checkpointed=run.checkpointed,
        fraction=run.saved_fraction,
        run_s=_run_s(run, exit),
    )
    return _report(event, run.assignment, node, "stopped", run.traceparent, run.spawn)


def _about(assignment: Assignment, node: str, cluster: str, time_ms: int) -> dict[str, Any]:
    """What every event about a run says: whose it is, where, and when it happened."""
    return {
        "job_id": assignment.job_id,
        "attempt": assignment.attempt,
        "node": node,
        "cluster": cluster,
        "time_ms": time_ms,
    }


def _run_s(run: LocalRun, exit: Exit) -> float:
    return 0.0 if run.facts is None else max(0, exit.time_ms - run.facts.started_ms) / 1000


def _report(event: Payload, assignment: Assignment, node: str, fact: str, traceparent: str, spawn: int = 1) -> Report:
    """An application may come back under its attempt: facts of its later stays are numbered by `spawn`."""
    stay = f"/{spawn}" if assignment.application and spawn != 1 else ""
    identity = f"{assignment.job_id}/{assignment.attempt}/{node}/{fact}{stay}"
    return Report(event, id=identity, key=assignment.job_id, traceparent=traceparent)

"""Fold what executors report. Reports of an older attempt change nothing, except that a late completion wins over a relaunch; those
of the newest one count until it is started again, though its node was taken for lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schemas import executions
from schemas.executions import StopCause
from schemas.records import Now
from schemas.status import JobState
from services.allocator.core.lifecycle import (
    completed_after_all,
    failed_after_all,
    late_completion,
    lost_part,
    move,
    order_stop,
    part_ended,
    timed_out_after_all,
)
from services.allocator.core.phases import Happening
from services.allocator.core.state import (
    EARLY_NODES_MAX,
    PART_COMPLETED,
    PART_FAILED,
    PART_LOST,
    PART_PLACED,
    PART_RUNNING,
    PART_STOPPED,
    PARTS_ALIVE,
    SILENT_MS,
    Changes,
    Job,
    Node,
    Part,
    State,
    keep_early,
)

CLOCKS_AGREE_MS = 5_000
"""Kept clocks agree to a few milliseconds; a start stamped earlier than this before its submission tells of one that isn't."""
ExecutionFold = Callable[[State, Any, str, Now, Changes], None]


def _current(state: State, job_id: str, attempt: int, node: str) -> tuple[Job, Part] | None:
    """The job and its alive part on that node, if the report is about the newest attempt."""
    job = _newest(state, job_id, attempt)
    part = None if job is None else _alive_part(job, node)
    return None if job is None or part is None else (job, part)


def _newest(state: State, job_id: str, attempt: int) -> Job | None:
    """The job, if that is its newest attempt, whether it still holds GPUs or waits to be started again."""
    job = state.jobs.get(job_id)
    return job if job is not None and job.attempt == attempt else None


def _alive_part(job: Job, node: str) -> Part | None:
    return next((part for part in job.parts if part.node == node and part.status in PARTS_ALIVE), None)


def _moment(job: Job, event_ms: int, now: Now) -> int:
    """When it happened, by the reporter's clock if that can be true: not before it was placed, not in the future.

    A machine's clock may be wrong by minutes; limits and back-off must not be.
    """
    return event_ms if job.placed_ms <= event_ms <= now.domain_ms else now.domain_ms


def _started(state: State, event: executions.JobStarted, traceparent: str, now: Now, changes: Changes) -> None:
    found = _current(state, event.job_id, event.attempt, event.node)
    if found is None:
        return
    job, part = found
    part.status = PART_RUNNING
    job.started_ms = max(job.started_ms or 0, _moment(job, event.time_ms, now))
    job.heard_ms = now.domain_ms
    job.skewed |= event.time_ms < job.submitted_ms - CLOCKS_AGREE_MS
    if job.state is JobState.STARTING and all(part.status != PART_PLACED for part in job.parts):
        move(job, Happening.STARTED)
    changes.job(job)


def _checkpointed(
    state: State, event: executions.JobCheckpointed, traceparent: str, now: Now, changes: Changes
) -> None:
    """What is saved is safe, also where its node was taken for lost before this was heard: until the job is placed anew it counts."""
    job = _newest(state, event.job_id, event.attempt)
    if job is None:
        return
    alive = _alive_part(job, event.node) is not None
    if not alive and lost_part(job, event.node) is None:
        return
    if event.fraction >= job.fraction:  # of a gang's answers the one that is furthest, with its place
        job.fraction, job.location = event.fraction, event.location or job.location
    if not alive:
        changes.job(job)
        return
    job.saved_ms = _moment(job, event.time_ms, now)
    move(job, Happening.SAVED)


def _stopped(state: State, event: executions.JobStopped, traceparent: str, now: Now, changes: Changes) -> None:
    _serves_no_longer(state, event.job_id, event.node, changes)
    job = _newest(state, event.job_id, event.attempt)
    if job is None:
        return
    moment_ms = _moment(job, event.time_ms, now)
    if _alive_part(job, event.node) is None:
        if event.cause is StopCause.TIME_LIMIT:
            timed_out_after_all(state, job, event.node, moment_ms, changes)
        return
    if event.checkpointed:
        job.fraction = max(job.fraction, event.fraction)
    if event.cause is StopCause.TIME_LIMIT:
        order_stop(job, StopCause.TIME_LIMIT, changes)  # of its parts on other nodes
    silent = _left_waiting(job, event.node) if event.cause is StopCause.GANG_BROKEN and not job.stop_cause else []
    if silent:
        order_stop(job, StopCause.GANG_BROKEN, changes)
    status = PART_LOST if event.cause is StopCause.NODE_LOST else PART_STOPPED
    part_ended(state, job, event.node, status, moment_ms, event.cause.value, changes)
    for node in silent:
        part_ended(state, job, node, PART_LOST, now.domain_ms, StopCause.GANG_BROKEN.value, changes)
        if node in state.nodes:
            state.nodes[node].silent_until_ms = now.domain_ms + SILENT_MS


def _left_waiting(job: Job, node: str) -> list[str]:
    """A node gave up waiting for the rest of its gang: those that never said a word. Who isn't prepared can't have started."""
    return [part.node for part in job.parts if part.node != node and part.status == PART_PLACED and not part.prepared]


def _completed(state: State, event: executions.JobCompleted, traceparent: str, now: Now, changes: Changes) -> None:
    _serves_no_longer(state, event.job_id, event.node, changes)
    found = _current(state, event.job_id, event.attempt, event.node)
    if found is not None:
        moment_ms = _moment(found[0], event.time_ms, now)
        part_ended(state, found[0], event.node, PART_COMPLETED, moment_ms, "", changes)
        return
    job = state.jobs.get(event.job_id)
    if job is None:
        return
    if event.attempt in job.earlier:
        late_completion(state, job, event.attempt, event.node, min(event.time_ms, now.domain_ms), changes)
    elif event.attempt == job.attempt:
        completed_after_all(job, event.node)


def _failed(state: State, event: executions.JobFailed, traceparent: str, now: Now, changes: Changes) -> None:
    _serves_no_longer(state, event.job_id, event.node, changes)
    cause = (event.detail or event.cause.value)[:256]
    job = _newest(state, event.job_id, event.attempt)
    if job is None:
        return
    moment_ms = _moment(job, event.time_ms, now)
    if _alive_part(job, event.node) is not None:
        part_ended(state, job, event.node, PART_FAILED, moment_ms, cause, changes)
    else:
        failed_after_all(state, job, event.node, moment_ms, cause, changes)


def _reported(state: State, event: executions.NodeReported, traceparent: str, now: Now, changes: Changes) -> None:
    """A part that ran by our books, was placed by something the node has carried out, and isn't there: it is lost.

    After a restart of the machine nothing is there, whatever its executor still has to find out; an end from before it counts late.
    """
    known = state.nodes.get(event.node)
    rebooted = known is not None and known.boot_id not in ("", event.boot_id)
    running = set() if rebooted else {(held.job_id, held.attempt) for held in event.running}
    here = [job for job in state.jobs.values() if any(part.node == event.node for part in job.parts)]
    for job in here:
        alive = any(part.node == event.node and part.status == PART_RUNNING for part in job.parts)
        if (job.job_id, job.attempt) in running:
            _taken(job, event.node)
        if alive and (job.job_id, job.attempt) not in running and event.applied >= job.placed_sequence:
            part_ended(state, job, event.node, PART_LOST, now.domain_ms, StopCause.NODE_LOST.value, changes)
    if known is not None:
        take_report(known, event)
    else:
        keep_early(state.early_reports, event.node, event, EARLY_NODES_MAX)
    changes.nodes[event.node] = None


def take_report(node: Node, event: executions.NodeReported) -> None:
    """What an executor says about its node, besides its runs."""
    node.boot_id, node.datasets = event.boot_id, sorted(set(event.datasets))
    node.quarantined = sorted(held.gpu for held in event.quarantined)


def _heard_of(state: State, app_id: str, node: str) -> None:
    """Its executor has said a word about an application: from then on only the node's loss or a drain takes it from there."""
    if app_id in state.apps:
        state.apps[app_id].unheard.pop(node, None)


def _taken(job: Job, node: str) -> None:
    """Its executor has it in hand, even if it has not started yet."""
    for part in job.parts:
        part.prepared |= part.node == node


def _ready(state: State, event: executions.JobReady, traceparent: str, now: Now, changes: Changes) -> None:
    """An application serves on a node, or no longer does: its status follows, its GPUs stay."""
    app = state.apps.get(event.job_id)
    if app is not None and event.ready and event.node not in app.ready:
        app.ready = sorted([*app.ready, event.node])
        changes.app(app)
    elif not event.ready:
        _serves_no_longer(state, event.job_id, event.node, changes)


def _serves_no_longer(state: State, app_id: str, node: str, changes: Changes) -> None:
    """Its process there ended, or its probe fails. The executor starts it again by itself."""
    app = state.apps.get(app_id)
    if app is not None and node in app.ready:
        app.ready = [other for other in app.ready if other != node]
        changes.app(app)


def _prepared(state: State, event: executions.JobPrepared, traceparent: str, now: Now, changes: Changes) -> None:
    """Said by the nodes of a gang to each other; it tells who was silent, should they not come together."""
    found = _current(state, event.job_id, event.attempt, event.node)
    if found is not None:
        found[1].prepared = True


def _heard(fold: ExecutionFold) -> ExecutionFold:
    """Whatever an executor says, it is not silent."""

    def folded(state: State, event: Any, traceparent: str, now: Now, changes: Changes) -> None:
        if event.node in state.nodes:
            state.nodes[event.node].silent_until_ms = 0
        spoken_of = event.running if isinstance(event, executions.NodeReported) else [event]
        for about in spoken_of:
            _heard_of(state, about.job_id, event.node)
        fold(state, event, traceparent, now, changes)

    return folded


EXECUTION_FOLDS: dict[type, ExecutionFold] = {
    executions.JobPrepared: _heard(_prepared),
    executions.JobStarted: _heard(_started),
    executions.JobReady: _heard(_ready),
    executions.JobCheckpointed: _heard(_checkpointed),
    executions.JobStopped: _heard(_stopped),
    executions.JobCompleted: _heard(_completed),
    executions.JobFailed: _heard(_failed),
    executions.NodeReported: _heard(_reported),
}

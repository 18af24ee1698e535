"""Transitions of one job, in one place: stop, end of a part, end of an attempt, requeue, final state.

Every transition marks the job in `Changes`, so its placements and status are projected with the same decision.
"""

from __future__ import annotations

from schemas.executions import StopCause
from schemas.jobs import RestartMode
from schemas.status import JobState
from services.allocator.core.phases import PUBLIC, Happening, following
from services.allocator.core.quotas import charge
from services.allocator.core.state import (
    EARLIER_ATTEMPTS_MAX,
    PART_COMPLETED,
    PART_FAILED,
    PART_LOST,
    PARTS_ALIVE,
    Changes,
    Finished,
    Job,
    Part,
    State,
)

BACKOFF_DOUBLINGS_MAX = 6
"""Back-off doubles per failure up to 64 times the declared one: enough to calm a crash loop, short enough to heal by itself."""
ALWAYS_BACKOFF_S_MIN = 10.0
"""A job that is restarted without limit must not turn in circles faster than people can notice."""
_END_OF_CAUSE = {
    StopCause.CANCELLED.value: Happening.CANCEL,
    StopCause.TIME_LIMIT.value: Happening.TIME_OUT,
}


def move(job: Job, happening: Happening) -> None:
    """Something happened to the job: its phase follows the table, its public state the phase."""
    job.phase = following(job.phase, happening)
    job.state = PUBLIC[job.phase]


def order_stop(job: Job, cause: StopCause, changes: Changes) -> None:
    """Ask for the stop of a job that holds GPUs. A stop already ordered keeps its first cause, unless what comes meanwhile ends the job:
    users cancel it, or it turns out to have reached its limit."""
    if not job.stop_cause or (cause.value in _END_OF_CAUSE and job.stop_cause != StopCause.CANCELLED.value):
        job.stop_cause = cause.value
    move(job, Happening.STOP)
    changes.job(job)


def finish(state: State, job: Job, end: Happening, ended_ms: int, cause: str, changes: Changes) -> None:
    """The job is done for good: it leaves the queue, its id stays known."""
    changes.job(job)
    move(job, end)
    job.cause = cause
    job.parts = [part for part in job.parts if part.status in PARTS_ALIVE]
    job.reason, job.holders = "", []
    changes.ended[job.job_id] = job
    state.finished[job.job_id] = Finished(job.state, ended_ms)
    del state.jobs[job.job_id]


def requeue(job: Job, now_ms: int, not_before_ms: int, changes: Changes) -> None:
    """Back into the queue with the work that is left; the ended attempt is remembered, since its end may still be reported."""
    changes.job(job)
    lost = job.restores or any(part.status == PART_LOST for part in job.parts)
    move(job, Happening.LOSE if lost else Happening.REQUEUE)
    job.restores = lost and len(job.parts) > 1
    job.earlier[job.attempt] = job.parts
    while len(job.earlier) > EARLIER_ATTEMPTS_MAX:
        del job.earlier[next(iter(job.earlier))]
    job.parts, job.pool, job.gpus = [], "", 0
    job.stop_cause, job.started_ms, job.overtime = "", None, False
    job.queued_ms, job.not_before_ms = now_ms, not_before_ms


def part_ended(state: State, job: Job, node: str, status: str, time_ms: int, cause: str, changes: Changes) -> None:
    """One node's part of the current attempt is over; the attempt is resolved when no part is alive."""
    changes.job(job)
    for part in job.parts:
        if part.node == node and part.status in PARTS_ALIVE:
            part.status = status
    if cause and (status == PART_FAILED or not job.cause):
        job.cause = cause
    if job.holds_gpus:
        if status in (PART_FAILED, PART_LOST) and not job.stop_cause:
            order_stop(job, StopCause.GANG_BROKEN, changes)
        return
    _resolve_attempt(state, job, time_ms, changes)


def completed_after_all(job: Job, node: str) -> None:
    """A lost part of a gang that still stops turns out to have completed: that is how it ended, and its node is lost all the same."""
    for part in job.parts:
        if part.node == node and part.status == PART_LOST:
            part.status, job.restores = PART_COMPLETED, True


def failed_after_all(state: State, job: Job, node: str, time_ms: int, cause: str, changes: Changes) -> None:
    """A job that waits, since its node is lost, had failed there by itself. Only if it ran nowhere else: a gang's lost part may have
    failed because the others were stopped. Nor if its card is gone, which breaks what runs on it."""
    part = lost_part(job, node)
    if part is None or job.parts or len(job.earlier[job.attempt]) > 1 or _on_absent_card(state, part):
        return
    part.status, job.cause = PART_FAILED, cause
    _back_on_its_place(state, job)
    _after_failure(state, job, time_ms, changes)


def timed_out_after_all(state: State, job: Job, node: str, time_ms: int, changes: Changes) -> None:
    """A lost part had reached the job's limit: so has the job, whether it waits or its other parts still stop."""
    if lost_part(job, node) is None:
        return
    if job.parts:
        order_stop(job, StopCause.TIME_LIMIT, changes)
    else:
        finish(state, job, Happening.TIME_OUT, time_ms, StopCause.TIME_LIMIT.value, changes)


def lost_part(job: Job, node: str) -> Part | None:
    """What the newest attempt lost on that node, whether its other parts still stop or the job waits already."""
    parts = job.parts or job.earlier.get(job.attempt, [])
    return next((part for part in parts if part.node == node and part.status == PART_LOST), None)


def _on_absent_card(state: State, part: Part) -> bool:
    node = state.nodes.get(part.node)
    return node is not None and not set(node.absent).isdisjoint(part.gpus)


def _back_on_its_place(state: State, job: Job) -> None:
    """As it was before it was taken for lost; what has been planned for it since was for a job that could start at once."""
    job.parts = job.earlier.pop(job.attempt)
    job.planned_start_p50_ms = job.planned_start_p90_ms = None
    state.promises.pop(job.job_id, None)
    state.preemptions.pop(job.job_id, None)


def late_completion(state: State, job: Job, attempt: int, node: str, time_ms: int, changes: Changes) -> None:
    """A part of an earlier attempt turns out to have completed: if all its parts did, that end wins over the relaunch."""
    parts = job.earlier[attempt]
    for part in parts:
        if part.node == node:
            part.status = PART_COMPLETED
    if any(part.status != PART_COMPLETED for part in parts):
        return
    if job.holds_gpus:
        job.outcome = JobState.COMPLETED.value
        order_stop(job, StopCause.FENCED, changes)
    else:
        finish(state, job, Happening.COMPLETE, time_ms, "", changes)


def _resolve_attempt(state: State, job: Job, time_ms: int, changes: Changes) -> None:
    statuses = {part.status for part in job.parts}
    interruption = _interruption(job, statuses)
    charge(state, job, time_ms)
    if job.outcome == JobState.COMPLETED.value or statuses == {PART_COMPLETED}:
        finish(state, job, Happening.COMPLETE, time_ms, "", changes)
    elif job.stop_cause in _END_OF_CAUSE:
        finish(state, job, _END_OF_CAUSE[job.stop_cause], time_ms, job.stop_cause, changes)
    elif PART_FAILED in statuses and not interruption:
        _after_failure(state, job, time_ms, changes)
    else:
        if PART_FAILED in statuses:
            job.cause = interruption
        requeue(job, time_ms, time_ms, changes)


def _interruption(job: Job, statuses: set[str]) -> str:
    """What ended a gang from outside, if anything did: its parts break when one of them goes, so what they report where a node is lost,
    or while all are being stopped, is no failure."""
    if len(job.parts) == 1:
        return ""
    if PART_LOST in statuses:
        return StopCause.NODE_LOST.value
    return "" if job.stop_cause == StopCause.GANG_BROKEN.value else job.stop_cause


def _after_failure(state: State, job: Job, time_ms: int, changes: Changes) -> None:
    """Restart policy: interruptions (drain, lost node) never count as failures, only failed parts do."""
    job.failures += 1
    policy = job.spec.restart
    always = policy.mode is RestartMode.ALWAYS
    if policy.mode is RestartMode.NEVER or (job.failures >= policy.attempts_max and not always):
        finish(state, job, Happening.FAIL, time_ms, job.cause, changes)
        return
    doublings = min(job.failures - 1, BACKOFF_DOUBLINGS_MAX)
    backoff_s = max(policy.backoff_s, ALWAYS_BACKOFF_S_MIN) if always else policy.backoff_s
    requeue(job, time_ms, time_ms + int(backoff_s * 1000) * 2**doublings, changes)

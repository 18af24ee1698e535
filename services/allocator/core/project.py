"""Projections of an accepted decision: desired state per node (`placements`), status per job (`job-status`). Pure, idempotent."""

from __future__ import annotations

from schemas.executions import StopCause
from schemas.jobs import CheckpointPolicy
from schemas.placements import Assignment, Desired, NodePlaced
from schemas.status import JobState, JobStatusChanged, NodeGpus
from services.allocator.core.better_pool import pool_sentence
from services.allocator.core.index import index_of
from services.allocator.core.promises import minutes_text, promise_sentence
from services.allocator.core.quotas import Holdings
from services.allocator.core.reasons import SENTENCES, reason_named
from services.allocator.core.remarks import remarks
from services.allocator.core.slots import cards_detail, reshape_of, withheld_on
from services.allocator.core.speeds import speed_in
from services.allocator.core.state import PARTS_ALIVE, App, Changes, Job, Part, State

APPLICATION_ATTEMPT = 1
"""Applications are scaled in place under one attempt."""


def placements(state: State, nodes: list[str]) -> list[NodePlaced]:
    """Desired state of these nodes as of the state's sequence; of one that was forgotten: nothing of ours."""
    known = {name: gone.node for name, gone in state.forgotten.items()} | state.nodes
    wanted: dict[str, list[Assignment]] = {node: [] for node in nodes if node in known}
    for job in index_of(state).holders():
        for rank, part in enumerate(job.parts):
            if part.node in wanted and part.status in PARTS_ALIVE:
                wanted[part.node].append(_of_job(job, part, rank))
    for app in state.apps.values():
        for part in app.parts:
            if part.node in wanted:
                wanted[part.node].append(_of_app(app, part))
    return [
        NodePlaced(
            node=node,
            cluster=state.cluster,
            pool=known[node].pool,
            sequence=state.sequence,
            epoch=state.epoch,
            time_ms=state.now_ms,
            assignments=sorted(assignments, key=lambda item: item.gpus),
            reshape=reshape_of(state, known[node]),
            absent=known[node].absent,
            withheld=withheld_on(state, known[node]),
            cards_detail=cards_detail(state, known[node]),
        )
        for node, assignments in wanted.items()
    ]


def _of_job(job: Job, part: Part, rank: int) -> Assignment:
    spec = job.spec
    return Assignment(
        job_id=job.job_id,
        attempt=job.attempt,
        desired=Desired.STOP if job.stop_cause else Desired.RUN,
        stop_cause=StopCause(job.stop_cause) if job.stop_cause else None,
        gpus=part.gpus,
        nodes=[other.node for other in job.parts],
        node_rank=rank,
        world_size=job.gpus,
        command=spec.command,
        template=spec.template,
        environment=spec.environment,
        working_directory=spec.working_directory,
        memory_mib=spec.memory_mib,
        time_limit_s=spec.time_limit_s,
        checkpoint=spec.checkpoint,
        checkpoint_request=job.checkpoint_request,
        resume_fraction=job.fraction_at_start,
        resume_location=job.location,
        labels=spec.labels,
        traceparent=job.traceparent,
        speed=speed_in(job, job.pool),
    )


def _of_app(app: App, part: Part) -> Assignment:
    spec = app.spec
    return Assignment(
        job_id=app.app_id,
        attempt=APPLICATION_ATTEMPT,
        desired=Desired.RUN,
        gpus=part.gpus,
        application=True,
        nodes=[other.node for other in app.parts],
        world_size=max(1, sum(len(other.gpus) for other in app.parts)),
        command=spec.command,
        template=spec.template,
        environment=spec.environment,
        memory_mib=spec.memory_mib,
        checkpoint=CheckpointPolicy(),
        labels=spec.labels,
        traceparent=app.traceparent,
        readiness=spec.readiness,
        drain_s=spec.drain_s,
    )


def statuses(state: State, changes: Changes) -> list[JobStatusChanged]:
    """Status of everything the decision touched, in the order it was touched."""
    index, holdings = index_of(state), Holdings(state)
    found = []
    for job_id in changes.jobs:
        job = state.jobs.get(job_id) or changes.ended.get(job_id)
        if job is not None:
            found.append(_status_of_job(state, job, index.position(job), holdings))
        elif (app := state.apps.get(job_id)) is not None:
            found.append(_status_of_app(state, app))
        else:
            found.append(_withdrawn(state, job_id))
    return found


def _status_of_job(state: State, job: Job, position: int | None, holdings: Holdings) -> JobStatusChanged:
    ended = state.finished.get(job.job_id)
    reason, detail = job.reason, job.cause
    if job.state is JobState.QUEUED and job.reason:
        detail = SENTENCES[reason_named(job.reason)] + holdings.full_groups(job) + pool_sentence(job)
        detail += promise_sentence(state.promises.get(job.job_id))
    elif (said := remarks(state, job)) is not None:
        reason, detail = said
    elif job.state in (JobState.STARTING, JobState.RUNNING) and job.staging_s >= 1 and not detail:
        staging = minutes_text(-(-int(job.staging_s) // 60))
        detail = f"Its nodes don't keep all of its data: about {staging} of its expected time are for bringing it."
    return JobStatusChanged(
        job_id=job.job_id,
        state=job.state,
        time_ms=state.now_ms,
        sequence=state.sequence,
        cluster=state.cluster,
        reason=reason or None,
        detail=detail,
        position=position,
        planned_start_p50_ms=job.planned_start_p50_ms,
        planned_start_p90_ms=job.planned_start_p90_ms,
        submitted_ms=job.submitted_ms,
        started_ms=job.started_ms,
        ended_ms=ended.ended_ms if ended is not None else None,
        attempt=job.attempt,
        placed=[NodeGpus(node=part.node, gpus=part.gpus) for part in job.parts],
        holders=job.holders,
        decided_wall_ms=state.wall_ms,
        pool=(job.pool or job.planned_pool or None) if len(job.pools) > 1 else None,
    )


def _status_of_app(state: State, app: App) -> JobStatusChanged:
    return JobStatusChanged(
        job_id=app.app_id,
        state=_state_of_app(app),
        time_ms=state.now_ms,
        sequence=state.sequence,
        cluster=state.cluster,
        application=True,
        submitted_ms=app.accepted_ms,
        started_ms=app.since_ms if app.parts else None,
        placed=[NodeGpus(node=part.node, gpus=part.gpus) for part in app.parts],
        decided_wall_ms=state.wall_ms,
    )


def _state_of_app(app: App) -> JobState:
    """It counts as running once it serves: by its probe if it declares one."""
    if not app.parts:
        return JobState.QUEUED
    if app.spec.readiness is None or any(part.node in app.ready for part in app.parts):
        return JobState.RUNNING
    return JobState.STARTING


def _withdrawn(state: State, app_id: str) -> JobStatusChanged:
    return JobStatusChanged(
        job_id=app_id,
        state=JobState.CANCELLED,
        time_ms=state.now_ms,
        sequence=state.sequence,
        cluster=state.cluster,
        application=True,
        ended_ms=state.now_ms,
        decided_wall_ms=state.wall_ms,
    )

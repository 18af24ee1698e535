"""The promises of docs/executors.md, tried one by one. Each scenario places jobs of its own and waits for what must be reported.

Where nothing may happen, a job placed afterwards proves that the executor has read so far. Read next: `verdict.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from schemas.executions import (
    FailureCause,
    JobCheckpointed,
    JobCompleted,
    JobFailed,
    JobStarted,
    JobStopped,
    StopCause,
)
from schemas.jobs import CheckpointMode, CheckpointPolicy
from schemas.placements import Assignment, Desired
from services.console.conform.stage import Stage

LONG_S = 600.0
SAVES = CheckpointPolicy(mode=CheckpointMode.FILE, wait_s=20.0, interval_s=300_000.0)
ANSWERS = """
while :; do
  if [ -e "$GPUGRID_CHECKPOINT_REQUEST" ]; then
    printf '{"fraction": 0.5, "location": "here"}' > "$GPUGRID_CHECKPOINT_ANSWER.new"
    mv "$GPUGRID_CHECKPOINT_ANSWER.new" "$GPUGRID_CHECKPOINT_ANSWER"
  fi
  sleep 0.05
done
"""
"""A job that saves whenever it is asked."""


async def completes(stage: Stage) -> None:
    """A job that is placed runs once and is reported as started and completed."""
    job = stage.job("conform-completes")
    number = await stage.place(job)
    started = await stage.until(JobStarted, job.job_id)
    stage.expect("sequence", started.sequence == number, f"started names placement {started.sequence}, it was {number}")
    ended = await stage.until(JobCompleted, job.job_id)
    stage.expect("times", ended.time_ms >= started.time_ms, "completed lies before started")
    await stage.settled(job)
    stage.expect("once", stage.count(JobStarted, job.job_id) == 1, "an attempt that had completed was started again")


async def fails(stage: Stage) -> None:
    """An exit code is a failure with that code."""
    job = stage.job("conform-fails", exit_code=3)
    await stage.place(job)
    failed = await stage.until(JobFailed, job.job_id)
    code = failed.exit_code
    stage.expect(
        "causes", failed.cause is FailureCause.EXIT_CODE, f"an exit code is reported with cause {failed.cause.value}"
    )
    stage.expect("causes", stage.simulated or code == 3, f"exit code 3 is reported as {code}")


async def cannot_start(stage: Stage) -> None:
    """What can't start is failed, not silent and not started."""
    job = replace(stage.job("conform-cannot-start"), command=["/no/such/binary"], template=None)
    await stage.place(job)
    failed = await stage.until(JobFailed, job.job_id)
    allowed = (FailureCause.SPAWN, FailureCause.PREFLIGHT)
    stage.expect("causes", failed.cause in allowed, f"a missing binary is reported with cause {failed.cause.value}")
    stage.expect("once", stage.count(JobStarted, job.job_id) == 0, "what could not start was reported as started")


async def stops(stage: Stage) -> None:
    """A job that shall stop is stopped, with the cause it was given."""
    job = stage.job("conform-stops", run_s=LONG_S)
    await stage.place(job)
    await stage.until(JobStarted, job.job_id)
    await stage.place(replace(job, desired=Desired.STOP, stop_cause=StopCause.DRAIN))
    stopped = await stage.until(JobStopped, job.job_id)
    stage.expect("causes", stopped.cause is StopCause.DRAIN, f"stopped for drain, reported as {stopped.cause.value}")


async def withdraws(stage: Stage) -> None:
    """A job that shall stop before it was ever seen is reported as stopped: somebody waits for its GPUs."""
    job = stage.job("conform-withdrawn", desired=Desired.STOP, stop_cause=StopCause.CANCELLED)
    await stage.place(job)
    await stage.until(JobStopped, job.job_id)
    stage.expect("once", stage.count(JobStarted, job.job_id) == 0, "a job that should stop was started")


async def unlisted(stage: Stage) -> None:
    """What a placement no longer lists is stopped."""
    job = stage.job("conform-unlisted", run_s=LONG_S)
    await stage.place(job)
    await stage.until(JobStarted, job.job_id)
    await stage.place()
    await stage.until(JobStopped, job.job_id, what="a job that is no longer listed runs on")


async def outdated(stage: Stage) -> None:
    """Placements with a lower number or a lower epoch change nothing, and neither does one that comes twice."""
    job = stage.job("conform-current", run_s=LONG_S)
    await stage.place(job)
    await stage.until(JobStarted, job.job_id)
    epoch, number = stage.numbers
    older = [stage.job(f"conform-older-{what}", gpu=1) for what in ("number", "epoch")]
    await stage.place(older[0], epoch=epoch, sequence=number - 1)
    await stage.place(older[1], epoch=epoch - 1, sequence=number + 1000)
    await stage.place(job, epoch=epoch, sequence=number)
    await stage.settled(job)
    for each in older:
        stage.expect(
            "newest", stage.count(JobStarted, each.job_id) == 0, f"an outdated placement started {each.job_id}"
        )
    stage.expect("newest", stage.count(JobStopped, job.job_id) == 0, "an outdated placement stopped a job")
    await stage.place()
    await stage.until(JobStopped, job.job_id)


async def exclusive(stage: Stage) -> None:
    """Two jobs never have one GPU at the same time, whatever the placement says."""
    first, second = stage.job("conform-first", run_s=1.0), stage.job("conform-second", run_s=0.1)
    await stage.place(first)
    await stage.until(JobStarted, first.job_id)
    await stage.place(first, second)
    await stage.until(JobStarted, second.job_id)
    in_order = -1 < stage.first(JobCompleted, first.job_id) < stage.first(JobStarted, second.job_id)
    stage.expect("exclusive", in_order, "a job was started on a GPU that another one still had")
    await stage.until(JobCompleted, second.job_id)


async def next_attempt(stage: Stage) -> None:
    """A further attempt of a job that has ended runs."""
    job = stage.job("conform-again")
    await stage.place(job)
    await stage.until(JobCompleted, job.job_id)
    await stage.place(replace(job, attempt=2, resume_fraction=0.5, resume_location="here"))
    await stage.until(JobCompleted, job.job_id, attempt=2)


async def time_limit(stage: Stage) -> None:
    """A job that has used up its time limit is stopped, also without an order."""
    job = stage.job("conform-limit", run_s=LONG_S, time_limit_s=1.0)
    await stage.place(job)
    stopped = await stage.until(JobStopped, job.job_id)
    stage.expect("causes", stopped.cause is StopCause.TIME_LIMIT, f"its cause is {stopped.cause.value}")


async def checkpoints(stage: Stage) -> None:
    """A higher `checkpoint_request` is answered once, the job goes on; before a stop it is asked again."""
    job = _saver(stage, "conform-saver")
    await stage.place(job)
    await stage.until(JobStarted, job.job_id)
    asked = job
    for request in (1, 2):
        asked = replace(job, checkpoint_request=request)
        await stage.place(asked)
        answered = await stage.counted(JobCheckpointed, job.job_id, request)
        stage.expect("checkpoints", answered, f"checkpoint request {request} was not answered")
        await stage.settled(asked)
    stage.expect(
        "checkpoints", stage.count(JobCheckpointed, job.job_id) == 2, "two requests, another number of answers"
    )
    await stage.place(replace(asked, desired=Desired.STOP, stop_cause=StopCause.DRAIN))
    stopped = await stage.until(JobStopped, job.job_id)
    stage.expect("checkpoints", stopped.checkpointed, "its work was not saved before it was stopped")


async def resumes(stage: Stage) -> None:
    """A job finds where its checkpoint is, its GPUs and its identity."""
    if stage.simulated:
        return
    test = (
        '[ "$GPUGRID_RESUME_LOCATION" = here ] && [ -n "$GPUGRID_JOB_ID" ] && [ "$GPUGRID_ATTEMPT" = 3 ]'
        ' && [ -n "$CUDA_VISIBLE_DEVICES" ] && [ "$LOCAL_WORLD_SIZE" = 2 ] && [ "$MINE" = 1 ]'
    )
    job = stage.job(
        "conform-resumes",
        gpus=[0, 1],
        attempt=3,
        command=["sh", "-c", test],
        environment={"MINE": "1"},
        resume_fraction=0.5,
        resume_location="here",
    )
    await stage.place(job)
    found = await stage.until_any(
        lambda event: isinstance(event, JobCompleted | JobFailed) and event.job_id == job.job_id
    )
    stage.expect(
        "environment", isinstance(found, JobCompleted), f"a variable of docs/jobs.md is missing or wrong: {test}"
    )


async def scales(stage: Stage) -> None:
    """An application keeps its process while its GPUs change."""
    app = stage.job("conform-app", run_s=LONG_S, application=True)
    await stage.place(app)
    await stage.until(JobStarted, app.job_id)
    await stage.place(replace(app, gpus=[0, 2]))
    await stage.settled(replace(app, gpus=[0, 2]))
    stage.expect("applications", stage.count(JobStarted, app.job_id) == 1, "an application was restarted to scale it")
    await stage.place()
    await stage.until(JobStopped, app.job_id)


async def survives_garbage(stage: Stage) -> None:
    """A record on placements that can't be read stops nothing."""
    await stage.place_garbage()
    job = stage.job("conform-after-garbage")
    await stage.place(job)
    await stage.until(JobCompleted, job.job_id, what="after an unreadable placement nothing was carried out any more")


def _saver(stage: Stage, job_id: str) -> Assignment:
    job = stage.job(job_id, run_s=LONG_S, checkpoint=SAVES)
    return job if stage.simulated else replace(job, command=["sh", "-c", ANSWERS])


Scenario = Callable[[Stage], Awaitable[None]]
SCENARIOS: tuple[Scenario, ...] = (
    completes,
    fails,
    cannot_start,
    stops,
    withdraws,
    unlisted,
    outdated,
    exclusive,
    next_attempt,
    time_limit,
    checkpoints,
    resumes,
    scales,
    survives_garbage,
)

"""Publishing on a person's behalf, and following what comes of it."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from schemas.jobs import ApplicationRegistered, JobCancelled, JobChanged, JobSubmitted
from schemas.status import FINAL_STATES, JobState, JobStatusChanged
from services.console import queries, submission
from services.console.durations import moment_text
from services.console.errors import ConsoleError
from services.console.facts import JobView, readable
from services.console.publishing import new_traceparent, publishing_spans
from services.console.read import watch_topic
from services.console.sentences import Explanation, explain
from services.console.session import Session


def submit(
    session: Session,
    events: Sequence[JobSubmitted | ApplicationRegistered],
    *,
    wait_s: float | None,
    as_json: bool,
) -> None:
    """Publish submissions, print their ids, and (with `wait_s`) follow them until they have ended."""
    sent = session.run(send_new(session, events), f"Submitting {len(events)} to the broker")
    if as_json and wait_s is None:
        session.json(sent if len(sent) > 1 else sent[0])
    elif not as_json:
        for one in sent:
            session.print(f"{one['id']}  trace {one['trace_id']}")
        if wait_s is None and sys.stderr.isatty():
            session.note(f"`gpugrid why {sent[0]['id']}` tells what becomes of it, `--wait` follows it.")
    if wait_s is not None:
        wait_for(session, [one["id"] for one in sent], timeout_s=wait_s, as_json=as_json)


async def send_new(session: Session, events: Sequence[JobSubmitted | ApplicationRegistered]) -> list[dict[str, Any]]:
    """Publish submissions, each with its own trace. Sent again under the same id they change nothing."""
    sent, messages = [], []
    spans = publishing_spans(session)
    for event in events:
        key = submission.key_of(event)
        traceparent = spans.begin(key)
        time_ms = event.submitted_ms if isinstance(event, JobSubmitted) else event.registered_ms
        event_id = f"{key}/submitted" if isinstance(event, JobSubmitted) else f"{key}/registered/{time_ms}"
        messages.append(
            submission.message_of(event, key=key, event_id=event_id, time_ms=time_ms, traceparent=traceparent)
        )
        sent.append({"id": key, "trace_id": submission.trace_id_of(traceparent), "traceparent": traceparent})
    try:
        await session.publish(messages)
    finally:
        spans.end()
    return sent


async def send_about(
    session: Session, job_id: str, event: JobCancelled | JobChanged, what: str, *, anyway: bool
) -> dict[str, Any]:
    """Publish an event about a job that exists and has not ended; ConsoleError otherwise, unless `anyway`."""
    world = await queries.load_world(session)
    view = world.jobs.get(job_id)
    traceparent = _continued(view.traceparent) if view and view.traceparent else new_traceparent()
    if not anyway:
        if view is None and await queries.submitted_ms_of(session, job_id) is None:
            raise queries.unknown_job(job_id, world)
        if view is not None and view.final:
            raise ConsoleError(f"{job_id} has ended already ({view.state}); nothing was sent.")
    now_ms = event.cancelled_ms if isinstance(event, JobCancelled) else event.changed_ms
    event_id = f"{job_id}/{what}/{now_ms}/{secrets.token_hex(4)}"
    message = submission.message_of(event, key=job_id, event_id=event_id, time_ms=now_ms, traceparent=traceparent)
    await session.publish([message])
    return {"id": job_id, "trace_id": submission.trace_id_of(traceparent), "traceparent": traceparent}


def _continued(traceparent: str) -> str:
    """The same trace with a new span id: what a person does later belongs to the job's trace."""
    trace_id = submission.trace_id_of(traceparent)
    return f"00-{trace_id}-{secrets.token_hex(8)}-01" if trace_id else new_traceparent()


def wait_for(
    session: Session, job_ids: Sequence[str], *, timeout_s: float, as_json: bool, any_end: bool = False
) -> None:
    """Follow jobs until all have ended; ConsoleError unless all completed (`any_end`: however they ended)."""
    import asyncio

    try:
        ended = asyncio.run(_follow(session, job_ids, timeout_s=timeout_s, quiet=as_json))
    except KeyboardInterrupt:
        raise ConsoleError("Stopped waiting; the jobs go on (`gpugrid jobs`).") from None
    world = session.run(queries.load_world(session), "Reading how it ended")
    now_ms = session.clock().now_ms()
    explanations = [explain(world.jobs.get(job_id, JobView(job_id)), world, now_ms) for job_id in job_ids]
    if as_json:
        session.json([asdict(one) for one in explanations] if len(explanations) > 1 else asdict(explanations[0]))
    else:
        for one in explanations:
            session.print(one.sentence)
    missing = [job_id for job_id in job_ids if job_id not in ended]
    if missing:
        raise ConsoleError(
            f"{', '.join(missing)} had not ended after {timeout_s:.0f} s; it goes on without this command."
        )
    if not any_end and any(state is not JobState.COMPLETED for state in ended.values()):
        raise ConsoleError("Not completed.")


async def _follow(session: Session, job_ids: Sequence[str], *, timeout_s: float, quiet: bool) -> dict[str, JobState]:
    """Print every change of state until all have ended or time is up; the final states."""
    clock = session.clock()
    open_ids = dict.fromkeys(job_ids)
    ended: dict[str, JobState] = {}
    last: dict[str, tuple[str, str | None]] = {}
    async for record in watch_topic(session.bus(), "job-status", wall_s=clock.wall_s, deadline_s=timeout_s):
        envelope = readable(record)
        if (
            envelope is None
            or not isinstance(envelope.event, JobStatusChanged)
            or envelope.event.job_id not in open_ids
        ):
            continue
        status = envelope.event
        said = (status.state.value, status.reason)
        if not quiet and last.get(status.job_id) != said:
            session.print(f"{moment_text(status.time_ms, clock.now_ms())}  {status.job_id}  {_said(status)}")
        last[status.job_id] = said
        if status.state in FINAL_STATES:
            ended[status.job_id] = status.state
            del open_ids[status.job_id]
            if not open_ids:
                break
    return ended


def _said(status: JobStatusChanged) -> str:
    where = " ".join(part.node for part in status.placed)
    extra = " ".join(part for part in (status.reason or "", where) if part)
    return f"{status.state.value}{f' ({extra})' if extra else ''}"


def show_explanation(session: Session, explanation: Explanation, *, as_json: bool) -> None:
    """The answer of `why`."""
    if as_json:
        session.json(asdict(explanation))
        return
    session.print(explanation.sentence)
    for line in explanation.lines:
        session.print(f"  {line}")
    if explanation.would_help:
        session.print("What would help:")
    for line in explanation.would_help:
        session.print(f"  - {line}")

"""Readings that commands share: the picture of now, one job with everything about it."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.jobs import ApplicationRegistered, JobSubmitted
from services.console.errors import ConsoleError
from services.console.facts import FACT_TOPICS, World, readable, world_of
from services.console.read import Reading, read_topics
from services.console.session import Session
from services.console.similar import similar_names, suggestion


async def load_world(session: Session, *, forecasts: bool = False) -> World:
    """Jobs, placements and nodes as the topics show them now."""
    topics = [*FACT_TOPICS, "forecasts"] if forecasts else list(FACT_TOPICS)
    reading = await load_records(session, topics)
    return world_of(reading.records, complete=reading.complete)


async def load_records(session: Session, topics: Sequence[str]) -> Reading:
    """All records of the topics."""
    return await read_topics(session.bus(), topics, wall_s=session.clock().wall_s)


async def submitted_ms_of(session: Session, job_id: str) -> int | None:
    """When an event about an unknown job entered job-events; None if there is none."""
    reading = await load_records(session, ["job-events"])
    for record in reversed(reading.of("job-events")):
        envelope = readable(record)
        if envelope is None:
            continue
        if isinstance(envelope.event, JobSubmitted) and envelope.event.job_id == job_id:
            return envelope.event.submitted_ms
        if isinstance(envelope.event, ApplicationRegistered) and envelope.event.app_id == job_id:
            return envelope.event.registered_ms
    return None


def unknown_job(job_id: str, world: World) -> ConsoleError:
    """The error for a job nobody knows."""
    hint = similar_names(job_id, sorted(world.jobs))
    return ConsoleError(f"No job or application is named {job_id}." + suggestion(hint, "gpugrid jobs --all"))

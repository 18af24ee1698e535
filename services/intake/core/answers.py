"""Intake's own events: how changes merge, what follows an acceptance, and which id and key each one carries."""

from __future__ import annotations

from schemas.jobs import ApplicationAccepted, JobAccepted, JobAmended, JobChanged, JobRevoked
from services.intake.core.digest import content_digest
from services.intake.core.memory import Answer, Known, KnownJob


def merged(known: KnownJob, event: JobChanged) -> JobAmended:
    """All changes so far as one: a change older than the last one only fills in what was never changed."""
    before = known.amended
    priority, time_limit_s, amended_ms = event.priority, event.time_limit_s, event.changed_ms
    if before is not None:
        newer = event.changed_ms >= before.amended_ms
        amended_ms = max(event.changed_ms, before.amended_ms)
        if priority is None or (not newer and before.priority is not None):
            priority = before.priority
        if time_limit_s is None or (not newer and before.time_limit_s is not None):
            time_limit_s = before.time_limit_s
    return JobAmended(
        job_id=event.job_id,
        cluster=known.cluster,
        amended_ms=amended_ms,
        priority=priority,
        time_limit_s=time_limit_s,
    )


def afterwards(known: Known) -> list[tuple[Answer, str]]:
    """What was said of an id after it was let in, in order."""
    later: list[tuple[Answer, str]] = []
    if isinstance(known, KnownJob) and known.amended is not None:
        later.append((known.amended, known.amended_trace))
    if known.revoked is not None:
        later.append((known.revoked, known.revoked_trace))
    return later


def identity(event: Answer) -> tuple[str, str, int]:
    """(key, ce_id, domain time) of an answer: equal for equal events, different for different ones."""
    match event:
        case JobAccepted():
            return event.job_id, f"{event.job_id}/accepted", event.accepted_ms
        case ApplicationAccepted():
            return event.app_id, f"{event.app_id}/accepted/{event.accepted_ms}", event.accepted_ms
        case JobAmended():
            return event.job_id, f"{event.job_id}/amended/{content_digest(event)[:16]}", event.amended_ms
        case JobRevoked():
            return event.job_id, f"{event.job_id}/revoked/{event.revoked_ms}", event.revoked_ms

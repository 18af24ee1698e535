"""What is wrong with an event, given what is known of its id. Owns the order of questions: known first, then the rules.

Only what was never let in is judged by the rules, so a repetition stays fine even after the catalog has changed. The
handler publishes the first refusal; the HTTP door shows all of them before anything is published.
"""

from __future__ import annotations

from schemas.catalog import Catalog
from schemas.jobs import ApplicationRegistered, JobCancelled, JobChanged, JobSubmitted
from services.intake.core.case import cancellation_case, change_case, registration_case, submission_case
from services.intake.core.digest import content_digest
from services.intake.core.memory import Known, KnownApplication, KnownJob
from services.intake.core.refusals import Reason, Refusal
from services.intake.core.route import cluster_name
from services.intake.core.validate import validate

Request = JobSubmitted | ApplicationRegistered | JobChanged | JobCancelled
REPEAT_ADVICE = "if it was let in more than 7 days ago, send its submission again with the same content, then this"


def judge(
    event: Request, known: Known | None, catalog: Catalog, now_ms: int, time_ms: int | None = None
) -> list[Refusal]:
    """Every refusal, the weightiest first; empty = fine. `time_ms`: the event's `ce_time`, if it has one."""
    match event:
        case JobSubmitted():
            return _submission(event, known, catalog, now_ms, time_ms)
        case ApplicationRegistered():
            return _registration(event, known, catalog, now_ms, time_ms)
        case JobChanged():
            return _change(event, known, catalog, now_ms)
        case JobCancelled():
            return _cancellation(event, known, catalog, now_ms)


def overtaken(event: ApplicationRegistered | JobCancelled, known: KnownApplication) -> bool:
    """Whether a newer (or this very) registration was let in already: then there is nothing left to judge."""
    if isinstance(event, JobCancelled):
        return event.cancelled_ms < known.accepted.accepted_ms
    return event.registered_ms <= known.accepted.accepted_ms


def _submission(
    event: JobSubmitted, known: Known | None, catalog: Catalog, now_ms: int, time_ms: int | None
) -> list[Refusal]:
    if isinstance(known, KnownApplication):
        return [_taken("job_id", event.job_id, "an application")]
    if known is None:
        return validate(submission_case(event, catalog, now_ms, time_ms))
    if known.digest == content_digest(event.spec):
        return []
    detail = "spec differs from what was let in under this job_id; use a new id, or send job.changed"
    return [Refusal(Reason.CONFLICTING_CONTENT, "spec", detail)]


def _registration(
    event: ApplicationRegistered, known: Known | None, catalog: Catalog, now_ms: int, time_ms: int | None
) -> list[Refusal]:
    if isinstance(known, KnownJob):
        return [_taken("app_id", event.app_id, "a job")]
    if known is not None and overtaken(event, known):
        same = known.accepted.digest == content_digest(event.spec)
        if same or event.registered_ms < known.accepted.accepted_ms:
            return []
        detail = "spec differs from what was let in under this app_id and time; send it with a later registered_ms"
        return [Refusal(Reason.CONFLICTING_CONTENT, "spec", detail)]
    refusals = validate(registration_case(event, catalog, now_ms, time_ms))
    name = cluster_name(event.spec, catalog)
    if not refusals and known is not None and known.revoked is None and known.cluster != name:
        detail = (
            f"spec.cluster {name} differs from {known.cluster}, where it runs; cancel it first, or use a new app_id"
        )
        return [Refusal(Reason.CONFLICTING_CONTENT, "spec.cluster", detail)]
    return refusals


def _change(event: JobChanged, known: Known | None, catalog: Catalog, now_ms: int) -> list[Refusal]:
    if isinstance(known, KnownApplication):
        detail = f"job_id {event.job_id} is an application; register it again with the new numbers"
        return [Refusal(Reason.NOT_A_JOB, "job_id", detail)]
    if known is not None and known.revoked is not None:
        detail = f"job_id {event.job_id} was cancelled; submit it under a new id"
        return [Refusal(Reason.JOB_CANCELLED, "job_id", detail)]
    refusals = validate(change_case(event, catalog, now_ms))
    if event.priority is None and event.time_limit_s is None:
        refusals.insert(0, Refusal(Reason.NOTHING_TO_CHANGE, "", "set priority, time_limit_s or both"))
    return _unknown(event.job_id, known) + refusals


def _cancellation(event: JobCancelled, known: Known | None, catalog: Catalog, now_ms: int) -> list[Refusal]:
    if known is not None and known.revoked is not None:
        return []
    if isinstance(known, KnownApplication) and overtaken(event, known):
        return []
    return _unknown(event.job_id, known) + validate(cancellation_case(event, catalog, now_ms))


def _unknown(id: str, known: Known | None) -> list[Refusal]:
    if known is not None:
        return []
    return [Refusal(Reason.UNKNOWN_ID, "job_id", f"job_id {id} is unknown or was refused; {REPEAT_ADVICE}")]


def _taken(field: str, id: str, by: str) -> Refusal:
    return Refusal(Reason.ID_TAKEN, field, f"{field} {id} is the id of {by}; use another id")

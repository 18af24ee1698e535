"""A refusal as a problem document (RFC 9457), for callers over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from services.intake.core.refusals import Reason, Refusal

MEDIA_TYPE = "application/problem+json"
CONFLICTS = frozenset({Reason.CONFLICTING_CONTENT, Reason.ID_TAKEN, Reason.NOT_A_JOB, Reason.JOB_CANCELLED})
"""409: sending the same again can't help, another id or another state could."""
UNREADABLE = frozenset({Reason.MALFORMED_JSON, Reason.NO_VALUE})
"""400: there is nothing to judge."""


class Wrong(Struct, frozen=True, kw_only=True):
    """One thing that is wrong: a reason code of docs/events.md, the field, and what to do."""

    reason: str
    field: str
    detail: str


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document. `reason`, `field` and `detail` repeat the first of `errors`; `job_id`: send it with the same id again."""

    type: str
    title: str
    status: int
    detail: str
    reason: str
    field: str = ""
    job_id: str = ""
    errors: list[Wrong] = []


def problem_of(refusals: Sequence[Refusal]) -> Problem:
    """The problem document of at least one refusal."""
    first = refusals[0]
    return problem(
        _status(first.reason),
        first.reason.value,
        first.reason.sentence,
        first.sentence,
        field=first.field,
        errors=[Wrong(reason=one.reason.value, field=one.field, detail=one.detail) for one in refusals],
    )


def _status(reason: Reason) -> int:
    if reason in CONFLICTS:
        return 409
    if reason in UNREADABLE:
        return 400
    return 422


def problem(
    status: int,
    reason: str,
    title: str,
    detail: str,
    *,
    field: str = "",
    job_id: str = "",
    errors: Sequence[Wrong] = (),
) -> Problem:
    """A problem document; `reason` also names its type."""
    return Problem(
        type=f"urn:gpugrid:reason:{reason}",
        title=title,
        status=status,
        detail=detail,
        reason=reason,
        field=field,
        job_id=job_id,
        errors=list(errors),
    )

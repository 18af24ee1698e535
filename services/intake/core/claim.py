"""Whose an unreadable record was: enough of it to tell its sender, nothing more."""

from __future__ import annotations

import msgspec

from schemas.base import Identifier
from schemas.records import Record


class _Claim(msgspec.Struct):
    """The ids of a payload that can't be read otherwise, to tell its sender."""

    job_id: Identifier | None = None
    app_id: Identifier | None = None


def claimed_id(record: Record) -> tuple[str, bool] | None:
    """Whose submission or registration an unreadable record was, if its type, key and id agree."""
    if record.value is None or record.key is None:
        return None
    application = {"job.submitted.v1": False, "application.registered.v1": True}.get(record.header("ce_type") or "")
    if application is None:
        return None
    try:
        claim = msgspec.json.decode(record.value, type=_Claim)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    id = claim.app_id if application else claim.job_id
    return (id, application) if id is not None and id.encode() == record.key else None

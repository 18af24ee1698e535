"""From an HTTP body to the event any upstream would publish. Pure: ids and times that a caller may leave out come in as arguments.

Owns the bodies' shapes. Refuses by `DecodeError`, with the codec's codes, so that HTTP and Kafka speak the same language.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from schemas.base import Identifier, TimeMs
from schemas.codec import DecodeError
from schemas.jobs import ApplicationRegistered, ApplicationSpec, JobChanged, JobSpec, JobSubmitted, Priority, TimeLimitS

S = TypeVar("S", bound=Struct)


class JobRequest(Struct, frozen=True, kw_only=True):
    """A job to submit: the payload of `job.submitted.v1`, whose id and time may be left out."""

    spec: JobSpec
    job_id: Identifier | None = None
    submitted_ms: TimeMs | None = None


class BareJobRequest(JobSpec, frozen=True, kw_only=True):
    """The same without the wrapping: a specification with `job_id` beside its fields."""

    job_id: Identifier | None = None
    submitted_ms: TimeMs | None = None


class ApplicationRequest(Struct, frozen=True, kw_only=True):
    """An application to register: the payload of `application.registered.v1`, whose time may be left out."""

    app_id: Identifier
    spec: ApplicationSpec
    registered_ms: TimeMs | None = None


class ChangeRequest(Struct, frozen=True, kw_only=True):
    """What may change of a job. Fields left out stay."""

    priority: Priority | None = None
    time_limit_s: TimeLimitS | None = None
    changed_ms: TimeMs | None = None


class _Probe(Struct):
    spec: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def job_submitted(body: bytes, *, job_id: str, now_ms: int) -> JobSubmitted:
    """The submission a body asks for; `job_id` and `now_ms` where it names none. Raises DecodeError."""
    if _read(body, _Probe).spec is not msgspec.UNSET:
        request = _read(body, JobRequest)
        spec, given_id, given_ms = request.spec, request.job_id, request.submitted_ms
    else:
        bare = _read(body, BareJobRequest)
        fields = {name: getattr(bare, name) for name in JobSpec.__struct_fields__}
        spec, given_id, given_ms = JobSpec(**fields), bare.job_id, bare.submitted_ms
    return JobSubmitted(
        job_id=job_id if given_id is None else given_id,
        submitted_ms=now_ms if given_ms is None else given_ms,
        spec=spec,
    )


def application_registered(body: bytes, *, now_ms: int) -> ApplicationRegistered:
    """The registration a body asks for. Raises DecodeError."""
    request = _read(body, ApplicationRequest)
    at_ms = now_ms if request.registered_ms is None else request.registered_ms
    return ApplicationRegistered(app_id=request.app_id, registered_ms=at_ms, spec=request.spec)


def job_changed(body: bytes, *, job_id: str, now_ms: int) -> JobChanged:
    """The change a body asks for. Raises DecodeError."""
    request = _read(body, ChangeRequest)
    at_ms = now_ms if request.changed_ms is None else request.changed_ms
    return JobChanged(
        job_id=identifier(job_id), changed_ms=at_ms, priority=request.priority, time_limit_s=request.time_limit_s
    )


def identifier(text: str) -> str:
    """An id from a path. Raises DecodeError if it can't be one."""
    try:
        return msgspec.convert(text, Identifier)
    except msgspec.ValidationError as error:
        raise DecodeError("invalid_field", f"the id in the path is not one: {error}") from None


def _read(body: bytes, shape: type[S]) -> S:
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise DecodeError("invalid_field", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError("malformed_json", str(error)) from None
    except RecursionError:
        raise DecodeError("malformed_json", "JSON is nested too deeply") from None

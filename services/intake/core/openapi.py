"""The OpenAPI document of intake's HTTP door, from the structs its bodies are decoded with: it can't promise anything else."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from schemas.base import Identifier, TimeMs
from services.intake.core.problem import MEDIA_TYPE, Problem
from services.intake.core.refusals import Reason
from services.intake.core.requests import ApplicationRequest, BareJobRequest, ChangeRequest, JobRequest

VERSION = "1.0.0"
REFERENCE = "#/components/schemas/{name}"
PROBLEMS = {
    "400": "The body is not JSON.",
    "403": "The request came from a browser page or under a foreign host name.",
    "404": "There is no such path, or intake knows no such id.",
    "409": "The id was let in with other content, or its state forbids this.",
    "413": "The body is larger than 256 KiB.",
    "415": "The body is not declared as application/json.",
    "422": "A field or a combination of fields is refused; `errors` names each with its reason code.",
    "503": "The event could not be stored, or perhaps was. Send the same again, with the same id: that is harmless.",
}


class Accepted(Struct, frozen=True, kw_only=True):
    """The event is stored. Whether it is let in, and everything after, comes as `job-status` under this id."""

    job_id: Identifier
    trace_id: str


class KnownHere(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What intake let in under an id, as far as this instance knows. Where the job is, `job-status` says."""

    job_id: Identifier
    cluster: Identifier
    pools: list[Identifier]
    accepted_ms: TimeMs
    digest: str
    trace_id: str
    application: bool = False
    amended_ms: TimeMs | None = None
    revoked_ms: TimeMs | None = None


def document() -> dict[str, Any]:
    """The whole document, OpenAPI 3.1."""
    shapes = (JobRequest, BareJobRequest, ApplicationRequest, ChangeRequest, Accepted, KnownHere, Problem)
    _, components = msgspec.json.schema_components(shapes, ref_template=REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpugrid intake",
            "version": VERSION,
            "description": (
                "Submit, change and cancel GPU jobs. Every request becomes an event on the Kafka topic job-events, "
                "acknowledged before the answer. Reason codes: "
                + " ".join(f"`{reason.value}`: {reason.sentence}" for reason in Reason)
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/v1/jobs": {"post": _submit()},
            "/v1/jobs/{id}": {
                "parameters": [_id("a job or an application")],
                "get": _operation(
                    "knownJob", "What intake knows of an id", {"200": _json("Known here.", KnownHere)}, "404"
                ),
                "patch": _operation(
                    "changeJob", "Change the priority or time limit of a job", _taken(), *_ALL, body=[ChangeRequest]
                ),
                "delete": _operation("cancelJob", "Cancel a job or an application", _taken(), *_ALL) | _cause(),
            },
            "/v1/applications": {
                "post": _operation(
                    "registerApplication",
                    "Register a real-time application, or register it again with new numbers",
                    _taken(),
                    *_ALL,
                    body=[ApplicationRequest],
                )
            },
            "/v1/openapi.json": {
                "get": _operation(
                    "openapi", "This document", {"200": {"description": "OpenAPI 3.1.", "content": _ANY_JSON}}
                )
            },
        },
        "components": {"schemas": components},
    }


_ALL = ("400", "403", "409", "413", "415", "422", "503")
_ANY_JSON = {"application/json": {"schema": {"type": "object"}}}
EXAMPLE = {
    "job_id": "hello-1",
    "spec": {
        "kind": "training",
        "team": "research",
        "user": "ada",
        "priority": 10,
        "sizes": [1, 2],
        "time_limit_s": 3600,
        "command": ["python", "train.py"],
    },
}


def _submit() -> dict[str, Any]:
    operation = _operation(
        "submitJob",
        "Submit a job; the same content under the same id again is harmless",
        _taken(),
        *_ALL,
        body=[JobRequest, BareJobRequest],
    )
    operation["requestBody"]["content"]["application/json"]["example"] = EXAMPLE
    return operation


def _operation(
    name: str, summary: str, answers: dict[str, Any], *problems: str, body: list[type[Struct]] | None = None
) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": name, "summary": summary, "parameters": [_TRACEPARENT]}
    if body is not None:
        references = [{"$ref": REFERENCE.format(name=shape.__name__)} for shape in body]
        schema = references[0] if len(references) == 1 else {"anyOf": references}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    refused = {"$ref": REFERENCE.format(name=Problem.__name__)}
    operation["responses"] = answers | {
        status: {"description": PROBLEMS[status], "content": {MEDIA_TYPE: {"schema": refused}}} for status in problems
    }
    return operation


def _taken() -> dict[str, Any]:
    answer = _json("Stored; the outcome follows as job-status.", Accepted)
    answer["headers"] = {
        "Location": {"description": "Where to cancel or change it.", "schema": {"type": "string"}},
        "traceparent": {"description": "The trace that follows the job.", "schema": {"type": "string"}},
    }
    return {"202": answer}


def _json(description: str, shape: type[Struct]) -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(name=shape.__name__)}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _id(what: str) -> dict[str, Any]:
    schema = msgspec.json.schema(Identifier)
    return {"name": "id", "in": "path", "required": True, "description": f"The id of {what}.", "schema": schema}


def _cause() -> dict[str, Any]:
    cause = {
        "name": "cause",
        "in": "query",
        "description": "Why, for people.",
        "schema": {"type": "string", "maxLength": 256},
    }
    return {"parameters": [_TRACEPARENT, cause]}


_TRACEPARENT: dict[str, Any] = {
    "name": "traceparent",
    "in": "header",
    "description": "W3C trace context; the job's trace continues it.",
    "schema": {"type": "string"},
}

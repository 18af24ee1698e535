"""OpenAPI's own validator accepts the document of the HTTP door, its examples fit its schemas, and planted faults are seen."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from referencing.exceptions import Unresolvable

from schemas import generated
from services.intake.core.openapi import EXAMPLE, document
from services.intake.core.refusals import Reason
from services.intake.core.requests import application_registered, job_submitted


def faults(described: dict[str, Any]) -> list[str]:
    try:
        return [error.message for error in OpenAPIV31SpecValidator(described).iter_errors()]
    except Unresolvable as error:  # a reference into nothing isn't listed but raised
        return [str(error.ref)]


def body_problems(described: dict[str, Any], name: str, body: Any) -> list[str]:
    """What is wrong with a body under a component's schema."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": described["components"]}
    return [error.message for error in Draft202012Validator(schema).iter_errors(body)]


def test_the_validator_accepts_the_document() -> None:
    assert faults(document()) == []


@pytest.mark.parametrize(
    "path",
    [
        ("info", "title"),
        ("paths", "/v1/jobs", "post", "requestBody", "content"),
        ("paths", "/v1/jobs/{id}", "parameters"),
        ("components", "schemas", "JobSpec"),
    ],
    ids=lambda path: path[-1],
)
def test_the_validator_rejects_a_document_with_a_part_taken_out(path: tuple[str, ...]) -> None:
    broken = copy.deepcopy(document())
    node = broken
    for name in path[:-1]:
        node = node[name]
    del node[path[-1]]
    assert faults(broken) != []


def test_the_validator_rejects_a_parameter_in_no_place() -> None:
    broken = document()
    broken["paths"]["/v1/jobs/{id}"]["parameters"][0]["in"] = "nowhere"
    assert faults(broken) != []


def test_valid_examples_of_events_are_valid_bodies() -> None:
    described = document()
    for example in generated.examples("job.submitted.v1", "valid").values():
        assert body_problems(described, "JobRequest", example) == []
        assert body_problems(described, "BareJobRequest", {"job_id": example["job_id"], **example["spec"]}) == []
    for example in generated.examples("application.registered.v1", "valid").values():
        assert body_problems(described, "ApplicationRequest", example) == []


def test_the_documented_example_is_a_valid_body_and_a_broken_one_is_not() -> None:
    assert body_problems(document(), "JobRequest", EXAMPLE) == []
    assert body_problems(document(), "JobRequest", {"spec": {**EXAMPLE["spec"], "sizes": []}}) != []


def test_bodies_become_the_events_that_kafka_would_have_carried() -> None:
    for file in (generated.PACKAGE / "examples" / "job.submitted.v1" / "valid").glob("*.json"):
        event = job_submitted(file.read_bytes(), job_id="unused", now_ms=0)
        assert event.job_id != "unused"
        assert event.submitted_ms > 0
    for file in (generated.PACKAGE / "examples" / "application.registered.v1" / "valid").glob("*.json"):
        assert application_registered(file.read_bytes(), now_ms=0).registered_ms > 0


def test_every_reason_is_in_the_document() -> None:
    text = document()["info"]["description"]
    assert [reason for reason in Reason if f"`{reason.value}`" not in text] == []

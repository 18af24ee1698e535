"""The HTTP door on the memory bus: what is taken is on job-events before the answer, what isn't gets a problem document."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from schemas.codec import decode_record
from schemas.jobs import ApplicationRegistered, JobCancelled, JobChanged, JobSubmitted
from schemas.records import Record
from services.intake.core.handler import IntakeHandler
from services.intake.shell import http
from services.intake.shell.http import BODY_BYTES_MAX, HttpDoor
from services.intake.shell.publisher import Publisher
from services.runtime.bus.faults import Unknown
from services.runtime.bus.memory import MemoryBus
from services.runtime.tracing import Untraced
from tests.unit.intake.intake_builders import CATALOG, NOW, NOW_MS, TRACE

SPEC = {"kind": "training", "team": "research", "user": "ada", "priority": 10, "sizes": [1, 2], "command": ["train"]}
APPLICATION = {
    "team": "search", "user": "grace", "priority": 50, "floor_gpus": 2, "peak_gpus": 16, "switch_max": 4, "template": "serve",
}  # fmt: skip


class StandingClock:
    """Time stands at NOW_MS."""

    def now_ms(self) -> int:
        return NOW_MS

    def wall_ms(self) -> int:
        return NOW_MS

    def wall_s(self) -> float:
        return 0.0

    def steady_ms(self) -> int:
        return 0

    async def sleep_wall(self, duration_s: float) -> None: ...

    async def sleep_until(self, domain_ms: int) -> None: ...


class Bench:
    """A door with a client in front and a bus behind."""

    def __init__(self, client: TestClient[Any, Any], bus: MemoryBus, handler: IntakeHandler) -> None:
        self.client = client
        self.bus = bus
        self.handler = handler

    def records(self) -> list[Record]:
        return sorted(self.bus.records("job-events"), key=lambda record: record.timestamp_ms)

    def events(self) -> list[Any]:
        return [decode_record(record).event for record in self.records()]

    def handle_all(self) -> None:
        """What intake's hop does with what was published."""
        for record in self.records():
            self.handler.handle(record, NOW)

    async def submit(self, body: Any, **headers: str) -> tuple[int, Any]:
        response = await self.client.post("/v1/jobs", json=body, headers=headers)
        return response.status, await response.json()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bus = MemoryBus({"job-events": 4})
    handler = IntakeHandler(CATALOG)
    publisher = Publisher(bus, "intake-http")
    await publisher.start()
    numbers = iter(range(1, 1000))
    door = HttpDoor(handler, publisher, StandingClock(), Untraced(), new_id=lambda: f"job-{next(numbers)}")
    async with TestClient(TestServer(door.application())) as client:
        yield Bench(client, bus, handler)
    await publisher.stop()


async def test_a_submission_is_on_job_events_before_its_202(bench: Bench) -> None:
    response = await bench.client.post("/v1/jobs", json={"job_id": "a/b 1".replace(" ", "-"), "spec": SPEC})
    assert (response.status, response.headers["Location"]) == (202, "/v1/jobs/a%2Fb-1")
    body = await response.json()
    (record,) = bench.records()
    envelope = decode_record(record)
    assert isinstance(envelope.event, JobSubmitted)
    assert (body["job_id"], record.key, envelope.event.job_id) == ("a/b-1", b"a/b-1", "a/b-1")
    assert (envelope.event.submitted_ms, envelope.time_ms) == (NOW_MS, NOW_MS)
    assert envelope.traceparent[3:35] == body["trace_id"]
    assert response.headers["traceparent"] == envelope.traceparent
    assert [message.topic for message in bench.handler.handle(record, NOW)] == ["jobs"]


async def test_a_bare_specification_gets_an_id(bench: Bench) -> None:
    assert await bench.submit(SPEC) == (202, {"job_id": "job-1", "trace_id": bench_trace(bench)})
    assert bench.events()[0].spec.sizes == [1, 2]
    status, body = await bench.submit({**SPEC, "job_id": "mine"})
    assert (status, body["job_id"]) == (202, "mine")


def bench_trace(bench: Bench) -> str:
    return decode_record(bench.records()[-1]).traceparent[3:35]


async def test_the_trace_of_the_caller_is_continued(bench: Bench) -> None:
    status, body = await bench.submit({"spec": SPEC}, traceparent=TRACE)
    assert (status, body["trace_id"]) == (202, TRACE[3:35])
    assert decode_record(bench.records()[0]).traceparent == TRACE


async def test_a_retry_is_the_same_event_again(bench: Bench) -> None:
    body = {"job_id": "j1", "spec": SPEC}
    assert [(await bench.submit(body))[0] for _ in range(2)] == [202, 202]
    first, second = bench.records()
    assert (first.header("ce_id"), first.value) == (second.header("ce_id"), second.value)
    bench.handle_all()
    assert (await bench.submit(body))[0] == 202
    status, problem = await bench.submit({"job_id": "j1", "spec": {**SPEC, "priority": 11}})
    assert (status, problem["reason"], problem["field"]) == (409, "conflicting_content", "spec")
    assert len(bench.records()) == 3


@pytest.mark.parametrize(
    ("body", "status", "reason", "field"),
    [
        ({"spec": {**SPEC, "sizes": [3]}}, 422, "size_not_power_of_two", "spec.sizes"),
        ({"spec": {**SPEC, "priority": 101}}, 422, "invalid_field", "spec.priority"),
        ({**SPEC, "priority": "high"}, 422, "invalid_field", "priority"),
        ({"job_id": "my job", "spec": SPEC}, 422, "invalid_field", "job_id"),
        ({"spec": None}, 422, "invalid_field", "spec"),
        ({}, 422, "invalid_field", ""),
        ([], 422, "invalid_field", ""),
        ({"spec": {**SPEC, "team": "strangers"}}, 422, "unknown_team", "spec.team"),
        ({"submitted_ms": NOW_MS * 1000, "spec": SPEC}, 422, "invalid_field", "submitted_ms"),
        ({"submitted_ms": 2 * NOW_MS, "spec": SPEC}, 422, "clock_skew", "submitted_ms"),
    ],
)
async def test_what_is_refused_names_field_and_reason_and_publishes_nothing(
    bench: Bench, body: Any, status: int, reason: str, field: str
) -> None:
    response = await bench.client.post("/v1/jobs", json=body)
    problem = await response.json()
    assert response.content_type == "application/problem+json"
    assert (response.status, problem["status"], problem["reason"], problem.get("field", "")) == (
        status,
        status,
        reason,
        field,
    )
    assert problem["type"] == f"urn:gpugrid:reason:{reason}"
    assert field in problem["detail"]
    assert bench.records() == []


async def test_all_broken_rules_are_listed(bench: Bench) -> None:
    status, problem = await bench.submit({"spec": {**SPEC, "sizes": [3], "command": None}})
    assert status == 422
    assert [error["reason"] for error in problem["errors"]] == ["size_not_power_of_two", "command_or_template"]


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (b"{", 400, "malformed_json"),
        (b"", 400, "malformed_json"),
        (b"\xff", 400, "malformed_json"),
        (b'{"spec":' + b"[" * 60_000, 400, "malformed_json"),
        (b" " * (BODY_BYTES_MAX + 1), 413, "body_too_large"),
    ],
    ids=["open", "empty", "binary", "deep", "large"],
)
async def test_unreadable_bodies_are_refused(bench: Bench, data: bytes, status: int, reason: str) -> None:
    response = await bench.client.post("/v1/jobs", data=data, headers={"Content-Type": "application/json"})
    assert (response.status, (await response.json())["reason"]) == (status, reason)
    assert bench.records() == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_web_page_can_not_submit_a_job(bench: Bench, kind: str) -> None:
    data = json.dumps({"spec": SPEC})
    for method, path in (("POST", "/v1/jobs"), ("POST", "/v1/applications"), ("PATCH", "/v1/jobs/j1")):
        response = await bench.client.request(method, path, data=data, headers={"Content-Type": kind})
        assert (response.status, (await response.json())["reason"]) == (415, "not_json")
    foreign = await bench.client.post("/v1/jobs", json={"spec": SPEC}, headers={"Host": "rebound.example:8470"})
    assert (foreign.status, (await foreign.json())["reason"]) == (403, "foreign_host")
    assert bench.records() == []


@pytest.mark.parametrize("host", ["localhost:8470", "127.0.0.1", "[::1]:8470", "localhost"])
async def test_local_names_are_let_in(bench: Bench, host: str) -> None:
    assert (await bench.submit({"spec": SPEC}, Host=host))[0] == 202


async def test_an_application_is_registered(bench: Bench) -> None:
    response = await bench.client.post("/v1/applications", json={"app_id": "ranker", "spec": APPLICATION})
    assert response.status == 202
    (event,) = bench.events()
    assert isinstance(event, ApplicationRegistered)
    assert (event.app_id, event.registered_ms) == ("ranker", NOW_MS)
    bad = await bench.client.post("/v1/applications", json={"app_id": "r2", "spec": {**APPLICATION, "floor_gpus": 17}})
    assert (bad.status, (await bad.json())["reason"]) == (422, "floor_exceeds_peak")


async def test_a_job_is_changed_and_cancelled_even_before_intake_has_seen_it(bench: Bench) -> None:
    await bench.submit({"job_id": "team/j1", "spec": SPEC})
    changed = await bench.client.patch("/v1/jobs/team%2Fj1", json={"priority": 20})
    cancelled = await bench.client.delete("/v1/jobs/team%2Fj1?cause=typo")
    assert (changed.status, cancelled.status) == (202, 202)
    assert bench.events()[1:] == [
        JobChanged(job_id="team/j1", changed_ms=NOW_MS, priority=20),
        JobCancelled(job_id="team/j1", cancelled_ms=NOW_MS, cause="typo"),
    ]
    bench.handle_all()
    again = await bench.client.patch("/v1/jobs/team%2Fj1", json={"priority": 21})
    assert (again.status, (await again.json())["reason"]) == (409, "job_cancelled")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("PATCH", "/v1/jobs/j1", {}, 422, "nothing_to_change"),
        ("PATCH", "/v1/jobs/j1", {"time_limit_s": 2e6}, 422, "time_limit_too_long"),
        ("PATCH", "/v1/jobs/j1", {"priority": 0}, 422, "invalid_field"),
        ("PATCH", "/v1/jobs/no%20id", {"priority": 5}, 422, "invalid_field"),
        ("DELETE", "/v1/jobs/no%20id", None, 422, "invalid_field"),
        ("GET", "/v1/jobs/nobody", None, 404, "unknown_id"),
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("PUT", "/v1/jobs", {}, 405, "method_not_allowed"),
    ],
)
async def test_other_refusals_are_problem_documents_too(
    bench: Bench, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    response = await bench.client.request(method, path, json=body)
    problem = await response.json()
    assert (response.status, response.content_type) == (status, "application/problem+json")
    assert (problem["status"], problem["reason"]) == (status, reason)
    assert bench.records() == []


async def test_what_intake_knows_can_be_asked_for(bench: Bench) -> None:
    await bench.submit({"job_id": "j1", "spec": SPEC})
    await bench.client.post("/v1/applications", json={"app_id": "ranker", "spec": APPLICATION})
    await bench.client.patch("/v1/jobs/j1", json={"priority": 20})
    bench.handle_all()
    job = await (await bench.client.get("/v1/jobs/j1")).json()
    assert (job["cluster"], job["pools"], job["amended_ms"]) == ("c0", ["h100", "l4"], NOW_MS)
    application = await (await bench.client.get("/v1/jobs/ranker")).json()
    assert (application["application"], application["pools"]) == (True, ["h100"])


@pytest.mark.parametrize("how", list(Unknown))
async def test_an_unacknowledged_send_is_said_so_and_the_next_one_works(bench: Bench, how: Unknown) -> None:
    bench.bus.fail_next_send("job-events", how)
    response = await bench.client.post("/v1/jobs", json={"spec": SPEC})
    problem = await response.json()
    assert (response.status, problem["reason"], problem["job_id"]) == (503, "not_acknowledged", "job-1")
    assert response.headers["Retry-After"] == "1"
    status, body = await bench.submit({"job_id": problem["job_id"], "spec": SPEC})
    assert (status, body["job_id"]) == (202, "job-1")
    bench.handle_all()


async def test_more_requests_than_the_limit_are_sent_away(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUESTS_IN_FLIGHT_MAX", 0)
    status, problem = await bench.submit({"spec": SPEC})
    assert (status, problem["reason"]) == (503, "too_many_requests")


@pytest.fixture
def page_text(bench: Bench) -> Callable[[str], Any]:
    async def read(path: str) -> tuple[str, str]:
        response = await bench.client.get(path)
        assert response.status == 200
        return response.content_type, await response.text()

    return read


async def test_the_documentation_page_needs_nothing_from_elsewhere(page_text: Callable[[str], Any]) -> None:
    kind, text = await page_text("/docs")
    assert kind == "text/html"
    assert "size_not_power_of_two" in text
    assert "src=" not in text
    assert "<script" not in text
    assert text.count("http") == text.count("http://127.0.0.1:8470")


async def test_the_example_of_the_documentation_is_taken(bench: Bench, page_text: Callable[[str], Any]) -> None:
    kind, text = await page_text("/v1/openapi.json")
    assert kind == "application/json"
    example = json.loads(text)["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert (await bench.submit(example))[0] == 202

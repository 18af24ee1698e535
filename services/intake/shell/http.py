"""The HTTP door: requests become events on `job-events`, as any upstream would publish them. On loopback only.

Owns: bodies in, problem documents out, and who may knock. Refuses any rule of its own: `core/judge.py` judges, here and
again when the event comes round. Because a job is a command that will run, a web page open in somebody's browser must not
be able to submit one: bodies must be declared as JSON (a page can't do that across origins without asking), and the Host
must be this machine (so that a foreign name that resolves to it doesn't count as the same origin).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from secrets import token_hex
from urllib.parse import quote

import msgspec
from aiohttp import web

from schemas.codec import DecodeError
from schemas.jobs import ApplicationRegistered, JobCancelled
from schemas.messages import message
from schemas.records import Now
from services.intake.core.digest import content_digest
from services.intake.core.docs_page import page
from services.intake.core.handler import IntakeHandler
from services.intake.core.judge import Request
from services.intake.core.memory import Known, KnownJob
from services.intake.core.openapi import Accepted, KnownHere, document
from services.intake.core.problem import MEDIA_TYPE, Problem, problem, problem_of
from services.intake.core.refusals import unreadable
from services.intake.core.requests import application_registered, identifier, job_changed, job_submitted
from services.intake.shell.publisher import Publisher
from services.runtime.bus.port import BusError
from services.runtime.clock import Clock
from services.runtime.tracing import Span, Spans

HOST = "127.0.0.1"
SOURCE = "/gpugrid/intake/http"
BODY_BYTES_MAX = 262_144
"""Twice what a specification may have (`SPEC_BYTES_MAX`), for white space and escapes."""
REQUESTS_IN_FLIGHT_MAX = 256
"""Each waits for one acknowledgement (about 2 ms); more waiting than this means that the broker is away: say so at once."""
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})
JSON_TYPES = ("application/json", "application/cloudevents+json")
RETRY_AFTER_S = "1"

SPAN: web.RequestKey[Span] = web.RequestKey("span")
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]
_STATUS_NAMES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


class HttpDoor:
    """The routes over one handler and one publisher. `hosts`: names under which callers may address it."""

    def __init__(
        self,
        handler: IntakeHandler,
        publisher: Publisher,
        clock: Clock,
        spans: Spans,
        *,
        new_id: Callable[[], str] = lambda: f"job-{token_hex(8)}",
        hosts: frozenset[str] = LOCAL_NAMES,
    ) -> None:
        self._handler = handler
        self._publisher = publisher
        self._clock = clock
        self._spans = spans
        self._new_id = new_id
        self._hosts = hosts
        self._in_flight = 0

    def application(self) -> web.Application:
        """The aiohttp application; run it on `HOST` only."""
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._guarded])
        app.add_routes(
            [
                web.post("/v1/jobs", self._submit),
                web.get("/v1/jobs/{id:.+}", self._known),
                web.patch("/v1/jobs/{id:.+}", self._change),
                web.delete("/v1/jobs/{id:.+}", self._cancel),
                web.post("/v1/applications", self._register),
                web.get("/v1/openapi.json", self._openapi),
                web.get("/docs", self._docs),
            ]
        )
        return app

    # --- requests

    async def _submit(self, request: web.Request) -> web.StreamResponse:
        event = job_submitted(await _json_body(request), job_id=self._new_id(), now_ms=self._clock.now_ms())
        return await self._taken(request, event, event.job_id, event.submitted_ms)

    async def _register(self, request: web.Request) -> web.StreamResponse:
        event = application_registered(await _json_body(request), now_ms=self._clock.now_ms())
        return await self._taken(request, event, event.app_id, event.registered_ms)

    async def _change(self, request: web.Request) -> web.StreamResponse:
        body = await _json_body(request)
        event = job_changed(body, job_id=request.match_info["id"], now_ms=self._clock.now_ms())
        return await self._taken(request, event, event.job_id, event.changed_ms)

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        id = identifier(request.match_info["id"])
        now_ms = self._clock.now_ms()
        event = JobCancelled(job_id=id, cancelled_ms=now_ms, cause=request.query.get("cause", "")[:256])
        return await self._taken(request, event, id, now_ms)

    async def _known(self, request: web.Request) -> web.StreamResponse:
        id = identifier(request.match_info["id"])
        known = self._handler.known(id)
        if known is None:
            detail = f"intake knows no job or application {id}; its status, if it has one, is on job-status"
            return _refused(problem(404, "unknown_id", "Unknown id.", detail, job_id=id))
        return web.json_response(body=msgspec.json.encode(_known_here(id, known)))

    async def _openapi(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(body=msgspec.json.encode(document()))

    async def _docs(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=page(), content_type="text/html")

    # --- what they have in common

    async def _taken(self, request: web.Request, event: Request, id: str, time_ms: int) -> web.StreamResponse:
        """Judge, publish, wait for the acknowledgement, answer."""
        now = Now(domain_ms=self._clock.now_ms(), wall_ms=self._clock.wall_ms())
        refusals = self._handler.foresee(event, now)
        if refusals:
            return _refused(problem_of(refusals))
        trace = request[SPAN].traceparent or f"00-{token_hex(16)}-{token_hex(8)}-01"
        # The same content under the same id is the same event: a retry gives the same ce_id.
        event_id = f"{id}/{content_digest(_content(event))[:16]}"
        record = message(event, key=id, id=event_id, source=SOURCE, time_ms=time_ms, traceparent=trace)
        try:
            await self._publisher.publish(record)
        except BusError as error:
            detail = f"the event may or may not be stored ({error}); send the same again with the same id"
            return _refused(problem(503, "not_acknowledged", "Kafka gave no acknowledgement.", detail, job_id=id))
        answer = Accepted(job_id=id, trace_id=trace[3:35])
        headers = {"Location": f"/v1/jobs/{quote(id, safe='')}", "traceparent": trace}
        return web.json_response(body=msgspec.json.encode(answer), status=202, headers=headers)

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handle) -> web.StreamResponse:
        """A span around every request, a problem document for whatever goes wrong."""
        span = self._spans.begin(
            f"{request.method} {_route(request)}",
            request.headers.get("traceparent", ""),
            {"http.request.method": request.method, "http.route": _route(request), "url.scheme": "http"},
            kind="server",
        )
        request[SPAN] = span
        self._in_flight += 1
        try:
            response = await self._answered(request, handler)
        except BaseException as error:
            span.end(error=repr(error))
            raise
        finally:
            self._in_flight -= 1
        _finish(span, response.status)
        return response

    async def _answered(self, request: web.Request, handle: Handle) -> web.StreamResponse:
        if request.host.rsplit(":", 1)[0] not in self._hosts and request.host not in self._hosts:
            detail = f"host {request.host!r} is not this machine; use http://127.0.0.1"
            return _refused(problem(403, "foreign_host", "Only for this machine.", detail, field="Host"))
        if self._in_flight > REQUESTS_IN_FLIGHT_MAX:
            detail = f"{REQUESTS_IN_FLIGHT_MAX} requests wait already; send it again in a second"
            return _refused(problem(503, "too_many_requests", "Too many requests wait.", detail))
        try:
            return await handle(request)
        except DecodeError as error:
            return _refused(problem_of([unreadable(error)]))
        except _NotJsonError as error:
            return _refused(
                problem(415, "not_json", "The body is not declared as JSON.", str(error), field="Content-Type")
            )
        except web.HTTPException as error:
            reason = _STATUS_NAMES.get(error.status, "http_error")
            return _refused(problem(error.status, reason, error.reason, _advice(error)))


class _NotJsonError(Exception):
    """The body is declared as something else than JSON."""


async def _json_body(request: web.Request) -> bytes:
    if request.content_type not in JSON_TYPES:
        raise _NotJsonError(f"content-type is {request.content_type}; send application/json")
    return await request.read()


def _content(event: Request) -> msgspec.Struct:
    """What makes two requests the same. Registrations count by their time: a later one is a new one."""
    if isinstance(event, ApplicationRegistered) or not hasattr(event, "spec"):
        return event
    content: msgspec.Struct = event.spec
    return content


def _refused(document: Problem) -> web.Response:
    headers = {"Retry-After": RETRY_AFTER_S} if document.status == 503 else None
    return web.Response(
        body=msgspec.json.encode(document), status=document.status, content_type=MEDIA_TYPE, headers=headers
    )


def _advice(error: web.HTTPException) -> str:
    if error.status == 413:
        return f"the body has more than {BODY_BYTES_MAX} bytes; move scripts and data into files"
    return f"{error.reason}; see /docs for what there is"


def _finish(span: Span, status: int) -> None:
    span.set("http.response.status_code", status)
    span.end(error=f"HTTP {status}" if status >= 500 else None)


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"


def _known_here(id: str, known: Known) -> KnownHere:
    job = isinstance(known, KnownJob)
    accepted = known if isinstance(known, KnownJob) else known.accepted
    return KnownHere(
        job_id=id,
        cluster=known.cluster,
        pools=known.pools if isinstance(known, KnownJob) else [known.accepted.pool],
        accepted_ms=accepted.accepted_ms,
        digest=accepted.digest,
        trace_id=known.trace[3:35],
        application=not job,
        amended_ms=known.amended.amended_ms if isinstance(known, KnownJob) and known.amended else None,
        revoked_ms=known.revoked.revoked_ms if known.revoked else None,
    )

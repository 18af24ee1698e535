"""What a person with the token may order over HTTP: submit, cancel, change priority, drain, undrain. Published like the CLI's.

Every handler is reached only after `server` has checked the token. Errors are one sentence, as everywhere in the console.
"""

from __future__ import annotations

import getpass
import secrets
from typing import Any

import msgspec
from aiohttp import web

from services.console import follow, orders, submission
from services.console.errors import ConsoleError, UsageError
from services.console.session import Session

BODY_BYTES_MAX = 1024 * 1024


class OrdersHttp:
    """The routes below `/api` that change something."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/jobs", self._submit),
            web.post("/api/jobs/{job}/cancel", self._cancel),
            web.post("/api/jobs/{job}/priority", self._priority),
            web.post("/api/nodes/{node}/drain", self._drain),
            web.post("/api/nodes/{node}/undrain", self._undrain),
        ]

    async def _submit(self, request: web.Request) -> web.Response:
        """One spec, event, or list of them, as `gpugrid submit FILE` takes them."""
        now_ms = self._session.clock().now_ms()
        user = _login_name()
        defaults = submission.Defaults(
            team=user, user=user, now_ms=now_ms, new_id=lambda kind: f"{kind}-{secrets.token_hex(3)}"
        )
        events = submission.events_of_document(await request.read(), "The request", defaults)
        return web.json_response({"sent": await follow.send_new(self._session, events)}, status=202)

    async def _cancel(self, request: web.Request) -> web.Response:
        job_id, body = request.match_info["job"], await _body(request)
        event = submission.cancellation(job_id, str(body.get("cause", "")), self._session.clock().now_ms())
        sent = await follow.send_about(self._session, job_id, event, "cancelled", anyway=False)
        return web.json_response({"sent": [sent]}, status=202)

    async def _priority(self, request: web.Request) -> web.Response:
        job_id, body = request.match_info["job"], await _body(request)
        event = submission.change(
            job_id, self._session.clock().now_ms(), priority=body.get("priority"), time_limit_s=None
        )
        sent = await follow.send_about(self._session, job_id, event, "changed", anyway=False)
        return web.json_response({"sent": [sent]}, status=202)

    async def _drain(self, request: web.Request) -> web.Response:
        body = await _body(request)
        deadline_s = body.get("deadline_s", 86_400.0)
        if not isinstance(deadline_s, int | float) or not 0 <= deadline_s <= 31_536_000:
            raise UsageError("deadline_s is a number of seconds, at most a year.")
        sent = await orders.drain_node(
            self._session, request.match_info["node"], deadline_s=float(deadline_s), cause=str(body.get("cause", ""))
        )
        return web.json_response({"sent": [sent]}, status=202)

    async def _undrain(self, request: web.Request) -> web.Response:
        sent = await orders.undrain_node(self._session, request.match_info["node"])
        return web.json_response({"sent": [sent]}, status=202)


async def _body(request: web.Request) -> dict[str, Any]:
    data = await request.read()
    try:
        document = msgspec.json.decode(data) if data else {}
    except msgspec.DecodeError:
        raise UsageError("The body is no JSON object.") from None
    if not isinstance(document, dict):
        raise UsageError("The body is no JSON object.")
    return document


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "page"


def error_response(error: Exception) -> web.Response:
    """One sentence; 400 for a wrong request, 409 for one that can't be carried out."""
    status = 400 if isinstance(error, UsageError) else 409 if isinstance(error, ConsoleError) else 503
    return web.json_response({"error": str(error)}, status=status)

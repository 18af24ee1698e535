"""The page's HTTP: static files, snapshot and stream, answers, login and orders, on one port.

Owns what a request may do. Reading is open to whoever reaches the port (loopback unless told otherwise); changing needs the
token. A foreign site can neither read (no cross-origin headers, the Host is checked) nor order (strict cookie, own header).
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

import msgspec
from aiohttp import web

from services.console.errors import ConsoleError, UsageError
from services.console.metering.report import By
from services.console.metering.report_output import report_csv, report_document, report_html
from services.console.page.access import FAILED_WAIT_S, SESSION_S_MAX, Access
from services.console.page.answers import explained, job_answer, report_answer
from services.console.page.follower import Follower
from services.console.page.hub import Hub
from services.console.page.orders_http import BODY_BYTES_MAX, OrdersHttp, error_response
from services.console.page.stream import Stream
from services.console.page.traces import trace_rows
from services.console.session import Session
from services.runtime.bus.port import BusError

COOKIE = "gpugrid-page"
OWN_HEADER = "X-Gpugrid"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
STATIC = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
SHUTDOWN_S_MAX = 1.0
"""Streams never end by themselves."""
REPORT_HOURS_MAX = 31 * 24.0
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; style-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageServer:
    """`start`, then `port` is known; `stop` ends everything."""

    def __init__(self, session: Session, access: Access, *, host: str, port: int, planning: bool) -> None:
        self._session = session
        self._access = access
        self._host = host
        self._wanted_port = port
        self._hub = Hub("starting")
        self._stream = Stream(self._hub)
        self.follower = Follower(session, self._hub, planning=planning)
        self.follower.on_delta = self._stream.publish
        self.follower.on_restart = self._stream.restart
        self._snapshot: tuple[tuple[str, int], bytes] = (("", -1), b"")
        self._runner: web.AppRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        app = web.Application(middlewares=[self._guard], client_max_size=BODY_BYTES_MAX)
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/static/{name}", self._static),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/api/snapshot", self._get_snapshot),
                web.get("/api/stream", self._get_stream),
                web.get("/api/jobs/{job}", self._get_job),
                web.get("/api/jobs/{job}/trace", self._get_trace),
                web.get("/api/report", self._get_report),
                web.get("/api/session", self._get_session),
                web.post("/api/login", self._login),
                web.post("/api/logout", self._logout),
                *OrdersHttp(self._session).routes(),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S_MAX)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._wanted_port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConsoleError(
                f"The page can't listen on {self._host}:{self._wanted_port} ({error.strerror or error}): choose another --port, or 0."
            ) from None
        self.port = self._runner.addresses[0][1]
        self._task = asyncio.create_task(self.follower.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._runner is not None:
            await self._runner.cleanup()

    async def wait(self) -> None:
        """Until the follower fails, which it does only by a mistake of ours."""
        if self._task is not None:
            await self._task

    # --- who may do what

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._host_is_ours(request.host):
            return web.json_response({"error": "This name is not the page's own."}, status=421)
        if request.method not in ("GET", "HEAD") and (refusal := self._refusal(request)) is not None:
            return refusal
        try:
            response = await handler(request)
        except (ConsoleError, BusError) as error:
            response = error_response(error)
        if not response.prepared:
            response.headers.update(SECURITY_HEADERS)
        return response

    def _host_is_ours(self, host: str) -> bool:
        """A name that a foreign site had resolved to this machine is not. Any name if the page listens for others, too."""
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return self._host not in ("127.0.0.1", "localhost", "::1") or name in LOOPBACK

    def _refusal(self, request: web.Request) -> web.Response | None:
        if OWN_HEADER not in request.headers:
            return web.json_response({"error": f"Send the header {OWN_HEADER}: 1 with every order."}, status=403)
        if request.path != "/api/login" and not self._may_change(request):
            return web.json_response(
                {"error": "Log in first: the token is shown by `gpugrid page --token`."}, status=401
            )
        return None

    def _may_change(self, request: web.Request) -> bool:
        header = request.headers.get("Authorization", "")
        bearer = header.removeprefix("Bearer ") if header.startswith("Bearer ") else None
        now_s = self._session.clock().wall_s()
        return self._access.may_change(cookie=request.cookies.get(COOKIE), bearer=bearer, wall_s=now_s)

    async def _get_session(self, request: web.Request) -> web.Response:
        return web.json_response({"may_change": self._may_change(request)})

    async def _login(self, request: web.Request) -> web.Response:
        try:
            token = str((await request.json())["token"])
        except (ValueError, KeyError, TypeError):
            raise UsageError('Send {"token": "…"}.') from None
        secret = self._access.login(token, self._session.clock().wall_s())
        if secret is None:
            await asyncio.sleep(FAILED_WAIT_S)
            return web.json_response({"error": "That is not the token; `gpugrid page --token` shows it."}, status=401)
        response = web.json_response({"may_change": True})
        response.set_cookie(COOKIE, secret, max_age=round(SESSION_S_MAX), httponly=True, samesite="Strict", path="/")
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        self._access.logout(request.cookies.get(COOKIE, ""))
        response = web.json_response({"may_change": False})
        response.del_cookie(COOKIE, path="/")
        return response

    # --- files and health

    async def _index(self, request: web.Request) -> web.Response:
        return _file("index.html")

    async def _static(self, request: web.Request) -> web.Response:
        return _file(request.match_info["name"])

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"service": "page"})

    async def _readyz(self, request: web.Request) -> web.Response:
        lost = self.follower.lost
        return web.json_response({"ready": not lost, "reason": lost or None}, status=503 if lost else 200)

    # --- what is known

    def _beat(self) -> bytes:
        document = {"now": self.follower.now_ms(), "version": self._hub.version, "lost": self.follower.lost}
        return b"event: beat\ndata: " + json.dumps(document).encode() + b"\n\n"

    async def _get_snapshot(self, request: web.Request) -> web.Response:
        await self.follower.ready.wait()
        key = (self._hub.epoch, self._hub.version)
        if self._snapshot[0] != key:
            body = self._hub.snapshot(self.follower.now_ms())
            self._snapshot = (key, await asyncio.to_thread(gzip.compress, body, 3))
        headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return web.Response(body=self._snapshot[1], content_type="application/json", headers=headers)

    async def _get_stream(self, request: web.Request) -> web.StreamResponse:
        if self._stream.full:
            return web.json_response({"error": "Too many browsers look at this page; close some."}, status=503)
        try:
            version = int(request.query["version"])
        except (KeyError, ValueError):
            raise UsageError("Name the version that you have: /api/stream?epoch=…&version=…") from None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **SECURITY_HEADERS})
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            async for event in self._stream.events(request.query.get("epoch", ""), version, self._beat):
                await response.write(event)
        return response

    async def _get_job(self, request: web.Request) -> web.Response:
        job_id, board = request.match_info["job"], self._hub.board
        explanation = explained(board, job_id, self.follower.now_ms())
        if explanation is None:
            raise ConsoleError(f"No job or application is named {job_id}.")
        explanation = await self.follower.placed(explanation)
        if job_id not in board.world.jobs:
            raise ConsoleError(f"{job_id} ended long ago and has just been left out of the page; `gpugrid why` has it.")
        return _json(job_answer(board, explanation, self.follower.now_ms()))

    async def _get_trace(self, request: web.Request) -> web.Response:
        return _json(await trace_rows(self._session, self._hub.board, request.match_info["job"]))

    async def _get_report(self, request: web.Request) -> web.Response:
        try:
            by, hours = By(request.query.get("by", "team")), float(request.query.get("hours", "24"))
        except ValueError:
            raise UsageError(f"Reports are by {', '.join(By)} and over a number of hours.") from None
        if not 0 < hours <= REPORT_HOURS_MAX:
            raise UsageError(
                f"Reports go back at most {REPORT_HOURS_MAX:.0f} hours here; `gpugrid report` goes further."
            )
        now_ms = self.follower.now_ms()
        report = report_answer(self._hub.board, by, hours, now_ms)
        wanted = request.query.get("format", "json")
        if wanted == "csv":
            headers = {"Content-Disposition": f'attachment; filename="gpu-hours-by-{by.value}.csv"'}
            return web.Response(text=report_csv(report), content_type="text/csv", headers=headers)
        if wanted == "html":
            headers = {"Content-Disposition": f'attachment; filename="gpu-hours-by-{by.value}.html"'}
            return web.Response(text=report_html(report, now_ms), content_type="text/html", headers=headers)
        return _json(report_document(report))


def _json(document: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")


def _file(name: str) -> web.Response:
    """A file of the page. Names have no folders, so nothing outside can be named."""
    folder = resources.files("services.console.page") / "static"
    suffix = name[name.rfind(".") :]
    if suffix not in STATIC or "/" in name or not (folder / name).is_file():
        return web.json_response({"error": "No such file."}, status=404)
    return web.Response(body=(folder / name).read_bytes(), content_type=STATIC[suffix], charset="utf-8")

"""The loopback HTTP endpoint of a process: /healthz (alive), /readyz (why not ready, if not), /metrics (Prometheus).

Owns: the server and the file `RUN_DIR/health/INSTANCE.json` that tells others its port and pid. Refuses to listen on
anything but loopback. Read next: `metrics.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from aiohttp import web

from services.runtime.metrics import Metrics

HOST = "127.0.0.1"
FOLDER = "health"
SHUTDOWN_S_MAX = 1.0
"""Scrapes take milliseconds; a client that hangs must not hold up the end of the process."""

NotReady = Callable[[], str | None]
"""Why the service can't do its work now, in a few words; None when it can."""


class HealthFile(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says. It outlives a killed process: compare the pid."""

    service: str
    instance_id: str
    pid: int
    port: int


class HealthServer:
    """Start it before the slow parts of a start, so that a supervisor sees progress."""

    def __init__(
        self,
        service: str,
        instance_id: str,
        *,
        run_dir: str | Path,
        port: int,
        metrics: Metrics,
        not_ready: NotReady,
    ) -> None:
        self._service = service
        self._instance_id = instance_id
        self._path = health_path(run_dir, instance_id)
        self._wanted_port = port
        self._metrics = metrics
        self._not_ready = not_ready
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._expose)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S_MAX)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, HOST, self._wanted_port).start()
        except OSError as error:
            raise OSError(
                error.errno, f"port {self._wanted_port} on {HOST} is taken: choose another GPUGRID_HEALTH_PORT, or 0"
            ) from error
        self.port = self._runner.addresses[0][1]
        self._write()

    async def stop(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        if self._runner is not None:
            await self._runner.cleanup()

    def _write(self) -> None:
        content = HealthFile(service=self._service, instance_id=self._instance_id, pid=os.getpid(), port=self.port)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        fresh.write_bytes(msgspec.json.encode(content))
        fresh.replace(self._path)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"service": self._service, "instance_id": self._instance_id, "pid": os.getpid()})

    async def _readyz(self, request: web.Request) -> web.Response:
        reason = self._not_ready()
        if reason is None:
            return web.json_response({"ready": True})
        return web.json_response({"ready": False, "reason": reason}, status=503)

    async def _expose(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics.exposition(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})


def health_path(run_dir: str | Path, instance_id: str) -> Path:
    return Path(run_dir) / FOLDER / f"{instance_id}.json"


def read_health(run_dir: str | Path, instance_id: str) -> HealthFile | None:
    """What a process has written about itself; None if it has not, or not yet."""
    try:
        return msgspec.json.decode(health_path(run_dir, instance_id).read_bytes(), type=HealthFile)
    except (FileNotFoundError, msgspec.DecodeError):
        return None

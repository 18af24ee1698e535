"""Intake as a running service: the handler under faust and the HTTP door beside it, in one process on one loop.

Owns: what is started in which order, counting refusals, and the file that tells others the HTTP port. Refuses: rules.
The door opens before faust has its partitions: it only publishes, so nothing it takes can be lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from schemas.catalog import Catalog
from schemas.codec import decode_payload
from schemas.deadletters import DeadLetter, dead_letter
from schemas.messages import message
from schemas.records import Message, Now, Record
from services.intake.core.handler import SERVICE, SOURCE, IntakeHandler
from services.intake.shell.http import HOST, HttpDoor
from services.intake.shell.measured import shipped_speeds
from services.intake.shell.publisher import Publisher
from services.runtime.config import ConfigError, ServiceConfig, catalog_in
from services.runtime.metrics import Metrics
from services.runtime.surroundings import serve_handler_in, surrounded

SHUTDOWN_S_MAX = 2.0
"""Requests wait for one acknowledgement; a client that hangs must not hold up the end of the process."""

log = logging.getLogger(__name__)


class IntakeConfig(ServiceConfig, frozen=True, kw_only=True):
    """`GPUGRID_CATALOG`: the catalog file. `GPUGRID_HTTP_PORT`: loopback port of the HTTP door; 0 takes a free one."""

    catalog: Annotated[str, Meta(min_length=1)]
    http_port: Annotated[int, Meta(ge=0, le=65535)] = 8470


class DoorFile(msgspec.Struct, frozen=True, kw_only=True):
    """`RUN_DIR/http/INSTANCE.json`: where the door is. It outlives a killed process: compare the pid."""

    pid: int
    port: int


class CountedHandler(IntakeHandler):
    """Counts what is refused, by reason."""

    def __init__(self, catalog: Catalog, metrics: Metrics) -> None:
        super().__init__(catalog, measured=shipped_speeds())
        self._metrics = metrics

    def handle(self, record: Record, now: Now) -> list[Message]:
        answers = super().handle(record, now)
        for answer in answers:
            if answer.topic == "dead-letters" and answer.value is not None:
                letter = decode_payload("dead-letter.v1", answer.value)
                assert isinstance(letter, DeadLetter), "we have just made it"
                self._metrics.rejected.labels(record.topic, letter.reason).inc()
                self._metrics.dead_letters.labels(letter.reason).inc()
        return answers


async def run_intake(config: IntakeConfig, environ: Mapping[str, str], stop: asyncio.Event) -> None:
    """Run until `stop` is set."""
    catalog = catalog_in(config.catalog)
    async with surrounded(SERVICE, config, environ) as around:
        handler = CountedHandler(catalog, around.metrics)
        publisher = Publisher(around.bus, f"{around.instance_id}-http")
        await publisher.start()
        door = HttpDoor(handler, publisher, around.clock, around.tracing)
        runner = web.AppRunner(door.application(), access_log=None, shutdown_timeout=SHUTDOWN_S_MAX)
        try:
            await _open(runner, config, around.instance_id)
            await serve_handler_in(around, handler, config, stop, dead_letter=unhandled)
        finally:
            await runner.cleanup()
            await publisher.stop()


def unhandled(record: Record, error: Exception, now: Now) -> Message:
    """The dead letter of a record on which the handler itself failed: a fault of ours, kept with the original bytes."""
    detail = f"intake failed on it: {error!r}; report this, then send it again"
    letter = dead_letter(record, service=SERVICE, reason="internal_error", detail=detail, now=now)
    origin = f"{record.topic}/{record.partition}"
    return message(letter, key=origin, id=f"{origin}/{record.offset}/failed", source=SOURCE, time_ms=now.domain_ms)


async def _open(runner: web.AppRunner, config: IntakeConfig, instance_id: str) -> None:
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, config.http_port).start()
    except OSError:
        raise ConfigError(
            f"port {config.http_port} on {HOST} is taken: choose another GPUGRID_HTTP_PORT, or 0 for a free one."
        ) from None
    port = runner.addresses[0][1]
    path = door_path(config.run_dir, instance_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_bytes(msgspec.json.encode(DoorFile(pid=os.getpid(), port=port)))
    fresh.replace(path)
    log.info("HTTP on http://%s:%d, documented at /docs", HOST, port)


def door_path(run_dir: str | Path, instance_id: str = SERVICE) -> Path:
    """The file that tells an intake's HTTP port."""
    return Path(run_dir) / "http" / f"{instance_id}.json"

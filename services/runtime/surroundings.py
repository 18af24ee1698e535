"""Everything around a service's own code, made from its configuration in one place and taken down in order.

    async with surrounded("allocator", config, os.environ) as around:
        around.not_ready = None      # when it is
        ...                          # around.bus, around.clock, around.tracing, around.metrics

Owns: making and stopping clock, bus, tracing, metrics and health endpoint, and `serve_handler`, the whole life of a service
that is one handler under faust. Refuses: business. Read next: `config.py`, `faust_hop.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from services.runtime.bus.kafka import KafkaBus
from services.runtime.clock import Clock
from services.runtime.config import ServiceConfig, clock_of
from services.runtime.handler import Handler
from services.runtime.health import HealthServer
from services.runtime.hop import DeadLetter
from services.runtime.metrics import LAG_PERIOD_S, Metrics
from services.runtime.process import settle_memory
from services.runtime.tracing import Tracing, traced_handle

if TYPE_CHECKING:
    from services.runtime.faust_hop import FaustHop

READY_POLL_S = 0.1
"""How late /readyz may learn that partitions are assigned."""


@dataclass
class Surroundings:
    """`not_ready` is what /readyz answers: a reason, or None."""

    service: str
    instance_id: str
    bus: KafkaBus
    clock: Clock
    tracing: Tracing
    metrics: Metrics
    not_ready: str | None = "starting"
    health_port: int = 0


@contextlib.asynccontextmanager
async def surrounded(service: str, config: ServiceConfig, environ: Mapping[str, str]) -> AsyncIterator[Surroundings]:
    """Make, start, and finally stop what a service needs."""
    instance_id = config.instance_id or service
    clock = clock_of(config.clock)
    metrics = Metrics(service, instance_id)
    tracing = Tracing(service, instance_id, run_dir=config.run_dir, environ=environ)
    around = Surroundings(service, instance_id, KafkaBus(config.bootstrap), clock, tracing, metrics)

    health = HealthServer(
        service,
        instance_id,
        run_dir=config.run_dir,
        port=config.health_port,
        metrics=metrics,
        not_ready=lambda: around.not_ready,
    )
    try:
        await health.start()
        around.health_port = health.port
        yield around
    finally:
        await health.stop()
        tracing.stop()


async def serve_handler(
    service: str,
    handler: Handler,
    config: ServiceConfig,
    environ: Mapping[str, str],
    stop: asyncio.Event,
    *,
    dead_letter: DeadLetter | None = None,
) -> None:
    """Run one handler under faust until `stop` is set, traced, measured, with a health endpoint."""
    async with surrounded(service, config, environ) as around:
        await serve_handler_in(around, handler, config, stop, dead_letter=dead_letter)


async def serve_handler_in(
    around: Surroundings,
    handler: Handler,
    config: ServiceConfig,
    stop: asyncio.Event,
    *,
    dead_letter: DeadLetter | None = None,
) -> None:
    """The same, for a service that has more to run in its surroundings (intake's HTTP endpoint)."""
    # faust is imported only where it runs: 0.6 s and 60 MB that the allocator and executors needn't pay.
    from services.runtime.faust_hop import FaustConfig, FaustHop

    group = f"gpugrid-{around.service}"
    data_dir = Path(config.run_dir) / "faust" / around.instance_id
    data_dir.mkdir(parents=True, exist_ok=True)
    hop = FaustHop(
        handler,
        FaustConfig(config.bootstrap, group, around.instance_id, data_dir),
        around.clock,
        dead_letter=dead_letter,
        handle=traced_handle(around.tracing, around.service, group),
        observe=around.metrics.observe_batch,
    )
    settle_memory()
    watching = asyncio.create_task(_watch(around, hop))
    try:
        await hop.run(stop)
    finally:
        watching.cancel()


async def _watch(around: Surroundings, hop: FaustHop) -> None:
    lag_at_s = 0.0
    while True:
        waits_for = f"waiting for partitions and their history ({hop.records_recovered} records read)"
        around.not_ready = None if hop.ready else waits_for
        if around.clock.wall_s() >= lag_at_s:
            around.metrics.set_lag(hop.lag())
            lag_at_s = around.clock.wall_s() + LAG_PERIOD_S
        await asyncio.sleep(READY_POLL_S)

"""A day through all services without Kafka: their real handlers and loops on the memory bus, in virtual time.

Owns the wiring and its repeatability: the same day gives the same bytes in every topic. The virtual clock runs at the
demo's speed, so that wall-clock waits (forecast, telemetry, ticks) weigh against domain time as they do live.
A composition root: it imports the other services' public classes. Read next: `core/outcome.py`, `demo.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from schemas.topics import TOPICS
from services.allocator.shell.warmup import use_kernel_cache
from services.replay.core.catalog import GPU_MODEL, PARTITION, catalog_of, node_names
from services.replay.core.day import Day
from services.replay.core.observation import Observation
from services.replay.core.outcome import Outcome, outcome
from services.replay.core.schedule import arrivals, opening
from services.replay.shell.collect import observed
from services.replay.shell.publisher import Publisher
from services.runtime.bus.memory import MemoryBus
from services.runtime.clock import Clock
from services.runtime.handler import Handler
from services.runtime.hop import run_hop
from services.runtime.virtual import VirtualClock, run_virtual

GPUGRID = "gpugrid"
SPEED = 720.0
"""Domain seconds per virtual wall second, as in the demo: a day in two minutes."""
LEAD_S = 2.0
"""Virtual wall seconds for nodes, applications and first forecasts to appear before the day's first job."""
TAIL_S = 1.0
"""Virtual wall seconds after the day's end, so that what ended at the last moment is reported."""


@dataclass(frozen=True, slots=True)
class Parts:
    """How to make the services that take no part in the decision itself; tests may hand in simpler ones."""

    forecaster: Callable[[Day], Handler]
    telemetry: Callable[[Day], Handler]


@dataclass(frozen=True, slots=True)
class Simulated:
    """One simulated day. `digest`: of every record in every topic; equal digests mean equal runs, bit for bit."""

    outcome: Outcome
    observation: Observation
    digest: str
    took_s: float


def simulate_day(day: Day, parts: Parts | None = None, *, speed: float = SPEED) -> Simulated:
    """Run the day to its end. Raises what any service raises: nothing is restarted here."""
    use_kernel_cache()
    begun_s = time.perf_counter()
    chosen = parts or real_parts()

    async def main(clock: VirtualClock) -> tuple[Observation, str]:
        bus = MemoryBus({topic.name: topic.partitions for topic in TOPICS}, clock=clock)
        await _run(day, chosen, bus, clock)
        return await observed(bus, day), _digest(bus)

    start_ms = day.start_ms - round(LEAD_S * speed * 1000)
    observation, digest = run_virtual(main, start_ms, speed=speed)
    measured = outcome(day, GPUGRID, observation.attempts(), observation.holds)
    return Simulated(measured, observation, digest, time.perf_counter() - begun_s)

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
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from schemas.catalog import Catalog
from schemas.topics import TOPICS
from services.allocator.shell.warmup import use_kernel_cache
from services.replay.core.catalog import PARTITION, catalog_of, node_names
from services.replay.core.comparison import GPUGRID, Comparison, compare, with_baselines
from services.replay.core.day import Day
from services.replay.core.latency import Hop, latencies
from services.replay.core.observation import Observation
from services.replay.core.outcome import Outcome, outcome
from services.replay.core.schedule import arrivals, history, registrations
from services.replay.core.workload import build_day
from services.replay.extract import DAYS
from services.replay.shell.bundled import bundled_trace, day_of_seed, trace_of_file
from services.replay.shell.collect import observed
from services.replay.shell.publisher import Publisher
from services.runtime.bus.memory import MemoryBus
from services.runtime.clock import Clock
from services.runtime.handler import Handler
from services.runtime.hop import run_hop
from services.runtime.virtual import VirtualClock, run_virtual
from services.telemetry.shell.agent import Agent, AgentSettings
from services.telemetry.shell.simulated import SimulatedSource

SEED_DEFAULT = 2
"""2017-11-10: by its gain over priority backfill neither among the best three nor among the worst three of seeds 1 to 10."""
SPEED = 720.0
"""Domain seconds per virtual wall second, as in the demo: a day in two minutes."""
FULL_EVERY_S = 900.0
"""Domain seconds between two questions to full mode, if it is on: a hundred answers a day, each as slow as on a real machine."""
LEAD_S = 2.0
"""Virtual wall seconds for nodes to appear before the day's first moment."""
TAIL_S = 1.0
"""Virtual wall seconds after the day's end, so that what ended at the last moment is reported."""


@dataclass(frozen=True, slots=True)
class Parts:
    """How to make the services that take no part in the decision itself; tests may hand in simpler ones."""

    forecaster: Callable[[Day], Handler]
    telemetry: Callable[[Day], Handler]


def real_parts() -> Parts:
    """The services' own handlers, the forecaster with its bundled model."""
    from services.forecaster.shell.app import make_handler
    from services.telemetry.core.handler import TelemetryHandler

    return Parts(
        forecaster=lambda day: make_handler(catalog_of(day)),
        telemetry=lambda day: TelemetryHandler(catalog_of(day)),
    )


@dataclass(frozen=True, slots=True)
class Simulated:
    """One simulated day. `digest`: of every record in every topic; equal digests mean equal runs, bit for bit. `answers`: of
    full mode, by what became of them."""

    day: Day
    outcome: Outcome
    observation: Observation
    hops: dict[str, Hop]
    decisions: int
    rejected: int
    violations: list[str]
    dead_letters: int
    digest: str
    took_s: float
    answers: dict[str, int]


def simulate_day(day: Day, parts: Parts | None = None, *, speed: float = SPEED, full_s: float = 0.0) -> Simulated:
    """Run the day to its end. Raises what any service raises: nothing is restarted here.

    `full_s`: the solver's deterministic seconds per answer of full mode, which comes so many domain seconds later; 0: off.
    """
    use_kernel_cache()
    begun_s = time.perf_counter()
    chosen = parts or real_parts()
    answers: Counter[str] = Counter()

    async def main(clock: VirtualClock) -> tuple[Observation, str]:
        bus = MemoryBus({topic.name: topic.partitions for topic in TOPICS}, clock=clock)
        await _run(day, chosen, bus, clock, full_s, answers)
        return await observed(bus, day), _digest(bus)

    start_ms = day.start_ms - round(LEAD_S * speed * 1000)
    observation, digest = run_virtual(main, start_ms, speed=speed)
    return Simulated(
        day=day,
        outcome=outcome(day, GPUGRID, observation.attempts(), observation.holds),
        observation=observation,
        hops=latencies(observation.marks.values()),
        decisions=observation.decisions,
        rejected=observation.rejected,
        violations=observation.violations,
        dead_letters=observation.dead_letters,
        digest=digest,
        took_s=time.perf_counter() - begun_s,
        answers=dict(sorted(answers.items())),
    )


@dataclass(frozen=True, slots=True)
class DayOptions:
    """Which day to build. `day` None: the one the seed picks. `trace` None: the bundled one; else a CSV file, or the name of
    a bundled day."""

    seed: int = SEED_DEFAULT
    hours: float = 24.0
    gpus: int = 64
    trace: Path | None = None
    day: str | None = None


def day_of(options: DayOptions) -> Day:
    """Build it. Raises ValueError (TraceError is one) with one sentence for people."""
    named = str(options.trace) if str(options.trace) in DAYS else None
    trace = bundled_trace() if options.trace is None or named else trace_of_file(options.trace)
    name = options.day or named or day_of_seed(trace, options.seed)
    return build_day(trace, name, options.seed, gpus=options.gpus, hours=options.hours)


def simulate_days(
    options: Sequence[DayOptions], *, workers: int = 0, done: Callable[[int, Simulated], None] | None = None
) -> Comparison:
    """Simulate each day and compare it with the simple policies, `workers` at a time (0: one per core, 1: in this process).

    `done(index, simulated)` as days finish. Results don't depend on `workers`.
    """
    count = min(workers or os.cpu_count() or 1, len(options))
    found: dict[int, Simulated] = {}
    if count <= 1:
        results: Iterable[tuple[int, Simulated]] = ((index, _one(entry)) for index, entry in enumerate(options))
        for index, simulated in results:
            found[index] = simulated
            if done is not None:
                done(index, simulated)
    else:
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            waiting = {pool.submit(_one, entry): index for index, entry in enumerate(options)}
            for future in as_completed(waiting):
                index = waiting[future]
                found[index] = future.result()
                if done is not None:
                    done(index, found[index])
    return compare([with_baselines(found[index].day, found[index].outcome) for index in range(len(options))])


def _one(options: DayOptions) -> Simulated:
    return simulate_day(day_of(options))


def _digest(bus: MemoryBus) -> str:
    digest = hashlib.sha256()
    for topic in TOPICS:
        for record in bus.records(topic.name):
            digest.update(repr((record.topic, record.partition, record.offset, record.key, record.headers)).encode())
            digest.update(record.value or b"")
    return digest.hexdigest()


async def _run(day: Day, parts: Parts, bus: MemoryBus, clock: Clock, full_s: float, answers: Counter[str]) -> None:
    """All services until a moment after the day's end. The first one that fails ends the run with its exception."""
    from services.allocator.core.config import Policy
    from services.allocator.core.decide import Settings
    from services.allocator.shell.full_mode import FullMode, InlineSolver
    from services.allocator.shell.loop import Allocator
    from services.executor.shell.drivers.simulated import SimulatedDriver
    from services.executor.shell.journal_store import MemoryJournal
    from services.executor.shell.loop import Executor
    from services.executor.shell.loop import Settings as ExecutorSettings
    from services.intake.core.handler import IntakeHandler

    catalog, nodes = catalog_of(day), node_names(day)
    memory_mib = {day.pool: catalog.clusters[day.cluster].pools[day.pool].memory_mib}
    settings = Settings(policy=Policy(), memory_mib=memory_mib, code_version="simulation", writer="simulate")
    full_mode = None
    if full_s > 0:
        count = lambda outcome, _: answers.update([outcome])  # noqa: E731
        full_mode = FullMode(InlineSolver(clock, full_s / SPEED), full_s, FULL_EVERY_S / SPEED, count)
    allocator = Allocator(bus, clock, catalog, lambda _: settings, instance_id="a0", full_mode=full_mode)
    executor = Executor(
        ExecutorSettings(nodes=tuple(nodes), cluster=day.cluster, partition=PARTITION, client_id="executor"),
        bus,
        clock,
        SimulatedDriver(clock),
        lambda _: MemoryJournal(),
    )
    stop = asyncio.Event()
    services = [
        run_hop(IntakeHandler(catalog), bus, clock, "intake", client_id="intake"),
        run_hop(parts.forecaster(day), bus, clock, "forecaster", client_id="forecaster"),
        run_hop(parts.telemetry(day), bus, clock, "telemetry", client_id="telemetry"),
        allocator.run(stop),
        executor.run(stop),
        _agent(day, catalog, bus, clock).run(stop),
    ]
    running = [asyncio.ensure_future(service) for service in services]
    upstream = asyncio.ensure_future(_upstream(day, bus, clock))
    try:
        done, _ = await asyncio.wait([upstream, *running], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if not upstream.done():
            raise RuntimeError("a service of the simulation ended before the day did")
    finally:
        for task in [upstream, *running]:
            task.cancel()
        await asyncio.gather(upstream, *running, return_exceptions=True)


def _agent(day: Day, catalog: Catalog, bus: MemoryBus, clock: Clock) -> Agent:
    """One process that plays the agents of all nodes."""
    settings = AgentSettings(nodes=tuple(node_names(day)), cluster=day.cluster, pool=day.pool, partition=PARTITION)
    return Agent(settings, bus, clock, SimulatedSource(catalog.clusters[day.cluster].pools[day.pool], clock.now_ms))


async def _upstream(day: Day, bus: MemoryBus, clock: Clock) -> None:
    publisher = Publisher(bus, clock)
    await publisher.publish([*history(day, PARTITION), *registrations(day), *arrivals(day, PARTITION)])
    await clock.sleep_until(day.end_ms)
    await clock.sleep_wall(TAIL_S)
    await publisher.close()

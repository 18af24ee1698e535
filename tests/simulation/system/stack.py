"""All services of one simulated cluster: their real handlers and loops as processes that can die, on one memory bus.

Owns: the wiring, names, clocks (each life may have a wrong one), and the upstream that publishes the world. Refuses: faults
(`faults.py`) and judgement (`check_*.py`). Read next: `life.py`, `machine.py`, `faults.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import msgspec

from schemas.topics import TOPICS
from services.allocator.core.config import Policy
from services.allocator.core.decide import Decided, Settings
from services.allocator.shell.intake_batch import Batch
from services.allocator.shell.loop import Allocator
from services.allocator.shell.owner import ClusterOwner
from services.executor.shell.drivers.cutting import SharedMachine
from services.executor.shell.loop import Executor
from services.executor.shell.loop import Settings as ExecutorSettings
from services.forecaster.core.handler import ForecasterHandler
from services.forecaster.core.handler import Settings as ForecasterSettings
from services.intake.core.handler import IntakeHandler
from services.runtime.bus.faults import FaultPlan
from services.runtime.bus.memory import MemoryBus
from services.runtime.bus.port import BusError, SendUnknownError
from services.runtime.handler import Handler
from services.runtime.hop import Hop
from services.runtime.virtual import VirtualClock
from services.telemetry.core.handler import TelemetryHandler
from services.telemetry.shell.agent import Agent, AgentSettings
from services.telemetry.shell.simulated import SimulatedSource
from tests.simulation.system.life import SESSION_S, Life, Process
from tests.simulation.system.machine import Machine, MachineDriver, MachineJournal
from tests.simulation.system.machine_cards import MachineCutter, SharedDriver, TrueCards
from tests.simulation.system.world import CLUSTER, PARTITIONS, POOL, SPAN_MS, START_MS, World
from tests.simulation.system.world_mixed import OLD
from tests.simulation.system.world_slots import CARDS, HALF, HALVES, MACHINE, machine_of

SPEED = 20.0
"""Domain seconds per wall second: two hours in six minutes; a node is lost after one, which are twenty of domain time."""
SAMPLE_S = 10.0
"""Wall seconds between an agent's samples; suspicion comes after three of them, loss after six."""
TICK_S = 2.5
"""Wall seconds between ticks of handlers; below telemetry's own idea of having stood still."""
POLICY = Policy(iterations=4, step_s=600, steps=18, replan_s=300)
"""A small budget on a coarse grid: the simulation is about books, not about good plans."""
RESEND_S = 0.2

HANDLED = ("intake-0", "intake-1", "forecaster", "telemetry")
ALLOCATORS = ("allocator-0", "allocator-1")


class Stack:
    """Every process by name. `tell(time_s, who, what)` keeps the story."""

    def __init__(
        self, world: World, clock: VirtualClock, plan: FaultPlan, skew_of: Callable[[str, int], tuple[int, int]]
    ) -> None:
        self.world = world
        self.clock = clock
        self.bus = MemoryBus(
            {topic.name: PARTITIONS for topic in TOPICS}, clock=clock, faults=plan, session_timeout_s=SESSION_S
        )
        self.refused_plans: list[str] = []
        self.told: list[tuple[int, str, str]] = []
        self.processes: dict[str, Process] = {}
        self.machines: dict[str, Machine] = {}
        self.sources: dict[str, SimulatedSource] = {}
        self._skew_of = skew_of
        self._dice = Random(f"{world.seed}/machines")
        for name in world.nodes:
            machine_clock = self._clock_of(f"machine-{name}", 0)
            gpus = CARDS if name == MACHINE else world.old_nodes.get(name, world.node_gpus)
            self.machines[name] = Machine(name, gpus, clock, machine_clock, self._dice)
        self.cards: TrueCards | None = None
        if world.sharing is not None:
            whole = self.machines[MACHINE]
            self.machines[HALVES] = Machine(HALVES, 2 * CARDS, clock, whole.clock, self._dice)
            dice = Random(f"{world.seed}/cards")
            self.cards = TrueCards(CARDS, POOL, clock, dice, START_MS + SPAN_MS)
        self._add_processes()

    def on(self, machine: str) -> list[Machine]:
        """What is one machine to the weather: its processes and journals, by node."""
        return [found for name, found in self.machines.items() if machine in (name, machine_of(name))]

    def tell(self, who: str, what: str) -> None:
        self.told.append((self.clock.now_ms(), who, what))

    def start(self) -> None:
        for process in self.processes.values():
            process.start()

    async def end(self) -> None:
        for process in self.processes.values():
            await process.end()
        for machine in self.machines.values():
            for proc in machine.procs.values():
                if proc.watcher is not None:
                    proc.watcher.cancel()

    async def upstream(self) -> None:
        """Publish the world, each thing at its moment; an unknown send is sent again."""
        producer = self.bus.producer("upstream")
        await producer.start()
        for entry in self.world.publications:
            await self.clock.sleep_until(entry.due_ms)
            while True:
                try:
                    await producer.send(entry.message)
                    break
                except SendUnknownError:
                    await self.clock.sleep_wall(RESEND_S)
                    producer = self.bus.producer("upstream")
                    await producer.start()

    def _add_processes(self) -> None:
        catalog = self.world.catalog
        self._hop("intake-0", "intake", lambda: IntakeHandler(catalog))
        self._hop("intake-1", "intake", lambda: IntakeHandler(catalog))
        self._hop("forecaster", "forecaster", lambda: ForecasterHandler(catalog, ForecasterSettings()))
        self._hop("telemetry", "telemetry", lambda: TelemetryHandler(catalog))
        for name in ALLOCATORS:
            self._add(name, self._allocator)
        for node in self.world.nodes:
            self._add(f"executor-{node}", self._executor_of(node), forgiven=_disk_or_bus)
            pool = catalog.clusters[CLUSTER].pools[self._pool_of(node)]
            if node == MACHINE or node in self.world.old_nodes:
                pool = msgspec.structs.replace(pool, node_gpus=self.machines[node].gpus)
            self.sources[node] = SimulatedSource(pool, self.clock.now_ms)
            self._add(f"agent-{node}", self._agent_of(node))

    def _pool_of(self, node: str) -> str:
        return OLD if node in self.world.old_nodes else POOL

    def _add(self, name: str, main, *, forgiven=lambda error: isinstance(error, BusError)) -> None:
        self.processes[name] = Process(
            name,
            self.bus,
            lambda life: self._clock_of(name, life),
            main,
            forgiven=forgiven,
            tell=self.tell,
        )

    def _clock_of(self, name: str, life: int) -> VirtualClock:
        domain_ms, wall_ms = self._skew_of(name, life)
        return self.clock.skewed(domain_ms=domain_ms, wall_ms=wall_ms)

    def _hop(self, name: str, group: str, make: Callable[[], Handler]) -> None:
        async def main(life: Life) -> None:
            hop = Hop(
                make(), life.bus, life.clock, group, client_id=name, instance_id=name, tick_period_s=TICK_S
            )  # without dead letters: an exception of a handler is a bug to be seen
            await hop.run()

        self._add(name, main)

    async def _allocator(self, life: Life) -> None:
        memory_mib = {name: pool.memory_mib for name, pool in self.world.catalog.clusters[CLUSTER].pools.items()}
        settings = Settings(policy=POLICY, memory_mib=memory_mib, code_version="simulation", writer=life.name)

        def observe(owner: ClusterOwner, decided: Decided, batch: Batch, elapsed_s: float) -> None:
            for sentence in decided.violations:
                self.refused_plans.append(f"decision {decided.record.sequence}: the plan was refused: {sentence}")

        allocator = Allocator(
            life.bus, life.clock, self.world.catalog, lambda _: settings, instance_id=life.name, observe=observe
        )
        await allocator.run(asyncio.Event())

    def _executor_of(self, node: str):
        async def main(life: Life) -> None:
            machines = {machine.name: machine for machine in self.on(node)}
            life.clock = _machine_clock(life, machines[node])
            drivers = {name: MachineDriver(life, machine, self._dice) for name, machine in machines.items()}
            sharing, cards = self.world.sharing, self.cards
            shared = cutter = None
            if node == MACHINE and sharing is not None and cards is not None:
                shared = SharedMachine(name=node, cards=CARDS, whole=POOL, slots={HALF: sharing.slots})
                cutter = MachineCutter(life, cards, self._dice)
            executor = Executor(
                ExecutorSettings(
                    nodes=tuple(machines),
                    cluster=CLUSTER,
                    partition=self.world.partition,
                    client_id=f"executor-{node}",
                    shared=shared,
                ),
                life.bus,
                life.clock,
                drivers[node] if shared is None else SharedDriver(drivers),
                lambda name: MachineJournal(life, machines[name]),
                cutter=cutter,
            )
            await executor.run()

        return main

    def _agent_of(self, node: str):
        async def main(life: Life) -> None:
            settings = AgentSettings(
                nodes=(node,),
                cluster=CLUSTER,
                pool=self._pool_of(node),
                partition=self.world.partition,
                client_id=f"agent-{node}",
                period_s=SAMPLE_S,
                slots={HALF: self.world.sharing.half} if node == MACHINE and self.world.sharing is not None else {},
            )
            await Agent(settings, life.bus, life.clock, self.sources[node]).run()

        return main


def _machine_clock(life: Life, machine: Machine):
    from tests.simulation.system.life import LifeClock

    return LifeClock(life, machine.clock)


def _disk_or_bus(error: BaseException) -> bool:
    return isinstance(error, BusError | OSError)


def digest_bytes(bus: MemoryBus) -> bytes:
    """Every record of every topic, in order."""
    return msgspec.msgpack.encode(
        [
            (record.topic, record.partition, record.offset, record.key, record.value, record.headers)
            for topic in TOPICS
            for record in bus.records(topic.name)
        ]
    )

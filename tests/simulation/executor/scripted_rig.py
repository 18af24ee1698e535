"""Executors whose driver does what a test says: starts that take long, applications that serve or end, answers nobody asked for; and two of
them on one bus for gangs."""

from __future__ import annotations

import asyncio

from schemas.executions import FailureCause
from services.executor.core.journal import RunFacts
from services.executor.core.reports import Exit, Progress
from services.executor.shell.drivers.port import Answer, NoLongerWantedError, Order, Prepared
from services.executor.shell.drivers.simulated import SimulatedDriver, SimulatedRun
from services.runtime.virtual import VirtualClock, run_virtual
from tests.unit.executor.executor_rig import START_MS, Rig, assignment, placed, virtually


class Scripted(SimulatedDriver):
    """Applications that end, serve and let go when the test says so; nodes with the models it names."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.models: dict[str, str] = {}
        self.ends: list[asyncio.Event] = []
        self.serving = False
        self.drained = asyncio.Event()
        self.said: list[Answer | Progress] = []
        self.told: list[tuple[int, ...]] = []
        self.start_s = 0.0
        self.queues = False
        self.tell_s = 0.0

    async def prepare(self, order: Order) -> Prepared:
        return Prepared(gpu_model=self.models.get(order.node, "H100"), driver="1", port=20_000)

    async def start(self, order: Order) -> SimulatedRun:
        await self._clock.sleep_wall(self.start_s)
        if self.queues:
            await order.unwanted.wait()
            raise NoLongerWantedError
        run = self._scripted(await super().start(order))
        self.ends.append(run.crashed)
        return run

    async def adopt(self, order: Order, facts: RunFacts | None) -> SimulatedRun | None:
        """The run that was started last: it may have ended while nobody looked."""
        plain = await super().adopt(order, facts)
        if plain is None:
            return None
        run = self._scripted(plain)
        run.crashed = self.ends[-1]
        return run

    def _scripted(self, plain: SimulatedRun) -> ScriptedRun:
        run = ScriptedRun(self._clock, plain._course, plain.facts, self._checkpoint_s)
        run.script = self
        return run


class ScriptedRun(SimulatedRun):
    script: Scripted

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.crashed = asyncio.Event()

    async def ended(self) -> Exit:
        crashed = asyncio.ensure_future(self.crashed.wait())
        own = asyncio.ensure_future(super().ended())
        await asyncio.wait((crashed, own), return_when=asyncio.FIRST_COMPLETED)
        crashed.cancel()
        if own.done():
            return own.result()
        own.cancel()
        return Exit(self._clock.now_ms(), FailureCause.EXIT_CODE, exit_code=1)

    def unheard(self):
        return self.script.said.pop(0) if self.script.said else None

    async def news(self):
        while (said := self.unheard()) is None:
            await self._clock.sleep_wall(0.5)
        return said

    async def serves(self) -> bool:
        return self.script.serving

    async def rescale(self, gpus) -> None:
        await self._clock.sleep_wall(self.script.tell_s)
        self.script.told.append(gpus)

    async def let_go(self, wait_s: float) -> None:
        waiting = asyncio.ensure_future(self.script.drained.wait())
        await asyncio.wait(
            (waiting, asyncio.ensure_future(self._clock.sleep_wall(wait_s))), return_when="FIRST_COMPLETED"
        )
        waiting.cancel()


def scripted(scenario):
    async def with_script(rig: Rig):
        rig.driver = Scripted(rig.clock)
        return await scenario(rig, rig.driver)

    return virtually(with_script)


class Pair:
    """Two executors with a node each, on one bus."""

    def __init__(self, clock: VirtualClock) -> None:
        self.left = Rig(clock, nodes=("n00",))
        self.right = Rig(clock, nodes=("n01",), bus=self.left.bus)
        for rig in (self.left, self.right):
            rig.driver = Scripted(clock)

    async def place(self, sequence: int, **changed) -> None:
        fixed = {"run_s": 50.0, "nodes": ["n00", "n01"], "world_size": 1} | changed
        gang = [assignment("g", 0, node_rank=rank, **fixed) for rank in (0, 1)]
        await self.left.place(placed(sequence, gang[0]), placed(sequence, gang[1], node="n01"))

    async def end(self) -> None:
        for rig in (self.left, self.right):
            if rig.task is not None and not rig.task.done():
                await rig.crash()


def together(scenario):
    async def main(clock: VirtualClock):
        pair = Pair(clock)
        await scenario(pair)
        await pair.end()
        return pair.left

    return run_virtual(main, START_MS)

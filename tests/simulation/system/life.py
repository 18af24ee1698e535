"""A process that can die or be frozen at any of its awaits: its view of bus and clock, and what runs it again.

Owns: the gates (before and after every operation on bus, clock, journal and machine; a cut link holds only those of the bus),
death (nothing it does afterwards has any effect; what was on the wire may partly arrive), freezing (SIGSTOP: everything stands
still, the group goes on without it, then it continues where it was), restarts. Refuses: deciding when (`faults.py`). Read next: `stack.py`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from services.runtime.bus.memory import MemoryBus
from services.runtime.bus.memory_consumer import MemoryGroupConsumer
from services.runtime.bus.port import BusError, Consumer, Delivery, Message, Producer, Rebalanced, Record
from services.runtime.bus.port import TopicPartition as Part
from services.runtime.virtual import VirtualClock

SESSION_S = 10.0
"""A process frozen for longer loses its place in its groups."""
RESTART_S = 1.0
"""What a supervisor waits before it starts a process again that ended by itself."""
ENDS_BY_ITSELF_MAX = 200
"""More than this is a crash loop that no restart heals."""


class Life:
    """One incarnation of a process. `steps` counts its gates; `die_at` is the gate at which it dies, `freeze_at` where it freezes."""

    def __init__(self, name: str, bus: MemoryBus, clock: VirtualClock) -> None:
        self.name = name
        self.bus = LifeBus(self, bus)
        self.clock = LifeClock(self, clock)
        self.dead = False
        self.steps = 0
        self.die_at: int | None = None
        self.freeze_at: int | None = None
        self.die_on = self.freeze_on = ""
        """The next gate of that name, for example `before decisions`: the gates around a send are named by its topic."""
        self.frozen = asyncio.Event()
        """Set once it froze."""
        self.task: asyncio.Task[None] | None = None
        self._raw_bus = bus
        self._going: asyncio.Event | None = None
        self._consumers: list[MemoryGroupConsumer] = []
        self._linked = True

    async def gate(self, name: str = "") -> None:
        """Where it may die or stand still."""
        if name and name == self.die_on:
            self.kill()
        self.check()
        if (self.freeze_at is not None and self.steps >= self.freeze_at) or (name and name == self.freeze_on):
            self.freeze()
        while self._going is not None:
            await self._going.wait()
            self.check()

    async def wire(self, name: str = "") -> None:
        """A gate of the bus, which also stands still while the link is cut."""
        await self.gate(name)
        while not self._linked:
            await asyncio.sleep(0.5)
            await self.gate()

    def check(self) -> None:
        """The same for code that doesn't await."""
        self.steps += 1
        if self.die_at is not None and self.steps >= self.die_at:
            self.kill()
        if self.dead:
            raise asyncio.CancelledError(f"{self.name} is dead")

    def kill(self) -> None:
        """kill -9, now."""
        if self.dead:
            return
        self.dead = True
        for consumer in self._consumers:
            self._raw_bus.kill(consumer)
        if self._going is not None:
            self._going.set()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    def freeze(self) -> None:
        self.freeze_at, self.freeze_on = None, ""
        if not self.dead and self._going is None:
            self._going = asyncio.Event()
        self.frozen.set()

    def expel(self) -> None:
        """Its groups go on without it."""
        if not self.dead:
            for consumer in self._consumers:
                self._raw_bus.expel(consumer)

    def thaw(self) -> None:
        if self._going is not None:
            going, self._going = self._going, None
            self.frozen.clear()
            going.set()

    def cut(self) -> None:
        """The bus can't be reached: operations wait."""
        self._linked = False

    def link(self) -> None:
        self._linked = True

    def owns(self, consumer: MemoryGroupConsumer) -> None:
        self._consumers.append(consumer)


class LifeClock:
    """The clock as this process sees it; a frozen process wakes late."""

    def __init__(self, life: Life, clock: VirtualClock) -> None:
        self._life = life
        self._clock = clock
        self.now_ms = clock.now_ms
        self.wall_ms = clock.wall_ms
        self.wall_s = clock.wall_s
        self.steady_ms = clock.steady_ms

    async def sleep_wall(self, duration_s: float) -> None:
        await self._clock.sleep_wall(duration_s)
        await self._life.gate()

    async def sleep_until(self, domain_ms: int) -> None:
        await self._clock.sleep_until(domain_ms)
        await self._life.gate()


class LifeBus:
    """The bus port, gated."""

    def __init__(self, life: Life, bus: MemoryBus) -> None:
        self._life = life
        self._bus = bus

    def producer(self, client_id: str) -> Producer:
        return _Producer(self._life, self._bus.producer(client_id))

    def reader(self, client_id: str, partitions: Iterable[Part]) -> Consumer:
        return _Consumer(self._life, self._bus.reader(client_id, partitions))

    def group_consumer(
        self,
        client_id: str,
        group: str,
        topics: Sequence[str],
        *,
        instance_id: str | None = None,
        on_assigned: Rebalanced | None = None,
        on_revoked: Rebalanced | None = None,
    ) -> Consumer:
        inner = self._bus.group_consumer(
            client_id, group, topics, instance_id=instance_id, on_assigned=on_assigned, on_revoked=on_revoked
        )
        self._life.owns(inner)
        return _Consumer(self._life, inner)

    async def partition_count(self, topic: str) -> int:
        await self._life.wire()
        return await self._bus.partition_count(topic)


class _Producer:
    def __init__(self, life: Life, inner: Producer) -> None:
        self._life = life
        self._inner = inner

    async def start(self) -> None:
        await self._life.wire()
        await self._inner.start()

    async def stop(self) -> None:
        if not self._life.dead:
            await self._inner.stop()

    async def send(self, message: Message) -> Delivery:
        return (await self.send_all((message,)))[0]

    async def send_all(self, messages: Sequence[Message]) -> list[Delivery]:
        topic = messages[0].topic if messages else ""
        await self._life.wire(f"before {topic}")
        stored = await self._inner.send_all(messages)
        await self._life.wire(f"after {topic}")
        return stored


class _Consumer:
    def __init__(self, life: Life, inner: Consumer) -> None:
        self._life = life
        self._inner = inner
        self.assignment = inner.assignment
        self.seek = inner.seek
        self.position = inner.position
        self.beginning_offsets = inner.beginning_offsets
        self.committed = inner.committed
        self.pause = inner.pause
        self.resume = inner.resume

    async def start(self) -> None:
        await self._life.wire()
        await self._inner.start()

    async def stop(self) -> None:
        if not self._life.dead:
            await self._inner.stop()

    async def poll(self, *, max_records: int, timeout_s: float) -> list[Record]:
        await self._life.wire()
        records = await self._inner.poll(max_records=max_records, timeout_s=timeout_s)
        await self._life.wire()
        return records

    async def end_offsets(self, partitions: Iterable[Part]) -> dict[Part, int]:
        await self._life.wire()
        return await self._inner.end_offsets(partitions)

    async def commit(self, offsets: Mapping[Part, int]) -> None:
        await self._life.wire()
        await self._inner.commit(offsets)
        await self._life.wire()


Main = Callable[[Life], Awaitable[None]]


class Process:
    """A name that is kept running: `main(life)` for each life, anew after each death."""

    def __init__(
        self,
        name: str,
        bus: MemoryBus,
        clock_of_life: Callable[[int], VirtualClock],
        main: Main,
        *,
        forgiven: Callable[[BaseException], bool] = lambda error: isinstance(error, BusError),
        tell: Callable[[str, str], None] = lambda name, what: None,
    ) -> None:
        self.name = name
        self.lives = 0
        self.ended_by_itself: list[str] = []
        self._bus = bus
        self._clock_of_life = clock_of_life
        self._main = main
        self._forgiven = forgiven
        self._tell = tell
        self.life: Life | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._held_down = 0
        self._let_up = asyncio.Event()
        self._let_up.set()
        self._ends = 0

    def start(self) -> None:
        """Run it until `end`."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"keep {self.name}")

    def kill(self) -> None:
        if self.life is not None:
            self.life.kill()

    def hold_down(self) -> None:
        """Kill it and don't start it again before `let_up`."""
        self._held_down += 1
        self._let_up.clear()
        self.kill()

    def let_up(self) -> None:
        """Undo one `hold_down`; several may overlap."""
        self._held_down -= 1
        if not self._held_down:
            self._let_up.set()

    async def end(self) -> None:
        """The simulation is over."""
        if self._keeper is not None:
            self._keeper.cancel()
        self.kill()
        await asyncio.gather(*(task for task in (self._keeper,) if task is not None), return_exceptions=True)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._let_up.wait()
            clock = self._clock_of_life(self.lives)
            self.lives += 1
            life = self.life = Life(self.name, self._bus, clock)
            life.task = loop.create_task(self._run(life), name=self.name)
            await asyncio.wait((life.task,))
            if life.dead:
                self._tell(self.name, "died")
            elif not life.task.cancelled() and (error := life.task.exception()) is not None:
                self._note(error)
            life.kill()
            await asyncio.sleep(RESTART_S)

    async def _run(self, life: Life) -> None:
        await self._main(life)

    def _note(self, error: BaseException) -> None:
        self._ends += 1
        self._tell(self.name, f"ended by itself: {error!r}")
        if self._forgiven(error) and self._ends < ENDS_BY_ITSELF_MAX:
            return
        if len(self.ended_by_itself) < 3:
            where = "".join(traceback.format_exception(error)[-3:])
            self.ended_by_itself.append(f"{self.name} ended by itself: {error!r}\n{where}")

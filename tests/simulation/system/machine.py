"""The simulated machines: processes that live on whatever becomes of the executor, a journal on a disk, and the truth about both.

Owns: what really runs where and since when (`held`), how each process ended, power cuts, full disks, slow and lost checkpoint
answers. A driver for the executor (`MachineDriver`) sees machines only through gated calls that take time. The course of a job
is the simulated driver's own. Refuses: knowing what anybody believes. Read next: `check_machines.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from errno import ENOSPC
from random import Random

import msgspec

from schemas.executions import FailureCause
from services.executor.core.journal import Entry, RunFacts
from services.executor.core.reports import Exit, Progress
from services.executor.shell.drivers.port import Answer, Order, Prepared, StartRefusedError
from services.executor.shell.drivers.simulated import CHECKPOINT_S, SimulatedRun, course_of
from services.runtime.virtual import VirtualClock
from tests.simulation.system.life import Life

START_S_MAX = 0.3
STOP_S_MAX = 1.5
RESCALE_S_MAX = 0.1
SLOW_CHECKPOINT_S = 600.0
"""Domain seconds of a checkpoint that nobody waits for."""

JOURNAL_LINES_MAX = 120
"""Few, so that journals are compacted in the middle of everything."""
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Entry)

ProcessKey = tuple[str, int, int]
"""Job, attempt, spawn."""


@dataclass
class Held:
    """GPUs of one machine that one process holds from `from_ms` until `until_ms` of true domain time (None: still)."""

    key: ProcessKey
    gpus: tuple[int, ...]
    from_ms: int
    until_ms: int | None = None


@dataclass
class Proc:
    """One process. `how`: "" while it runs; else completed, failed, stopped, power."""

    key: ProcessKey
    application: bool
    nodes: tuple[str, ...]
    from_ms: int
    facts: RunFacts
    resume_fraction: float
    time_limit_s: float
    run: SimulatedRun
    exit: asyncio.Future[Exit]
    slow: bool = False
    mute: bool = False
    how: str = ""
    until_ms: int | None = None
    saved: list[float] = field(default_factory=list)
    watcher: asyncio.Task[None] | None = None


class Machine:
    """One node. It outlives executors; a power cut ends every process and takes what the disk had not yet written."""

    def __init__(self, name: str, gpus: int, truth: VirtualClock, clock: VirtualClock, dice: Random) -> None:
        self.name = name
        self.gpus = gpus
        self.clock = clock
        self.boots = 1
        self.powered = True
        self.disk_full = False
        self.slow_share = 0.0
        self.mute_share = 0.0
        self.procs: dict[ProcessKey, Proc] = {}
        self.held: list[Held] = []
        self.disk = Disk()
        self._truth = truth
        self._dice = dice

    def launch(self, order: Order) -> Proc:
        """A process begins. Raises StartRefusedError."""
        assignment = order.assignment
        key = (assignment.job_id, assignment.attempt, order.spawn)
        if self.disk_full:
            raise StartRefusedError(FailureCause.DISK_FULL, f"{self.name}: no space left on device")
        course = course_of(assignment)
        slow = self._dice.random() < self.slow_share
        facts = RunFacts(started_ms=self.clock.now_ms())
        checkpoint_s = SLOW_CHECKPOINT_S if slow else CHECKPOINT_S
        proc = Proc(
            key=key,
            application=assignment.application,
            nodes=tuple(assignment.nodes),
            from_ms=self._truth.now_ms(),
            facts=facts,
            resume_fraction=assignment.resume_fraction,
            time_limit_s=assignment.time_limit_s,
            run=SimulatedRun(self.clock, course, facts, checkpoint_s),
            exit=asyncio.get_running_loop().create_future(),
            slow=slow,
            mute=self._dice.random() < self.mute_share,
        )
        self.procs[key] = proc
        self.held.append(Held(key, tuple(sorted(assignment.gpus)), proc.from_ms))
        proc.watcher = asyncio.get_running_loop().create_task(self._watch(proc))
        return proc

    def rescale(self, proc: Proc, gpus: tuple[int, ...]) -> None:
        """An application gives up and takes GPUs."""
        now_ms = self._truth.now_ms()
        for held in self.held:
            if held.key == proc.key and held.until_ms is None:
                held.until_ms = now_ms
                self.held.append(Held(proc.key, tuple(sorted(gpus)), now_ms))
                return

    def serves(self) -> bool:
        """Whether an application runs on it."""
        return any(proc.application and not proc.how for proc in self.procs.values())

    def cut_power(self) -> None:
        """Everything ends at once; the journal keeps what was synced, and a part of the rest."""
        self.powered = False
        for proc in self.procs.values():
            if not proc.how:
                self._ended(proc, "power", Exit(self.clock.now_ms(), FailureCause.UNKNOWN, detail="power cut"))
        self.disk.lose_unsynced(self._dice)

    def restore_power(self) -> None:
        self.powered = True
        self.boots += 1

    async def _watch(self, proc: Proc) -> None:
        exit = await proc.run.ended()
        if proc.how:
            return
        how = "completed" if exit.cause is None else "stopped" if exit.cause is FailureCause.SIGNAL else "failed"
        self._ended(proc, how, exit)

    def _ended(self, proc: Proc, how: str, exit: Exit) -> None:
        proc.how, proc.until_ms = how, self._truth.now_ms()
        for held in self.held:
            if held.key == proc.key and held.until_ms is None:
                held.until_ms = proc.until_ms
        proc.exit.set_result(exit)


class Disk:
    """Where a node's journal is: its lines, and how many of them survive a power cut."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.synced = 0

    def lose_unsynced(self, dice: Random) -> None:
        keep = self.synced + dice.randint(0, len(self.lines) - self.synced)
        del self.lines[keep:]
        self.synced = keep


class MachineJournal:
    """`JournalStore` of one life on a machine's disk: each entry may be the last one, by death or for want of space."""

    def __init__(self, life: Life, machine: Machine) -> None:
        self._life = life
        self._machine = machine

    def read(self) -> list[Entry]:
        return [_DECODER.decode(line) for line in self._machine.disk.lines]

    def append(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._ready()
            self._machine.disk.lines.append(_ENCODER.encode(entry))

    def sync(self) -> None:
        self._life.check()
        self._machine.disk.synced = len(self._machine.disk.lines)

    def replace(self, entries: Sequence[Entry]) -> None:
        self._ready()
        disk = self._machine.disk
        disk.lines = [_ENCODER.encode(entry) for entry in entries]
        disk.synced = len(disk.lines)

    @property
    def oversized(self) -> bool:
        return len(self._machine.disk.lines) > JOURNAL_LINES_MAX

    def close(self) -> None:
        """Nothing is open."""

    def _ready(self) -> None:
        self._life.check()
        if self._machine.disk_full:
            raise OSError(ENOSPC, "No space left on device")


class MachineDriver:
    """What one life of an executor can do on a machine. Every call takes time and may be the last."""

    def __init__(self, life: Life, machine: Machine, dice: Random) -> None:
        self._life = life
        self._machine = machine
        self._dice = dice

    def boot_id(self) -> str:
        return f"{self._machine.name}-boot-{self._machine.boots}"

    async def prepare(self, order: Order) -> Prepared:
        await self._wait(START_S_MAX)
        course_of(order.assignment)
        return Prepared(gpu_model="H100", driver="1", port=29_400)

    async def start(self, order: Order) -> MachineRun:
        await self._wait(START_S_MAX)
        proc = self._machine.launch(order)
        await self._life.gate()
        return MachineRun(self, self._machine, proc)

    async def reap(self, node: str, known: Sequence[Order]) -> list[str]:
        """Journals are never lost here while their processes live."""
        return []

    async def adopt(self, order: Order, facts: RunFacts | None) -> MachineRun | None:
        await self._wait(START_S_MAX)
        proc = self._machine.procs.get((order.assignment.job_id, order.assignment.attempt, order.spawn))
        if proc is None:
            assert facts is None, f"the journal knows a process of {order} that never was"
            return None
        return MachineRun(self, self._machine, proc)

    async def wait(self, duration_s_max: float) -> None:
        await self._wait(duration_s_max)

    async def _wait(self, duration_s_max: float) -> None:
        await self._life.clock.sleep_wall(self._dice.uniform(0.0, duration_s_max))


class MachineRun:
    """A process, seen by the executor that started or adopted it."""

    def __init__(self, driver: MachineDriver, machine: Machine, proc: Proc) -> None:
        self.facts = proc.facts
        self._driver = driver
        self._machine = machine
        self._proc = proc

    async def ended(self) -> Exit:
        exit = await asyncio.shield(self._proc.exit)
        await self._driver.wait(0.0)
        return exit

    async def checkpoint(self, wait_s: float) -> Answer | None:
        await self._driver.wait(0.0)
        proc = self._proc
        if proc.how:
            return None
        if proc.mute:
            await self._driver.wait(wait_s)
            return None
        answer = await proc.run.checkpoint(wait_s)
        if answer is not None:
            proc.saved.append(answer.fraction)
        await self._driver.wait(0.0)
        return answer

    async def stop(self) -> None:
        await self._driver.wait(STOP_S_MAX)
        self._proc.run.kill()
        await asyncio.shield(self._proc.exit)

    def kill(self) -> None:
        self._proc.run.kill()

    def unheard(self) -> Answer | Progress | None:
        return None

    async def news(self) -> Answer | Progress:
        return await asyncio.get_running_loop().create_future()

    async def let_go(self, wait_s: float) -> None:
        await self._driver.wait(wait_s)

    async def serves(self) -> bool:
        await self._driver.wait(RESCALE_S_MAX)
        return True

    async def rescale(self, gpus: tuple[int, ...]) -> None:
        await self._driver.wait(RESCALE_S_MAX)
        if not self._proc.how:
            self._machine.rescale(self._proc, gpus)

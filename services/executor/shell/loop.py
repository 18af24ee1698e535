"""The executor's loop: own nodes' placements in, what happened out.

Owns: start, following `placements`, orderly stop. On start it reads the compacted topic from the beginning, so that it
needs no committed offset; after a broken connection it does so again. Refuses: placements of other nodes (ignored), and
records it can't read (dead letters). Read next: `node.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from schemas.codec import DecodeError, decode_record
from schemas.deadletters import dead_letter
from schemas.executions import StopCause
from schemas.messages import message
from schemas.placements import NodePlaced
from schemas.records import Message, Now, Record
from schemas.sharing import node_name
from services.executor.core.checkpoint_interval import NODE_MTBF_S
from services.executor.core.reconcile import Refusal
from services.executor.shell.cards import Cards
from services.executor.shell.dataset_folder import DatasetFolder
from services.executor.shell.device_facts import GpuMemory, Unmeasured
from services.executor.shell.drivers.cutting import Cutter, PlayedCutter, SharedMachine
from services.executor.shell.drivers.port import Driver, Order
from services.executor.shell.drivers.run_folder import folder_of
from services.executor.shell.gangs import Gangs
from services.executor.shell.journal_store import JournalStore
from services.executor.shell.ledger import SOURCE, Surroundings
from services.executor.shell.node import Node, Share
from services.executor.shell.nursery import Nursery
from services.executor.shell.outbox import Outbox, Parcel
from services.executor.shell.run_folders import SWEEP_S, sweep
from services.runtime.bus.port import Bus, BusError, Consumer, TopicPartition
from services.runtime.clock import Clock
from services.runtime.lag import lag_of
from services.runtime.tracing import Spans, Untraced

PLACEMENTS = "placements"
EXECUTIONS = "executions"
GANG_BACKLOG_RECORDS = 500
"""Read back when the first gang with nodes elsewhere is to start: they may have said that they are prepared before this one listened."""
BATCH_RECORDS_MAX = 500
"""Only the newest placement per node of a batch is carried out, so a backlog is skipped rather than replayed."""
POLL_TIMEOUT_S = 60.0
"""Records wake the loop at once; this only bounds how long a silent poll lasts."""
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses before reading again after the connection broke, the last one repeats: a broker restart takes 2 to 5 s."""
STOP_JOBS_WAIT_S = 6.0
"""Wall seconds that jobs get to save and end when the executor stops them on its way out; then they are killed. All of it has
to fit into the runtime's drain limit."""
KILLED_WAIT_S = 2.0
"""Until killed processes are gone; what the kernel can't kill (a hung disk) is left behind and adopted by the next start."""
LAST_REPORTS_WAIT_S = 2.0
"""Wall seconds for the last reports on the way out; what is left is in the journal and sent on the next start."""

log = logging.getLogger(__name__)


class Settings(Struct, frozen=True, kw_only=True):
    """`partition`: of the cluster in every cluster topic. `stop_jobs_on_exit`: runs don't outlive an orderly stop.

    `run_root`: where run folders are removed `retention_s` wall seconds after their attempts ended; 0: never. `dataset_folder`: whose
    names are told as the datasets kept here.
    """

    nodes: tuple[str, ...]
    cluster: str
    partition: int
    client_id: str
    stop_jobs_on_exit: bool = False
    node_mtbf_s: float = NODE_MTBF_S
    run_root: str = ""
    retention_s: float = 0.0
    dataset_folder: str = ""
    shared: SharedMachine | None = None
    """The one machine of this process, if several pools share its cards; `nodes` then are its nodes, one per pool."""

    def pool_of(self, node: str) -> str | None:
        """Of a node of a shared machine."""
        if self.shared is None:
            return None
        pools = (self.shared.whole, *self.shared.slots)
        return next(pool for pool in pools if node_name(self.shared.name, pool, self.shared.whole) == node)


class Executor:
    """One process's nodes. `run` may be cancelled at any await: a new executor on the same journals goes on from there."""

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        clock: Clock,
        driver: Driver,
        journal_of: Callable[[str], JournalStore],
        *,
        spans: Spans | None = None,
        memory: GpuMemory | None = None,
        cutter: Cutter | None = None,
        cut: Callable[[list[str]], None] = lambda pools: None,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._clock = clock
        self._driver = driver
        self._journal_of = journal_of
        self._spans = spans or Untraced()
        self._memory = memory or Unmeasured()
        self._cutter = cutter
        self._cut = cut
        self._gangs = Gangs(settings.nodes, clock)
        self.nodes: dict[str, Node] = {}
        self.ready = asyncio.Event()
        """Set once every node has applied what was placed before the start."""
        self._outbox: Outbox | None = None
        self._reader: Consumer | None = None

    @property
    def reports_waiting(self) -> int:
        """Reports the broker has not acknowledged yet."""
        return 0 if self._outbox is None else self._outbox.waiting

    async def lag(self) -> dict[TopicPartition, int]:
        """Placements not yet read."""
        reader = self._reader
        return {} if reader is None else await lag_of(reader, reader.assignment())

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Work until `stop` is set. Raises what went wrong; runs are then still alive."""
        nursery = Nursery()
        outbox = self._outbox = Outbox(self._bus, self._clock, self._settings.client_id)
        try:
            await self._open(nursery, outbox)
            nursery.spawn(outbox.run())
            reading = nursery.spawn(self._follow(outbox))
            listening = nursery.spawn(self._listen_for_gangs())
            if self._settings.run_root and self._settings.retention_s > 0:
                nursery.spawn(self._sweep())
            asked = nursery.spawn((stop or asyncio.Event()).wait())
            failing = asyncio.ensure_future(nursery.fails())
            try:
                await asyncio.wait((asked, failing), return_when=asyncio.FIRST_COMPLETED)
                if failing.done():
                    failing.result()
                reading.cancel()
                listening.cancel()
                await self._leave(outbox)
            finally:
                failing.cancel()
        finally:
            await nursery.close()
            for node in self.nodes.values():
                node.close()

    async def _open(self, nursery: Nursery, outbox: Outbox) -> None:
        around = Surroundings(
            cluster=self._settings.cluster,
            partition=self._settings.partition,
            clock=self._clock,
            driver=self._driver,
            outbox=outbox,
            nursery=nursery,
            spans=self._spans,
            memory=self._memory,
            node_mtbf_s=self._settings.node_mtbf_s,
            datasets=DatasetFolder(self._settings.dataset_folder),
        )
        shared, cards = self._settings.shared, None
        if shared is not None:
            cards = Cards(shared, self._cutter or PlayedCutter(shared, self._clock), around, self._cut)
        for name in self._settings.nodes:
            pool = self._settings.pool_of(name)
            share = None if cards is None or pool is None else Share(cards, pool)
            self.nodes[name] = Node(name, self._journal_of(name), around, self._gangs, share)
        for node in self.nodes.values():
            await node.recover()
        if cards is not None:
            await cards.open()

    async def _follow(self, outbox: Outbox) -> None:
        failures = 0
        while True:
            reader = self._bus.reader(self._settings.client_id, [(PLACEMENTS, self._settings.partition)])
            try:
                await reader.start()
                failures = 0
                self._reader = reader
                await self._read(reader, outbox)
            except BusError:
                await self._clock.sleep_wall(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                failures += 1
            finally:
                await reader.stop()

    async def _listen_for_gangs(self) -> None:
        """Hear what the other nodes of gangs say, from shortly before the first such gang on."""
        await self._gangs.wanted.wait()
        failures = 0
        while True:
            reader = self._bus.reader(f"{self._settings.client_id}-gangs", [(EXECUTIONS, self._settings.partition)])
            try:
                await reader.start()
                begins = await reader.beginning_offsets(sorted(reader.assignment()))
                for part, end in (await reader.end_offsets(sorted(reader.assignment()))).items():
                    await reader.seek(part, max(begins[part], end - GANG_BACKLOG_RECORDS))
                failures = 0
                while True:
                    records = await reader.poll(max_records=BATCH_RECORDS_MAX, timeout_s=POLL_TIMEOUT_S)
                    self._gangs.hear_records(list(records))
            except BusError:
                await self._clock.sleep_wall(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                failures += 1
            finally:
                await reader.stop()

    async def _sweep(self) -> None:
        root = Path(self._settings.run_root).resolve()
        while True:
            alive = [
                folder_of(root, Order(node.name, run.assignment, run.spawn))
                for node in self.nodes.values()
                for run in node.state.runs.values()
            ]
            await asyncio.to_thread(sweep, root, alive, self._clock.wall_ms() / 1000, self._settings.retention_s)
            await self._clock.sleep_wall(SWEEP_S)

    async def _read(self, reader: Consumer, outbox: Outbox) -> None:
        """First everything up to the end as one batch, then whatever comes."""
        ends = await reader.end_offsets(sorted(reader.assignment()))
        backlog: dict[str, NodePlaced] = {}
        while [part for part, end in ends.items() if await reader.position(part) < end]:
            records = await reader.poll(max_records=BATCH_RECORDS_MAX, timeout_s=POLL_TIMEOUT_S)
            self._newest(self._placements(records, outbox), backlog)
        self._apply(backlog)
        for node in self.nodes.values():
            await node.reap()
        self.ready.set()
        while True:
            records = await reader.poll(max_records=BATCH_RECORDS_MAX, timeout_s=POLL_TIMEOUT_S)
            self._apply(self._newest(self._placements(records, outbox), {}))

    def _apply(self, newest: dict[str, NodePlaced]) -> None:
        for name, placed in newest.items():
            node = self.nodes[name]
            if node.apply(placed) is Refusal.OUTDATED and node.refused[Refusal.OUTDATED] == 1:
                log.warning(
                    "refused placement %d/%d: %d/%d was applied before. A fenced allocator, or Kafka's data was wiped while "
                    "this node's journal was kept (then remove RUN_DIR/nodes, once its jobs have ended)",
                    placed.epoch,
                    placed.sequence,
                    node.state.epoch,
                    node.state.sequence,
                    extra={"node_id": name, "reason": Refusal.OUTDATED.value},
                )

    def _newest(self, placements: Iterable[NodePlaced], into: dict[str, NodePlaced]) -> dict[str, NodePlaced]:
        for placed in placements:
            known = into.get(placed.node)
            if known is None or (placed.epoch, placed.sequence) > (known.epoch, known.sequence):
                into[placed.node] = placed
        return into

    def _placements(self, records: Iterable[Record], outbox: Outbox) -> Iterable[NodePlaced]:
        for record in records:
            if record.value is None:
                continue  # a removed node: its runs end when a placement says so
            try:
                event = decode_record(record).event
            except DecodeError as error:
                outbox.put(Parcel(self._dead(record, error.code, error.detail), _nothing))
                continue
            if not isinstance(event, NodePlaced):
                detail = f"{type(event).__name__} doesn't belong on {PLACEMENTS}"
                outbox.put(Parcel(self._dead(record, "unexpected_type", detail), _nothing))
            elif event.node in self.nodes:
                yield event

    def _dead(self, record: Record, reason: str, detail: str) -> Message:
        now = Now(domain_ms=self._clock.now_ms(), wall_ms=self._clock.wall_ms())
        letter = dead_letter(record, service="executor", reason=reason, detail=detail, now=now)
        identity = f"{record.topic}/{record.partition}/{record.offset}/executor"
        return message(letter, key=identity, id=identity, source=SOURCE, time_ms=now.domain_ms)

    async def _leave(self, outbox: Outbox) -> None:
        nodes = list(self.nodes.values())
        if self._settings.stop_jobs_on_exit:
            stopping = asyncio.gather(*(node.stop_all(StopCause.DRAIN) for node in nodes))
            try:
                await asyncio.wait_for(asyncio.shield(stopping), STOP_JOBS_WAIT_S)
            except TimeoutError:
                for node in nodes:
                    await node.kill_all()
                await asyncio.wait((stopping,), timeout=KILLED_WAIT_S)
                stopping.cancel()
        try:
            await asyncio.wait_for(outbox.drained(), LAST_REPORTS_WAIT_S)
        except TimeoutError:
            return  # the journal keeps them


def _nothing() -> None:
    """A dead letter is not journalled: the record it is about is read again on the next start."""

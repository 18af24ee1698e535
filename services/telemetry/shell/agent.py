"""The node agent's loop: one sample of each of its nodes per period.

Owns: pace and publishing. A sample that can't be sent is dropped, because a fresh one follows; the pace is wall time, also in
a replay. Refuses: judging readings. Read next: `source.py`, `services/telemetry/agent.py`.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from msgspec import Struct

from schemas.catalog import Pool
from schemas.codec import DecodeError, decode_record
from schemas.messages import message
from schemas.nodes import GpuSample, NodeSampled
from schemas.placements import NodePlaced
from schemas.records import Message
from schemas.sharing import node_name
from services.runtime.bus.port import Bus, BusError, Producer
from services.runtime.clock import Clock
from services.telemetry.shell.simulated import SimulatedSource
from services.telemetry.shell.slot_samples import of_slots, of_whole_cards
from services.telemetry.shell.source import NodeReading, Source

SOURCE = "/gpugrid/agent"
PERIOD_S = 5.0
PLACEMENTS = "placements"
BATCH_RECORDS_MAX = 500
POLL_TIMEOUT_S = 60.0
"""Records wake the reader at once; this only bounds a silent poll."""
RETRY_S = 2.0
"""Before placements are read again after the connection broke; samples themselves retry with each period."""
ORDER_MAX = 1_000_000


class AgentSettings(Struct, frozen=True, kw_only=True):
    """`nodes`: usually the machine itself; several for one process that plays a whole pool. `partition`: of the cluster."""

    nodes: tuple[str, ...]
    cluster: str
    pool: str
    partition: int
    rack: str = "r0"
    period_s: float = PERIOD_S
    client_id: str = "agent"
    slots: dict[str, Pool] = {}
    """Pools of slots that the machine's cards may be cut into: then it is one node per pool, and `pool` that of its whole cards."""

    @property
    def all_nodes(self) -> tuple[str, ...]:
        """Also those of pools of slots."""
        return (*self.nodes, *(node_name(node, pool, self.pool) for node in self.nodes for pool in self.slots))


class Agent:
    """`run` samples until it is cancelled or `stop` is set. `last`: what was read of each node."""

    def __init__(self, settings: AgentSettings, bus: Bus, clock: Clock, source: Source) -> None:
        self._settings = settings
        self._bus = bus
        self._clock = clock
        self._source = source
        self._producer: Producer | None = None
        self.last: dict[str, list[GpuSample]] = {}
        self.sent = 0
        self.dropped = 0

    async def run(self, stop: asyncio.Event | None = None) -> None:
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._sample_for_ever())]
        if isinstance(self._source, SimulatedSource):
            tasks.append(asyncio.ensure_future(self._follow_placements(self._source)))
        asked: asyncio.Future[Any] = asyncio.ensure_future((stop or asyncio.Event()).wait())
        try:
            await asyncio.wait((asked, *tasks), return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            asked.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(asked, *tasks, return_exceptions=True)
            await self._drop_producer()

    async def sample_once(self) -> list[Message]:
        """The messages of one period."""
        return [
            sent
            for order, node in enumerate(self._settings.nodes)
            for sent in self._messages(node, order, await self._source.read(node))
        ]

    def _messages(self, machine: str, place: int, reading: NodeReading) -> list[Message]:
        """One node, or one per pool that shares its cards."""
        settings = self._settings
        if not settings.slots:
            return [self._message(machine, place, reading, settings.pool)]
        order = order_of(machine, place)
        sent = [self._message(machine, order, of_whole_cards(reading), settings.pool, machine)]
        for name, pool in settings.slots.items():
            node = node_name(machine, name, settings.pool)
            sent.append(self._message(node, order, of_slots(reading, pool), name, machine, pool.slots_per_card))
        return sent

    async def _sample_for_ever(self) -> None:
        due_s = self._clock.wall_s()
        while True:
            await self._publish(await self.sample_once())
            # A late period is skipped, not caught up: two samples at once would tell nothing.
            due_s = max(due_s + self._settings.period_s, self._clock.wall_s())
            await self._clock.sleep_wall(due_s - self._clock.wall_s())

    async def _publish(self, samples: list[Message]) -> None:
        try:
            if self._producer is None:
                producer = self._bus.producer(self._settings.client_id)
                await producer.start()
                self._producer = producer
            await self._producer.send_all(samples)
            self.sent += len(samples)
        except BusError:
            self.dropped += len(samples)
            await self._drop_producer()

    def _message(
        self, node: str, place: int, reading: NodeReading, pool: str, machine: str | None = None, per_card: int = 1
    ) -> Message:
        self.last[node] = reading.gpus
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        event = NodeSampled(
            node=node,
            cluster=self._settings.cluster,
            pool=pool,
            time_ms=now_ms,
            wall_ms=wall_ms,
            source=self._source.name,
            gpus=reading.gpus,
            host=reading.host,
            topology=reading.topology,
            rack=self._settings.rack,
            order=order_of(machine or node, place),
            machine=machine,
            slots_per_card=per_card,
            driver=self._source.driver,
            period_s=self._settings.period_s,
        )
        return message(event, key=node, id=f"{node}/{wall_ms}", source=SOURCE, time_ms=now_ms)

    async def _follow_placements(self, source: SimulatedSource) -> None:
        """Which cards are held, for played readings. The compacted topic is read from its beginning."""
        while True:
            reader = self._bus.reader(self._settings.client_id, [(PLACEMENTS, self._settings.partition)])
            try:
                await reader.start()
                while True:
                    for record in await reader.poll(max_records=BATCH_RECORDS_MAX, timeout_s=POLL_TIMEOUT_S):
                        try:
                            placed = decode_record(record).event
                        except DecodeError:
                            continue  # the executor writes the dead letter
                        if isinstance(placed, NodePlaced) and placed.node in self._settings.all_nodes:
                            source.place(placed)
            except BusError:
                await self._clock.sleep_wall(RETRY_S)
            finally:
                await reader.stop()

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()


def order_of(node: str, place: int) -> int:
    """A node's place in its pool: the number its name ends with (`n07` is 7), else its place in the agent's list."""
    digits = re.search(r"\d+$", node)
    return min(int(digits.group()), ORDER_MAX) if digits else place

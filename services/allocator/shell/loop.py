"""The allocator's loop: own clusters through the consumer group, gather inputs, let each owner decide, and never lose a position.

Positions live in the log (`covered`), not in the group: on assignment the loop takes over every cluster of its partitions and
seeks its inputs to what the log covers. The same loop runs on Kafka and, in simulation, on the memory bus with virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from schemas.catalog import Catalog
from schemas.codec import encode_payload
from schemas.decisions import DecisionInput, PlanImproved
from schemas.records import Now, Record
from schemas.registry import TYPE_OF, topic_of
from services.allocator.core.decide import INPUT_TOPICS, Decided, Settings
from services.allocator.core.due import due_domain_ms, due_wall_ms
from services.allocator.shell.full_mode import FOLLOWED, OUTDONE, STALE, FullMode, Improvement
from services.allocator.shell.inbox import PATIENCE_S, Inbox
from services.allocator.shell.intake_batch import Batch, batches
from services.allocator.shell.owner import ClusterOwner, LostOwnershipError
from services.allocator.shell.projections import SEND_BACKOFF_S
from services.runtime.bus.port import Bus, BusError, Producer, TopicPartition
from services.runtime.clock import Clock
from services.runtime.lag import lag_of

GROUP = "gpugrid-allocator"
Observer = Callable[[ClusterOwner, Decided, Batch, float], None]
"""(owner, decision, its batch, seconds from having the inputs to having the record): tracing and metrics hang on here."""


class Allocator:
    """One process's allocator. `run` returns after `stop` is set, with a snapshot of every cluster it owned."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        catalog: Catalog,
        settings: Callable[[str], Settings],
        *,
        instance_id: str,
        observe: Observer | None = None,
        full_mode: FullMode | None = None,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._catalog = catalog
        self._settings = settings
        self._client_id = f"allocator-{instance_id}"
        self._observe = observe
        self._improvement = Improvement(full_mode, clock) if full_mode is not None else None
        self._owned: dict[str, ClusterOwner] = {}
        self._lock = asyncio.Lock()
        self._joined = False
        self._producer: Producer | None = None
        self.consumer = bus.group_consumer(
            self._client_id,
            GROUP,
            INPUT_TOPICS,
            instance_id=instance_id,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
        )
        self._inbox = Inbox(self.consumer)

    @property
    def owned(self) -> dict[str, ClusterOwner]:
        """Clusters this process decides for."""
        return self._owned

    @property
    def joined(self) -> bool:
        """Whether the group has told this process what is its own; that may be nothing, while others own all there is."""
        return self._joined

    async def lag(self) -> dict[TopicPartition, int]:
        """Records no decision has taken yet, of the partitions whose clusters are decided here."""
        used = {owner.partition for owner in self._owned.values()}
        unread = await lag_of(self.consumer, [part for part in self.consumer.assignment() if part[1] in used])
        return {part: records + self._inbox.waiting(part) for part, records in unread.items()}

    async def run(self, stop: asyncio.Event) -> None:
        """Consume and decide until `stop` is set. BusError ends the process: its successor starts from the log."""
        await self.consumer.start()
        self._joined = True
        reading = asyncio.ensure_future(self._inbox.read())
        asked = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                await self._wait(reading, asked)
                if reading.done():
                    reading.result()
                async with self._lock:
                    await self._decide_on(self._inbox.take())
                    await self._decide_due()
                    await self._improve()
            await self._leave()
        finally:
            for task in (reading, asked):
                task.cancel()
            await asyncio.gather(reading, asked, return_exceptions=True)
            await self._drop_all()
            if self._improvement is not None:
                await self._improvement.stop()
            await self.consumer.stop()

    async def _leave(self) -> None:
        """Snapshots and the last projections, only on an orderly way out: a decision cut short is in the state, not in the log."""
        async with self._lock:
            for owner in self._owned.values():
                with contextlib.suppress(BusError):  # the log is the truth, a snapshot only saves the successor time
                    await owner.leave()

    async def _wait(self, *tasks: asyncio.Future[Any]) -> None:
        """Until there are records, time demands a decision, or one of the tasks is done, whichever is first."""
        inbox = self._inbox
        if inbox.urgent.is_set():
            await asyncio.sleep(0)  # under steady load others must get a turn, too
            return
        wall_ms = self._clock.wall_ms()
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(inbox.urgent.wait())]
        waits.append(asyncio.ensure_future(self._patient()))
        waits += [
            asyncio.ensure_future(self._clock.sleep_until(due_domain_ms(owner.state, self._settings(name).policy)))
            for name, owner in self._owned.items()
        ]
        for name, owner in self._owned.items():
            wall_due = due_wall_ms(owner.state, self._settings(name).policy)
            if wall_due is not None:
                waits.append(asyncio.ensure_future(self._clock.sleep_wall(max(0.0, (wall_due - wall_ms) / 1000))))
        if self._improvement is not None:
            if self._improvement.pending is not None:
                tasks = (*tasks, self._improvement.pending)
            elif (due_s := self._improvement.due_in_s(self._owned)) is not None:
                waits.append(asyncio.ensure_future(self._clock.sleep_wall(due_s)))
        try:
            await asyncio.wait([*tasks, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _patient(self) -> None:
        """Until what is not urgent has waited long enough for company."""
        await self._inbox.filled.wait()
        await self._clock.sleep_wall(PATIENCE_S)

    async def _assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Take over every cluster whose partition of every input topic is ours, and go on where its log says."""
        async with self._lock:
            await self._drop_all()
            mine = {number for _, number in partitions if all((topic, number) in partitions for topic in INPUT_TOPICS)}
            for cluster, facts in sorted(self._catalog.clusters.items()):
                if facts.partition in mine:
                    await self._take_over(cluster)
            await self._seek(partitions)

    async def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        async with self._lock:
            await self._drop_all()

    async def _drop_all(self) -> None:
        while self._owned:  # at the end of the process a rebalance may be taking clusters over meanwhile
            await self._owned.pop(next(iter(self._owned))).stop()

    async def _take_over(self, cluster: str) -> None:
        producer = self._bus.producer(self._client_id)
        await producer.start()
        owner = ClusterOwner(
            self._bus, self._clock, self._catalog, cluster, self._settings(cluster), producer, self._client_id
        )
        while True:
            try:
                await owner.take_over()
                break
            except BusError:
                await self._clock.sleep_wall(SEND_BACKOFF_S)
                await owner.new_producer()
        self._owned[cluster] = owner

    async def _seek(self, partitions: frozenset[TopicPartition]) -> None:
        """Each input to the lowest position any owned cluster of its partition still needs.

        Partitions of nobody here are paused: Kafka's client names every partition in every fetch.
        """
        used = {owner.partition for owner in self._owned.values()}
        self.consumer.pause([partition for partition in partitions if partition[1] not in used])
        self.consumer.resume([partition for partition in partitions if partition[1] in used])
        begins = await self.consumer.beginning_offsets(sorted(partitions))
        for topic, number in sorted(partitions):
            needed = [
                owner.state.covered.get(f"{topic}/{number}", 0)
                for owner in self._owned.values()
                if owner.partition == number
            ]
            # An offset the log covers may have left a compacted or trimmed topic since: everything below it is decided.
            self._inbox.purge((topic, number))
            await self.consumer.seek((topic, number), max(begins[topic, number], min(needed, default=0)))

    async def _decide_on(self, records: list[Record]) -> None:
        by_partition: dict[int, list[Record]] = {}
        for record in records:
            by_partition.setdefault(record.partition, []).append(record)
        for number, some in by_partition.items():
            covered = {name: owner.state.covered for name, owner in self._owned.items() if owner.partition == number}
            if covered:
                await self._decide_on_partition(some, covered)

    async def _decide_on_partition(self, records: list[Record], covered: Mapping[str, Mapping[str, int]]) -> None:
        found, letters = batches(records, covered, self._now())
        if letters:
            projections = self._owned[next(iter(covered))].projections
            await projections.put(letters)
            await projections.drained()  # their records count as covered from the next decision on
        for name in covered:
            for batch in found[name]:
                if not await self._decide(name, batch):
                    return  # taken over again: its inputs were sought anew, the rest of these records comes back

    async def _decide_due(self) -> None:
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        for name, owner in list(self._owned.items()):
            policy = self._settings(name).policy
            wall_due = due_wall_ms(owner.state, policy)
            if now_ms >= due_domain_ms(owner.state, policy) or (wall_due is not None and wall_ms >= wall_due):
                await self._decide(name, Batch())

    async def _improve(self) -> None:
        """Decide with full mode's answer if one came; ask the next question if nothing is in line."""
        if self._improvement is None:
            return
        event = self._improvement.take(self._owned, self._settings)
        if event is not None:
            await self._decide_with(event)
        if not self._inbox.filled.is_set():
            self._improvement.ask(self._owned, self._settings)

    async def _decide_with(self, event: PlanImproved) -> None:
        assert self._improvement is not None
        owner = self._owned[event.cluster]
        item = DecisionInput(
            topic=topic_of(event),
            partition=owner.partition,
            offset=event.sequence,  # it has no place in any topic: it belongs to the decision it was asked after
            type=TYPE_OF[PlanImproved],
            id=f"{event.cluster}/{event.pool}/{event.sequence}/improved",
            payload=msgspec.Raw(encode_payload(event)),
        )
        _, decided = await self._try_to_decide(event.cluster, Batch(inputs=[item]))
        if decided is None:
            self._improvement.report(STALE)  # and so is the state: somebody else decided meanwhile
            return
        plans = zip(decided.posed, decided.plans, strict=True)
        followed = any(posed.pool == event.pool and plan.mode != "fast" for posed, plan in plans)
        self._improvement.report(FOLLOWED if followed else OUTDONE)

    async def _decide(self, name: str, batch: Batch) -> bool:
        """Decide; False if the log was not ours any more: then the cluster was taken over anew and its inputs sought."""
        ours, _ = await self._try_to_decide(name, batch)
        return ours

    async def _try_to_decide(self, name: str, batch: Batch) -> tuple[bool, Decided | None]:
        owner = self._owned[name]
        begun_s = self._clock.wall_s()
        try:
            decided = await owner.decide(batch.inputs, batch.covers())
        except (LostOwnershipError, BusError):
            await owner.new_producer()
            await self._rejoin(name)
            return False, None
        if decided is not None and self._observe is not None:
            self._observe(owner, decided, batch, self._clock.wall_s() - begun_s)
        return True, decided

    async def _rejoin(self, name: str) -> None:
        """Our record was not accepted, or nobody knows. If the group still says the partition is ours, rebuild; else stop deciding."""
        owner = self._owned.pop(name)
        await owner.stop()
        assigned = self.consumer.assignment()
        if all((topic, owner.partition) in assigned for topic in INPUT_TOPICS):
            await self._take_over(name)
            await self._seek(frozenset(item for item in assigned if item[1] == owner.partition))

    def _now(self) -> Now:
        return Now(domain_ms=self._clock.now_ms(), wall_ms=self._clock.wall_ms())

"""Consumers of the memory bus: the reader (partitions by hand) and the member of a group.

Owns: positions, fairness between partitions, waiting. Refuses: storing anything but committed offsets (which the group
keeps). Read next: `memory_group.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Protocol

from services.runtime.bus.memory_group import MemoryGroup
from services.runtime.bus.memory_log import PartitionLog
from services.runtime.bus.port import BusError, Rebalanced, Record, TopicPartition

_watcher_ids = count()


class Logs(Protocol):
    """Where a consumer finds partitions."""

    def log(self, partition: TopicPartition) -> PartitionLog: ...


class _Positions:
    """Partitions with the next offset of each, read in turn."""

    def __init__(self, bus: Logs) -> None:
        self._bus = bus
        self._watcher_id = next(_watcher_ids)
        self._next: dict[TopicPartition, int] = {}
        self._logs: list[tuple[TopicPartition, PartitionLog]] = []
        self._paused: set[TopicPartition] = set()
        self._turn = 0
        self._waiting: asyncio.Future[None] | None = None

    def replace(self, positions: Mapping[TopicPartition, int]) -> None:
        for _, log in self._logs:
            log.unwatch(self._watcher_id)
        self._next = dict(positions)
        self._logs = [(partition, self._bus.log(partition)) for partition in self._next]
        self._paused.clear()
        for _, log in self._logs:
            log.watch(self._watcher_id, self.wake)
        self.wake()

    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._next)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._check(partition)
        self._next[partition] = offset
        self.wake()

    def position(self, partition: TopicPartition) -> int:
        self._check(partition)
        return self._next[partition]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._check(partition)
            self._paused.add(partition)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        self.wake()

    def take(self, records_max: int) -> list[Record]:
        """Records available now. The partition asked first changes with every call, so that none starves."""
        logs, count = self._logs, len(self._logs)
        if not count:
            return []
        first = self._turn % count
        self._turn += 1
        found: list[Record] = []
        now_s = -1.0
        for place in range(first, first + count):
            partition, log = logs[place - count if place >= count else place]
            offset = self._next[partition]
            if offset == log.end or partition in self._paused:  # of most there is nothing new
                continue
            if now_s < 0.0:
                now_s = asyncio.get_running_loop().time()
            records = log.read(offset, records_max - len(found), now_s)
            if records:
                self._next[partition] = records[-1].offset + 1
                found.extend(records)
                if len(found) == records_max:
                    break
        return found

    async def wait(self, timeout_s: float) -> None:
        """Return when something may have changed, or after the time-out."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(timeout_s, self.wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _check(self, partition: TopicPartition) -> None:
        if partition not in self._next:
            raise BusError(f"{partition[0]}/{partition[1]} is not assigned to this consumer")


class _MemoryConsumer:
    """What both kinds share. A consumer that was stopped or killed refuses everything."""

    def __init__(self, bus: Logs, client_id: str) -> None:
        self._bus = bus
        self._client_id = client_id
        self._positions = _Positions(bus)
        self._state = "new"

    def assignment(self) -> frozenset[TopicPartition]:
        return self._positions.partitions()

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions.seek(partition, offset)

    async def position(self, partition: TopicPartition) -> int:
        return self._positions.position(partition)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self._bus.log(partition).end for partition in partitions}

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self._bus.log(partition).start for partition in partitions}

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._positions.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._positions.resume(partitions)

    async def poll(self, *, max_records: int, timeout_s: float) -> list[Record]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        await asyncio.sleep(0)  # a consumer that always finds records must not starve the others
        while True:
            ready = await self._ready()
            records = self._positions.take(max_records) if ready else []
            if records or loop.time() >= until_s:
                return records
            await self._positions.wait(until_s - loop.time())

    async def _ready(self) -> bool:
        """Whether records may flow now. Raises for a consumer that can't be polled any more."""
        self._check_started()
        return True

    def _check_started(self) -> None:
        if self._state != "started":
            raise BusError(f"consumer {self._client_id} is {self._state}, not started")


class MemoryReader(_MemoryConsumer):
    """Partitions assigned by hand; starts where the log starts."""

    def __init__(self, bus: Logs, client_id: str, partitions: Iterable[TopicPartition]) -> None:
        super().__init__(bus, client_id)
        self._wanted = tuple(dict.fromkeys(partitions))

    async def start(self) -> None:
        self._state = "started"
        self._positions.replace({partition: self._bus.log(partition).start for partition in self._wanted})

    async def stop(self) -> None:
        self._state = "stopped"
        self._positions.replace({})

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        raise BusError("a reader has no group to commit to")

    async def committed(self, partition: TopicPartition) -> int | None:
        raise BusError("a reader has no group to commit to")


class MemoryGroupConsumer(_MemoryConsumer):
    """A member of a group. Callbacks run beside whatever the owner is doing, as in aiokafka."""

    def __init__(
        self,
        bus: Logs,
        client_id: str,
        group: MemoryGroup,
        topics: Sequence[str],
        instance_id: str | None,
        on_assigned: Rebalanced | None,
        on_revoked: Rebalanced | None,
    ) -> None:
        super().__init__(bus, client_id)
        self.topics = tuple(topics)
        self.group = group
        self._instance_id = instance_id
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._callback: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()  # one revocation or assignment at a time, with its callback, as in aiokafka
        self._failure: BaseException | None = None
        self._settled = False  # records flow only after on_assigned has returned

    async def start(self) -> None:
        self._state = "started"
        await self.group.join(self, self._client_id, self._instance_id)

    async def stop(self) -> None:
        if self._state != "started":
            return
        self._state = "stopped"
        self.group.leave(self)
        self._positions.replace({})

    def die(self) -> None:
        """The process is gone: callbacks stop where they are, nothing is committed, every later call raises."""
        self._state = "killed"
        self.group.lose(self)
        self._settled = False
        self._positions.replace({})
        if self._callback is not None:
            self._callback.cancel()

    def fence(self) -> None:
        """Another process has taken this instance id: this one may never come back."""
        self._state = "fenced (another process uses its instance id)"
        self._settled = False
        self._positions.replace({})

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._check_started()
        await asyncio.sleep(0)
        self.group.commit(self, offsets)

    async def committed(self, partition: TopicPartition) -> int | None:
        return self.group.committed.get(partition)

    # --- called by the group

    async def revoke(self) -> None:
        if self._state == "started":
            await self._revoke_locally()

    async def assign(self, partitions: frozenset[TopicPartition], positions: Mapping[TopicPartition, int]) -> None:
        async with self._changing:
            if self._state != "started":
                return
            starts = {part: positions.get(part, self._bus.log(part).start) for part in sorted(partitions)}
            self._settled = False
            self._positions.replace(starts)
            if partitions:
                await self._run(self._on_assigned, partitions)
            self._settled = True
            self._positions.wake()

    # ---

    async def _ready(self) -> bool:
        self._check_started()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if not self.group.has(self):
            await self._revoke_locally()
            await self.group.rejoin(self, self._client_id, self._instance_id)
        return self._settled

    async def _revoke_locally(self) -> None:
        async with self._changing:
            owned = self._positions.partitions()
            self._settled = False
            self._positions.replace({})
            if owned:
                await self._run(self._on_revoked, owned)

    async def _run(self, callback: Rebalanced | None, partitions: frozenset[TopicPartition]) -> None:
        if callback is None:
            return
        running = self._callback = asyncio.get_running_loop().create_task(_awaited(callback, partitions))
        try:
            await asyncio.wait((running,))
        finally:
            running.cancel()
        if not running.cancelled() and (failure := running.exception()) is not None:
            self._failure = failure
            self._positions.wake()


async def _awaited(callback: Rebalanced, partitions: frozenset[TopicPartition]) -> None:
    await callback(partitions)

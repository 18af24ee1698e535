"""Consumer groups of the memory bus: who owns which partition, and what happens when somebody comes, goes or dies.

Owns: membership, range assignment, rebalances (everybody revokes, then everybody is assigned anew), static members,
session time-outs, committed offsets. Behaves like Kafka's classic protocol as aiokafka speaks it. Refuses: reading
records. Read next: `memory.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.runtime.bus.port import BusError, CommitRefusedError, TopicPartition


class Member(Protocol):
    """What a group asks of a consumer. `revoke` and `assign` return when its callbacks have."""

    topics: tuple[str, ...]

    def fence(self) -> None: ...

    async def revoke(self) -> None: ...

    async def assign(self, partitions: frozenset[TopicPartition], positions: Mapping[TopicPartition, int]) -> None: ...


@dataclass(slots=True)
class _Slot:
    """One member's place. A static member's slot outlives its process until the session ends."""

    member_id: str
    instance_id: str | None
    member: Member
    alive: bool = True
    partitions: frozenset[TopicPartition] = frozenset()
    generation: int = -1


def assign_by_range(
    topics_by_member: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, frozenset[TopicPartition]]:
    """Kafka's range assignment: per topic, members in the order of their ids get consecutive partitions, the first ones
    one more where it doesn't divide. Equal partition numbers of equally wide topics land on one member."""
    owned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in topics_by_member}
    for topic, count in sorted(partition_counts.items()):
        subscribers = sorted(member_id for member_id, topics in topics_by_member.items() if topic in topics)
        if not subscribers:
            continue
        share, extra = divmod(count, len(subscribers))
        start = 0
        for index, member_id in enumerate(subscribers):
            width = share + (1 if index < extra else 0)
            owned[member_id].extend((topic, partition) for partition in range(start, start + width))
            start += width
    return {member_id: frozenset(partitions) for member_id, partitions in owned.items()}


class MemoryGroup:
    """Coordinates one group. Rebalances run in one task at a time; a change during a rebalance starts another round."""

    def __init__(self, name: str, partition_counts: Mapping[str, int], session_timeout_s: float) -> None:
        self.name = name
        self.committed: dict[TopicPartition, int] = {}
        self.generation = 0
        self._partition_counts = partition_counts
        self._session_timeout_s = session_timeout_s
        self._slots: dict[str, _Slot] = {}
        self._joined_count = 0
        self._changed = False
        self._round: asyncio.Task[None] | None = None

    async def join(self, member: Member, client_id: str, instance_id: str | None) -> None:
        """Enter the group and return once the first assignment is complete.

        A known instance id takes the place of its predecessor, dead or alive, with its partitions and without a rebalance.
        """
        missing = sorted(set(member.topics) - self._partition_counts.keys())
        if missing:
            raise BusError(f"no such topic: {', '.join(missing)}")
        slot = None if instance_id is None else self._slots.get(instance_id)
        if slot is None:
            self._joined_count += 1
            member_id = instance_id or f"{client_id}-{self._joined_count:09d}"
            self._slots[member_id] = _Slot(member_id, instance_id, member)
            await asyncio.shield(self._start_round())
            return
        predecessor, was_alive = slot.member, slot.alive
        slot.member, slot.alive = member, True
        if was_alive:
            predecessor.fence()
        if self._round is None or self._round.done():
            await member.assign(slot.partitions, self._positions(slot.partitions))
        else:
            await asyncio.shield(self._start_round())

    async def rejoin(self, member: Member, client_id: str, instance_id: str | None) -> None:
        """Come back after having been expelled. If the place was given to somebody else, this member is fenced."""
        if instance_id is not None and instance_id in self._slots:
            member.fence()
            return
        await self.join(member, client_id, instance_id)

    def leave(self, member: Member) -> None:
        """A clean stop. A static member keeps its place until its session ends, as in Kafka."""
        slot = self._slot_of(member)
        if slot is None:
            return
        if slot.instance_id is None:
            self._drop(slot.member_id)
        else:
            self.lose(member)

    def lose(self, member: Member) -> None:
        """The process died: its partitions stay with it until its session times out."""
        slot = self._slot_of(member)
        if slot is None:
            return
        slot.alive = False
        asyncio.get_running_loop().call_later(self._session_timeout_s, self._end_session, slot.member_id, member)

    def expel(self, member: Member) -> None:
        """The process was silent for longer than its session but lives on: the group goes on without it."""
        slot = self._slot_of(member)
        if slot is not None:
            self._drop(slot.member_id)

    def has(self, member: Member) -> bool:
        return self._slot_of(member) is not None

    def commit(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        slot = self._slot_of(member)
        if slot is None or slot.generation != self.generation:
            raise CommitRefusedError(f"group {self.name} has been rebalanced meanwhile: the offsets are not stored")
        for partition in offsets:
            if partition not in slot.partitions:
                raise CommitRefusedError(f"{partition[0]}/{partition[1]} is not assigned to this member of {self.name}")
        self.committed.update(offsets)

    def _positions(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.committed[partition] for partition in partitions if partition in self.committed}

    def _slot_of(self, member: Member) -> _Slot | None:
        for slot in self._slots.values():
            if slot.member is member:
                return slot
        return None

    def _end_session(self, member_id: str, member: Member) -> None:
        slot = self._slots.get(member_id)
        if slot is not None and slot.member is member and not slot.alive:
            self._drop(member_id)

    def _drop(self, member_id: str) -> None:
        del self._slots[member_id]
        self._start_round()

    def _start_round(self) -> asyncio.Task[None]:
        self._changed = True
        if self._round is None or self._round.done():
            self._round = asyncio.get_running_loop().create_task(self._rebalance(), name=f"rebalance {self.name}")
        return self._round

    async def _rebalance(self) -> None:
        while self._changed:
            self._changed = False
            await asyncio.gather(*(slot.member.revoke() for slot in self._living()))
            if self._changed:
                continue
            self.generation += 1
            owned = assign_by_range(
                {slot.member_id: slot.member.topics for slot in self._slots.values()}, self._counts()
            )
            for slot in self._slots.values():
                slot.partitions, slot.generation = owned[slot.member_id], self.generation
            await asyncio.gather(
                *(slot.member.assign(slot.partitions, self._positions(slot.partitions)) for slot in self._living())
            )

    def _living(self) -> list[_Slot]:
        return [slot for slot in self._slots.values() if slot.alive]

    def _counts(self) -> dict[str, int]:
        topics = {topic for slot in self._slots.values() for topic in slot.member.topics}
        return {topic: self._partition_counts[topic] for topic in sorted(topics)}

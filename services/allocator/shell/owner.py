"""One owned cluster: its state, its place in the log, and the steps decide → append → project → snapshot, each at most one at a time."""

from __future__ import annotations

from msgspec.structs import replace

from schemas.catalog import Catalog
from schemas.decisions import Covered, DecisionInput
from schemas.messages import message
from schemas.placements import NodePlaced
from schemas.records import Message, Now
from services.allocator.core.advance import advance
from services.allocator.core.config import Policy
from services.allocator.core.decide import Decided, Settings, claim, decide
from services.allocator.core.project import placements, statuses
from services.allocator.core.reader import is_next
from services.allocator.core.snapshot import SLOTS, chunk_key, manifest_key, take
from services.allocator.core.state import Changes, State
from services.allocator.shell.log import SOURCE, append, load
from services.allocator.shell.projections import Projections
from services.runtime.bus.port import Bus, Producer
from services.runtime.clock import Clock

SNAPSHOT_EVERY = 500
"""Decisions between snapshots: a restart then reads at most so many records."""
CLAIM_TRIES_MAX = 20
"""Claims lost in a row before giving up: more means that another writer is alive and owns the cluster."""


class LostOwnershipError(Exception):
    """The log says that another writer decides for this cluster; reload before deciding again."""


class ClusterOwner:
    """Created by `take_over`; raises LostOwnershipError from `decide` when a record was not accepted."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        catalog: Catalog,
        cluster: str,
        settings: Settings,
        producer: Producer,
        client_id: str,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._cluster = cluster
        self._settings = settings
        self._client_id = client_id
        self._slot = SLOTS[0]
        self._since_snapshot = 0
        self._shown: dict[str, NodePlaced] = {}
        self.decide_s = 0.0
        self.partition = catalog.partition_of(cluster)
        self.producer = producer
        self.projections = Projections(bus, clock, f"{client_id}-projections")
        self.next_offset = 0
        self.state = State(cluster=cluster)

    @property
    def policy(self) -> Policy:
        """What this cluster is decided by."""
        return self._settings.policy

    async def take_over(self) -> None:
        """Read the log to its end, append a claim, and own the cluster once the claim is accepted; then re-emit the projections.

        May be repeated after a BusError, with a new producer.
        """
        step_ms = self._settings.policy.step_ms
        await self.projections.stop()
        self.projections.start()
        for _ in range(CLAIM_TRIES_MAX):
            loaded = await load(self._bus, self._cluster, self.partition, step_ms, self._client_id)
            self.state, self.next_offset = loaded.state, loaded.next_offset
            self._slot = SLOTS[1 - SLOTS.index(loaded.newest_slot)]
            record = claim(self.state, self._now(), self._settings)
            if await append(self.producer, record, self.partition, self.next_offset):
                assert is_next(self.state, record), "a claim that landed at the end follows the last record"
                advance(self.state, record, step_ms)
                self.next_offset += 1
                self._since_snapshot = loaded.decisions_read
                await self._reemit(loaded.changes)
                return
        raise LostOwnershipError(f"{CLAIM_TRIES_MAX} claims on {self._cluster} were lost to another writer")

    async def decide(self, inputs: list[DecisionInput], covered: list[Covered]) -> Decided | None:
        """One decision, appended and projected; None if there was nothing to write down.

        Raises LostOwnershipError or SendUnknownError: the state is then unknown, and the caller takes over again or stops.
        """
        begun_s = self._clock.wall_s()
        decided = decide(self.state, inputs, covered, self._now(), self._settings)
        self.decide_s = self._clock.wall_s() - begun_s
        changes = decided.changes  # time alone may end a job: one that was cancelled, and whose start is given up
        if not (decided.record.effects or covered or inputs or changes.jobs or changes.nodes):
            self._undo_empty(decided)
            return None
        if not await append(self.producer, decided.record, self.partition, self.next_offset):
            raise LostOwnershipError(f"decision {decided.record.sequence} of {self._cluster} was not accepted")
        self.next_offset += 1
        await self.projections.put(self._projected(changes))
        self._since_snapshot += 1
        if self._since_snapshot >= SNAPSHOT_EVERY:
            await self.snapshot()
        return decided

    async def snapshot(self) -> None:
        """Write the state as of the last accepted decision, behind the projections of all decisions it stands for."""
        chunks, manifest = take(self.state, self._slot, self.next_offset)
        identity = f"{self._cluster}/{self.state.sequence}"
        messages = [
            self._message(chunk, chunk_key(self._cluster, self._slot, chunk.index), f"{identity}/chunk/{chunk.index}")
            for chunk in chunks
        ]
        await self.projections.put(messages, alone=True)
        key = manifest_key(self._cluster, self._slot)
        await self.projections.put([self._message(manifest, key, f"{identity}/manifest")], alone=True)
        self._slot = SLOTS[1 - SLOTS.index(self._slot)]
        self._since_snapshot = 0

    def _undo_empty(self, decided: Decided) -> None:
        """A decision without inputs, effects and changes has nothing but its own identity: it is not written, the log goes on."""
        self.state.sequence -= 1
        self.state.last_id = decided.record.parent

    def _now(self) -> Now:
        return Now(domain_ms=self._clock.now_ms(), wall_ms=self._clock.wall_ms())

    def _projected(self, changes: Changes) -> list[Message]:
        identity = f"{self._cluster}/{self.state.sequence}"
        messages = []
        for placed in placements(self.state, list(changes.nodes)):
            # A report that a job started changes its status, not what its node shall do: executors needn't hear of it.
            desired = replace(placed, sequence=0, epoch=0, time_ms=0)
            if self._shown.get(placed.node) != desired:
                self._shown[placed.node] = desired
                messages.append(self._message(placed, placed.node, f"{identity}/{placed.node}"))
        for status in statuses(self.state, changes):
            owner = (
                self.state.jobs.get(status.job_id)
                or changes.ended.get(status.job_id)
                or self.state.apps.get(status.job_id)
            )
            messages.append(
                message(
                    status,
                    key=status.job_id,
                    id=f"{identity}/{status.job_id}",
                    source=SOURCE,
                    time_ms=status.time_ms,
                    traceparent=owner.traceparent if owner is not None else "",
                )
            )
        return messages

    async def _reemit(self, changes: Changes) -> None:
        """Everything an earlier owner may not have projected: all nodes, all live jobs, all that ended since the snapshot."""
        self._shown.clear()
        changes.nodes.update(dict.fromkeys(self.state.nodes))
        changes.nodes.update(dict.fromkeys(self.state.forgotten))
        changes.jobs.update(dict.fromkeys(self.state.jobs))
        changes.jobs.update(dict.fromkeys(self.state.apps))
        await self.projections.put(self._projected(changes))

    def _message(self, event, key: str, id: str) -> Message:
        return message(event, key=key, id=id, source=SOURCE, time_ms=self.state.now_ms, partition=self.partition)

    async def new_producer(self) -> None:
        """A producer that met an unknown send is done for."""
        await self.producer.stop()
        self.producer = self._bus.producer(self._client_id)
        await self.producer.start()

    async def leave(self) -> None:
        """Write a snapshot and everything that waits; then `stop`. The successor starts from there."""
        await self.snapshot()
        await self.projections.drained()

    async def stop(self) -> None:
        """Let go at once. What was not projected is the next owner's to emit."""
        await self.projections.stop()
        await self.producer.stop()

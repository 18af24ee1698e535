"""One node as telemetry knows it: inventory, health of its GPUs, and the state worth publishing.

Owns: what one sample changes. A GPU that reports an error, or is missing from the sample, is unhealthy at once and healthy
again after a few good samples in a row; a value out of bounds changes nothing but marks the last one stale. Refuses: time
passing (`silence.py`) and publishing (`handler.py`). Read next: `gpu.py`, `ailments.py`, `silence.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.nodes import Finding, FindingCode, GpuSample, Health, HealthAction, NodeSampled, NodeStateChanged, Topology
from services.telemetry.core.findings import NodeWatch, Seen, traffic_is_high
from services.telemetry.core.gpu import Gpu, restored_gpu
from services.telemetry.core.health_policy import Policy
from services.telemetry.core.holders import Holder
from services.telemetry.core.readings import believed, believed_traffic

BACKWARDS_MAX = 3
"""Samples in a row that may lie far before the last one; then the agent's clock was set and counts anew."""
REPEATED_S = 60.0
"""Less far back it is a sample that came twice or late, as after our own restart: never counted, however many."""
GAP_PERIODS_MAX = 3
"""A sample stands for the time since the last one, for at most so many periods."""
OUT_OF_ORDER = ("repeated", "time_backwards")
"""Reason codes of samples that are not folded in, since they aren't newer than the last one."""
MISSING = "missing from the sample"
ORPHAN = "orphan process"


@dataclass
class Node:
    """`sampled_ms`: agent's wall time of the last sample; `garbled`: reason code if the last sample could not be read."""

    name: str
    cluster: str
    pool: str
    rack: str = "r0"
    order: int = 0
    gpu_model: str = ""
    driver: str = ""
    source: str = ""
    topology: Topology | None = None
    period_s: float = 5.0
    incarnation: int = 0
    machine: str | None = None
    slots_per_card: int = 1
    gpus: dict[int, Gpu] = field(default_factory=dict)
    watch: NodeWatch = field(default_factory=NodeWatch)
    seen: list[Seen] = field(default_factory=list)
    sampled_ms: int = -1
    backwards: int = 0
    garbled: str = ""
    extra: list[Finding] = field(default_factory=list)

    def take(self, sample: NodeSampled, policy: Policy, held: dict[int, Holder]) -> list[str]:
        """Fold one sample in; returns what was rejected of it (field names, or a reason code for all of it)."""
        passed_ms = sample.wall_ms - self.sampled_ms
        if refused := self._out_of_order(sample.wall_ms):
            self.seen = []
            return [refused]
        self.pool, self.rack, self.order = sample.pool, sample.rack, sample.order
        self.driver, self.period_s, self.garbled, self.source = sample.driver, sample.period_s, "", sample.source
        self.machine, self.slots_per_card = sample.machine, sample.slots_per_card
        self.topology = sample.topology or self.topology
        network, disk, strange = believed_traffic(sample.host)
        rejected: list[str] = ["host_traffic"] * strange
        self.seen = []
        boot_id = "" if sample.host is None else sample.host.boot_id
        listed: dict[int, None] = {}
        for gpu in sample.gpus:
            if gpu.index in listed:
                rejected.append("index")
                continue
            listed[gpu.index] = None
            rejected.extend(self._take_gpu(gpu, boot_id, sample.wall_ms))
        for index, known in self.gpus.items():
            if index not in listed:
                known.fail(MISSING)
        stands_for_ms = min(max(0, passed_ms), round(GAP_PERIODS_MAX * self.period_s * 1000))
        self.watch.take(self.seen, held, stands_for_ms, traffic=traffic_is_high(network, disk))
        orphans = self.watch.orphans()
        for index, known in self.gpus.items():
            known.ailments.set(ORPHAN, index in orphans, sample.wall_ms)
            known.settle(policy, sample.wall_ms)
        return rejected

    def pardon(self) -> None:
        """An operator has looked and says that the node is fine."""
        for gpu in self.gpus.values():
            gpu.ailments.pardon()

    def answering(self) -> Health:
        """Health of a node that is heard."""
        return Health.USABLE if all(gpu.placeable for gpu in self.gpus.values()) else Health.DEGRADED

    def asks_for_drain(self) -> list[int]:
        return [index for index, gpu in sorted(self.gpus.items()) if gpu.action is HealthAction.DRAIN]

    def state(self, health: Health, time_ms: int, policy: Policy) -> NodeStateChanged:
        """What to publish about it now."""
        gpus = [self.gpus[index] for index in sorted(self.gpus)]
        return NodeStateChanged(
            node=self.name,
            cluster=self.cluster,
            pool=self.pool,
            time_ms=time_ms,
            health=health,
            gpus=[gpu.state(self.sampled_ms, bool(self.garbled)) for gpu in gpus],
            rack=self.rack,
            order=self.order,
            gpu_model=self.gpu_model,
            driver=self.driver,
            incarnation=self.incarnation,
            findings=self._findings(gpus, policy),
            source=self.source,
            topology=self.topology,
            machine=self.machine,
            slots_per_card=self.slots_per_card,
            sampled_ms=max(0, self.sampled_ms),
        )

    def _out_of_order(self, wall_ms: int) -> str:
        """The reason code if the sample must not be folded in."""
        if wall_ms > self.sampled_ms:
            self.sampled_ms, self.backwards = wall_ms, 0
            return ""
        if self.sampled_ms - wall_ms < REPEATED_S * 1000:
            return "repeated" if wall_ms == self.sampled_ms else "time_backwards"
        self.backwards += 1
        if self.backwards <= BACKWARDS_MAX:
            return "time_backwards"
        self.sampled_ms, self.backwards = wall_ms, 0
        for gpu in self.gpus.values():
            gpu.utilization.clear()
            gpu.memory.clear()
        return ""

    def _take_gpu(self, sample: GpuSample, boot_id: str, wall_ms: int) -> tuple[str, ...]:
        gpu = self.gpus.get(sample.index)
        if gpu is None:
            gpu = self.gpus[sample.index] = Gpu(sample.index, sample.uuid)
        reading = believed(sample)
        whole = sample.error is None
        used = reading.memory_used_mib if whole else None
        busy = reading.utilization_pct if whole else None
        self.seen.append(Seen(sample, busy, used, trusted=not reading.rejected))
        if not whole:
            gpu.fail(sample.error or "unnamed error")
            gpu.ailments.take(sample, reading, boot_id, wall_ms, answers=False)
            return ()
        if sample.model:
            self.gpu_model = sample.model
        gpu.read(sample, reading, boot_id, wall_ms)
        return reading.rejected

    def _findings(self, gpus: list[Gpu], policy: Policy) -> list[Finding]:
        found = []
        if self.garbled:
            found.append(Finding(code=FindingCode.REJECTED_SAMPLE, detail=self.garbled))
        for gpu in gpus:
            found.extend(gpu.findings(policy))
        return [*found, *self.watch.findings(), *self.extra]


def restored(state: NodeStateChanged) -> Node:
    """The node as it was last published. Of one that nobody heard any more, samples up to its last one are old. Of the others they count
    as new: what has been counted of their usage since that was published is known to nobody."""
    silent = state.health in (Health.SUSPECT, Health.LOST)
    node = Node(
        name=state.node,
        cluster=state.cluster,
        pool=state.pool,
        rack=state.rack,
        order=state.order,
        gpu_model=state.gpu_model,
        driver=state.driver,
        source=state.source,
        topology=state.topology,
        incarnation=state.incarnation,
        machine=state.machine,
        slots_per_card=state.slots_per_card,
        sampled_ms=state.sampled_ms if silent and state.sampled_ms else -1,
    )
    for gpu in state.gpus:
        node.gpus[gpu.index] = restored_gpu(gpu, state)
    return node

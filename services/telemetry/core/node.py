"""One node as telemetry knows it: inventory, health of its GPUs, and the state worth publishing.

Owns: what one sample changes. A GPU that reports an error, or is missing from the sample, is unhealthy at once and healthy
again after a few good samples in a row; a value out of bounds changes nothing but marks the last one stale. Refuses: time
passing (`silence.py`) and publishing (`handler.py`). Read next: `readings.py`, `silence.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.nodes import Finding, FindingCode, GpuSample, GpuState, Health, NodeSampled, NodeStateChanged
from services.telemetry.core.readings import Reading, believed
from services.telemetry.core.window import Window

GOOD_SAMPLES_MIN = 3
"""In a row, before a GPU that failed counts as healthy again: one good answer between two errors is no recovery."""
BACKWARDS_MAX = 3
"""Samples in a row that may lie before the last one (late or repeated); then the agent's clock was set and counts anew."""
DETAIL_LENGTH_MAX = 256
MISSING = "missing from the sample"


@dataclass
class Gpu:
    """Last believed facts about one GPU. `error` "" while it answers; `bad_fields`: rejected in the last sample."""

    index: int
    uuid: str
    memory_total_mib: int = 0
    memory_used_mib: float = 0.0
    utilization_pct: float = 0.0
    healthy: bool = True
    error: str = ""
    good_samples: int = GOOD_SAMPLES_MIN
    bad_fields: tuple[str, ...] = ()
    utilization: Window = field(default_factory=Window)
    memory: Window = field(default_factory=Window)

    def fail(self, error: str) -> None:
        self.healthy, self.error, self.good_samples = False, error[:DETAIL_LENGTH_MAX], 0

    def read(self, sample: GpuSample, reading: Reading, wall_ms: int) -> None:
        """Take over what is believed of a sample without error."""
        self.uuid = sample.uuid
        self.good_samples = min(self.good_samples + 1, GOOD_SAMPLES_MIN)
        if not self.healthy and self.good_samples >= GOOD_SAMPLES_MIN:
            self.healthy, self.error = True, ""
        self.bad_fields = reading.rejected
        if reading.memory_total_mib is not None:
            self.memory_total_mib = round(reading.memory_total_mib)
        if reading.utilization_pct is not None:
            self.utilization.add(wall_ms, reading.utilization_pct)
        if reading.memory_used_mib is not None:
            self.memory.add(wall_ms, reading.memory_used_mib)

    def state(self, wall_ms: int, garbled: bool) -> GpuState:
        """With the means of the last minute, or the last known ones where nothing was believed."""
        utilization, memory = self.utilization.mean(wall_ms), self.memory.mean(wall_ms)
        if utilization is not None:
            self.utilization_pct = round(utilization, 2)
        if memory is not None:
            self.memory_used_mib = memory
        return GpuState(
            index=self.index,
            uuid=self.uuid,
            healthy=self.healthy,
            memory_total_mib=self.memory_total_mib,
            memory_used_mib=round(self.memory_used_mib),
            utilization_pct=self.utilization_pct,
            stale=garbled or bool(self.bad_fields) or bool(self.error),
        )


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
    period_s: float = 5.0
    incarnation: int = 0
    gpus: dict[int, Gpu] = field(default_factory=dict)
    sampled_ms: int = -1
    backwards: int = 0
    garbled: str = ""

    def take(self, sample: NodeSampled) -> list[str]:
        """Fold one sample in; returns what was rejected of it (field names, or `time_backwards` for all of it)."""
        if not self._in_order(sample.wall_ms):
            return ["time_backwards"]
        self.pool, self.rack, self.order = sample.pool, sample.rack, sample.order
        self.driver, self.period_s, self.garbled = sample.driver, sample.period_s, ""
        rejected: list[str] = []
        seen: dict[int, None] = {}
        for gpu in sample.gpus:
            if gpu.index in seen:
                rejected.append("index")
                continue
            seen[gpu.index] = None
            rejected.extend(self._take_gpu(gpu, sample.wall_ms))
        for index, known in self.gpus.items():
            if index not in seen:
                known.fail(MISSING)
        return rejected

    def answering(self) -> Health:
        """Health of a node that is heard."""
        return Health.USABLE if all(gpu.healthy for gpu in self.gpus.values()) else Health.DEGRADED

    def state(self, health: Health, time_ms: int) -> NodeStateChanged:
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
            findings=self._findings(gpus),
        )

    def _in_order(self, wall_ms: int) -> bool:
        if wall_ms > self.sampled_ms:
            self.sampled_ms, self.backwards = wall_ms, 0
            return True
        self.backwards += 1
        if self.backwards <= BACKWARDS_MAX:
            return False
        self.sampled_ms, self.backwards = wall_ms, 0
        for gpu in self.gpus.values():
            gpu.utilization.clear()
            gpu.memory.clear()
        return True

    def _take_gpu(self, sample: GpuSample, wall_ms: int) -> tuple[str, ...]:
        gpu = self.gpus.get(sample.index)
        if gpu is None:
            gpu = self.gpus[sample.index] = Gpu(sample.index, sample.uuid)
        if sample.error is not None:
            gpu.fail(sample.error or "unnamed error")
            return ()
        if sample.model:
            self.gpu_model = sample.model
        reading = believed(sample)
        gpu.read(sample, reading, wall_ms)
        return reading.rejected

    def _findings(self, gpus: list[Gpu]) -> list[Finding]:
        found = []
        if self.garbled:
            found.append(Finding(code=FindingCode.REJECTED_SAMPLE, detail=self.garbled))
        for gpu in gpus:
            if gpu.error:
                found.append(Finding(code=FindingCode.GPU_ERROR, gpu=gpu.index, detail=gpu.error))
            if gpu.bad_fields:
                detail = ", ".join(gpu.bad_fields)
                found.append(Finding(code=FindingCode.REJECTED_SAMPLE, gpu=gpu.index, detail=detail))
        return found


def restored(state: NodeStateChanged) -> Node:
    """The node as it was last published."""
    errors = {found.gpu: found.detail for found in state.findings if found.code is FindingCode.GPU_ERROR}
    node = Node(
        name=state.node,
        cluster=state.cluster,
        pool=state.pool,
        rack=state.rack,
        order=state.order,
        gpu_model=state.gpu_model,
        driver=state.driver,
        incarnation=state.incarnation,
    )
    for gpu in state.gpus:
        node.gpus[gpu.index] = Gpu(
            index=gpu.index,
            uuid=gpu.uuid,
            memory_total_mib=gpu.memory_total_mib,
            memory_used_mib=float(gpu.memory_used_mib),
            utilization_pct=gpu.utilization_pct,
            healthy=gpu.healthy,
            error=errors.get(gpu.index, "") if not gpu.healthy else "",
            good_samples=GOOD_SAMPLES_MIN if gpu.healthy else 0,
        )
    return node

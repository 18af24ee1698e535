"""One GPU as telemetry knows it: last believed facts, whether it answers, and what ails it.

Owns: two reasons for not placing anything on a GPU, kept apart: it doesn't answer (`healthy`), or the health policy says so
(`ailments`). Refuses: other GPUs and time passing. Read next: `ailments.py`, `node.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.nodes import Finding, FindingCode, GpuSample, GpuState, HealthAction, NodeStateChanged
from services.telemetry.core.ailments import DETAIL_LENGTH_MAX, GOOD_SAMPLES_MIN, Ailment, Ailments, key_of
from services.telemetry.core.health_policy import Policy
from services.telemetry.core.readings import Reading
from services.telemetry.core.window import Window


@dataclass
class Gpu:
    """`error` "" while it answers; `bad_fields`: rejected in the last sample; `action`: the policy's strictest wish."""

    index: int
    uuid: str
    memory_total_mib: int = 0
    memory_used_mib: float = 0.0
    utilization_pct: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0
    ecc_uncorrected: int = 0
    processes: int = 0
    mig: bool = False
    healthy: bool = True
    error: str = ""
    good_samples: int = GOOD_SAMPLES_MIN
    bad_fields: tuple[str, ...] = ()
    action: HealthAction = HealthAction.COUNT
    utilization: Window = field(default_factory=Window)
    memory: Window = field(default_factory=Window)
    ailments: Ailments = field(default_factory=Ailments)

    @property
    def placeable(self) -> bool:
        return self.healthy and self.action is HealthAction.COUNT

    def fail(self, error: str) -> None:
        self.healthy, self.error, self.good_samples = False, error[:DETAIL_LENGTH_MAX], 0

    def read(self, sample: GpuSample, reading: Reading, boot_id: str, wall_ms: int) -> None:
        """Take over what is believed of a sample without error."""
        self.uuid = sample.uuid
        self.good_samples = min(self.good_samples + 1, GOOD_SAMPLES_MIN)
        if not self.healthy and self.good_samples >= GOOD_SAMPLES_MIN:
            self.healthy, self.error = True, ""
        self.bad_fields = reading.rejected
        self.ailments.take(sample, reading, boot_id, wall_ms, answers=True)
        self.processes = sample.processes_total or len(sample.processes)
        self.mig = bool(sample.mig)
        if reading.memory_total_mib is not None:
            self.memory_total_mib = round(reading.memory_total_mib)
        if reading.power_w is not None:
            self.power_w = reading.power_w
        if reading.temperature_c is not None:
            self.temperature_c = reading.temperature_c
        if reading.ecc_uncorrected is not None:
            self.ecc_uncorrected = round(reading.ecc_uncorrected)
        if reading.utilization_pct is not None:
            self.utilization.add(wall_ms, reading.utilization_pct)
        if reading.memory_used_mib is not None:
            self.memory.add(wall_ms, reading.memory_used_mib)

    def settle(self, policy: Policy, wall_ms: int) -> None:
        """What of its errors is over by now, and what the rest asks for."""
        self.ailments.settle(policy, wall_ms)
        self.action = self.ailments.action(policy)

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
            healthy=self.placeable,
            memory_total_mib=self.memory_total_mib,
            memory_used_mib=round(self.memory_used_mib),
            utilization_pct=self.utilization_pct,
            stale=garbled or bool(self.bad_fields) or bool(self.error),
            action=self.action,
            power_w=round(self.power_w, 1),
            temperature_c=round(self.temperature_c, 1),
            ecc_uncorrected=self.ecc_uncorrected,
            processes=self.processes,
            mig=self.mig,
        )

    def findings(self, policy: Policy) -> list[Finding]:
        found = []
        if self.error:
            action = HealthAction.STOP_PLACING
            found.append(Finding(code=FindingCode.GPU_ERROR, gpu=self.index, detail=self.error, action=action))
        if self.bad_fields:
            detail = ", ".join(self.bad_fields)[:DETAIL_LENGTH_MAX]
            found.append(Finding(code=FindingCode.REJECTED_SAMPLE, gpu=self.index, detail=detail))
        return [*found, *self.ailments.findings(policy, self.index)]


def restored_gpu(gpu: GpuState, state: NodeStateChanged) -> Gpu:
    """As it was last published: an error that kept work away goes on keeping it away."""
    mine = [found for found in state.findings if found.gpu == gpu.index]
    keys = [key for found in mine if (key := key_of(found))]
    errors = [found.detail for found in mine if found.code is FindingCode.GPU_ERROR and not key_of(found)]
    silent = bool(errors) or (not gpu.healthy and gpu.action is HealthAction.COUNT)
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        memory_total_mib=gpu.memory_total_mib,
        memory_used_mib=float(gpu.memory_used_mib),
        utilization_pct=gpu.utilization_pct,
        power_w=gpu.power_w,
        temperature_c=gpu.temperature_c,
        ecc_uncorrected=gpu.ecc_uncorrected,
        processes=gpu.processes,
        mig=gpu.mig,
        healthy=not silent,
        error=errors[0] if silent and errors else "",
        good_samples=0 if silent else GOOD_SAMPLES_MIN,
        action=gpu.action,
        ailments=Ailments(open={key: Ailment(0) for key in keys}, ecc_uncorrected=float(gpu.ecc_uncorrected)),
    )

"""What ails one GPU: errors that count against it until what its rule asks for has been seen.

Owns: which errors are open, evidence of a reset (volatile error counters or the energy counter that begin anew, a new boot),
and the operator's word that a node is fine. Refuses: judging what an error means (`health_policy.py`). Read next: `node.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.nodes import Finding, FindingCode, GpuSample, HealthAction
from services.telemetry.core.health_policy import Policy, Recovery, strictest
from services.telemetry.core.readings import POWER_W_MAX, Reading

GOOD_SAMPLES_MIN = 3
"""In a row, before a GPU that failed counts as healthy again: one good answer between two errors is no recovery."""
SHOWN_S = 600.0
"""How long an error that is only counted stays among the findings: long enough to be seen, short enough to be news."""
RESET_SAMPLES = 2
"""A counter that begins anew must still be low in the next sample: one low value is more likely rubbish."""
DETAIL_LENGTH_MAX = 256
CODES = {
    "xid": FindingCode.XID,
    "ecc": FindingCode.ECC_ERROR,
    "row": FindingCode.ROW_REMAP,
    "orphan": FindingCode.ORPHAN_PROCESS,
}


@dataclass
class Ailment:
    """`good`: samples in a row without it; `reset`: whether a reset was seen after it."""

    seen_ms: int
    good: int = 0
    reset: bool = False


@dataclass
class Ailments:
    """Of one GPU, by the policy's keys."""

    open: dict[str, Ailment] = field(default_factory=dict)
    ecc_uncorrected: float = 0.0
    energy_j: float = -1.0
    energy_ms: int = 0
    lower: int = 0
    boot_id: str = ""

    def take(self, sample: GpuSample, reading: Reading, boot_id: str, wall_ms: int, *, answers: bool) -> None:
        """Fold one sample. A GPU that doesn't answer may have errors, but is on no way to recovery."""
        was_reset = self._reset_seen(reading, boot_id, wall_ms)
        now = dict.fromkeys([*(f"xid {one.code}" for one in sample.xids), *self._flags(sample, reading)], wall_ms)
        for key, ailment in self.open.items():
            if was_reset:
                ailment.reset, ailment.good = True, 0
            ailment.good = 0 if key in now or not answers else ailment.good + 1
        for key in now:
            known = self.open.setdefault(key, Ailment(wall_ms))
            known.seen_ms, known.reset = wall_ms, False

    def settle(self, policy: Policy, wall_ms: int) -> None:
        """Drop what is over."""
        self.open = {key: each for key, each in self.open.items() if not _over(key, each, policy, wall_ms)}

    def pardon(self) -> None:
        """An operator says the node is fine."""
        self.open = {}

    def set(self, key: str, present: bool, wall_ms: int) -> None:
        """An error that others noticed (an orphan process)."""
        if present:
            self.open.setdefault(key, Ailment(wall_ms)).seen_ms = wall_ms
            self.open[key].good = 0
        elif key in self.open:
            self.open[key].good += 1

    def action(self, policy: Policy) -> HealthAction:
        return strictest(policy.rule(key).action for key in self.open)

    def findings(self, policy: Policy, gpu: int) -> list[Finding]:
        return [
            Finding(
                code=CODES.get(key.split()[0], FindingCode.GPU_ERROR),
                gpu=gpu,
                detail=f"{key}: {policy.rule(key).meaning}",
                action=policy.rule(key).action,
            )
            for key in self.open
        ]

    def _flags(self, sample: GpuSample, reading: Reading) -> list[str]:
        flags = []
        if reading.ecc_uncorrected:
            flags.append("ecc uncorrected")
        if reading.remap_pending:
            flags.append("row remap pending")
        if reading.remap_failed:
            flags.append("row remap failed")
        if sample.recovery_action:
            flags.append(f"recovery {sample.recovery_action}")
        return flags

    def _reset_seen(self, reading: Reading, boot_id: str, wall_ms: int) -> bool:
        """Energy counts from the driver's load, volatile errors from the last reset: lower than before means one of them."""
        booted = bool(boot_id and self.boot_id and boot_id != self.boot_id)
        self.boot_id = boot_id or self.boot_id
        if reading.rejected:
            return booted  # a card that talks rubbish proves nothing
        passed_s = max(0, wall_ms - self.energy_ms) / 1000
        if reading.energy_j is not None and 0 <= self.energy_j < reading.energy_j - POWER_W_MAX * passed_s:
            return booted  # more than any card can use
        fewer_errors = reading.ecc_uncorrected is not None and reading.ecc_uncorrected < self.ecc_uncorrected
        less_energy = reading.energy_j is not None and reading.energy_j < self.energy_j
        self.lower = self.lower + 1 if fewer_errors or less_energy else 0
        if 0 < self.lower < RESET_SAMPLES:
            return booted  # the old values stand until the next sample agrees
        seen, self.lower = self.lower >= RESET_SAMPLES, 0
        if reading.ecc_uncorrected is not None:
            self.ecc_uncorrected = reading.ecc_uncorrected
        if reading.energy_j is not None:
            self.energy_j, self.energy_ms = reading.energy_j, wall_ms
        return seen or booted


def _over(key: str, ailment: Ailment, policy: Policy, wall_ms: int) -> bool:
    rule = policy.rule(key)
    if rule.action is HealthAction.COUNT:
        return ailment.good >= 1 and wall_ms - ailment.seen_ms >= SHOWN_S * 1000
    if ailment.good < GOOD_SAMPLES_MIN:
        return False
    return rule.recovery is Recovery.SAMPLES or ailment.reset


def key_of(finding: Finding) -> str:
    """The policy's key of a published finding; "" if it has none."""
    ours = (FindingCode.XID, FindingCode.ECC_ERROR, FindingCode.ROW_REMAP, FindingCode.ORPHAN_PROCESS)
    key, separator, _ = finding.detail.partition(": ")
    return key if separator and (finding.code in ours or key.startswith("recovery ")) else ""

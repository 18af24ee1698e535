"""What a reading must look like to be believed. NVML and its exporters return rubbish on some cards and drivers.

Owns: the bounds, and the split of a sample into believed values and names of rejected fields. Refuses: repairing (a value
out of bounds is no hint at the true one). Read next: `node.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from schemas.nodes import GpuSample

UTILIZATION_PCT_MAX = 100.0
MEMORY_MIB_MAX = 16_777_216.0
"""The contract's bound: 16 TiB on one card."""
USED_OVER_TOTAL_MAX = 1.02
"""Used memory may exceed the total by what the driver reserves, depending on which call was used."""
POWER_W_MAX = 10_000.0
TEMPERATURE_C_MIN = -50.0
TEMPERATURE_C_MAX = 200.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Believed values of one GPU; None where missing or rejected. `rejected`: fields whose value was out of bounds."""

    utilization_pct: float | None
    memory_total_mib: float | None
    memory_used_mib: float | None
    rejected: tuple[str, ...]


def believed(sample: GpuSample) -> Reading:
    """Split one GPU's sample. A missing field is not rubbish: not every card can tell everything."""
    rejected: list[str] = []

    def within(name: str, value: float | None, low: float, high: float) -> float | None:
        if value is None:
            return None
        if math.isfinite(value) and low <= value <= high:
            return float(value)
        rejected.append(name)
        return None

    utilization = within("utilization_pct", sample.utilization_pct, 0.0, UTILIZATION_PCT_MAX)
    total = within("memory_total_mib", sample.memory_total_mib, 0.0, MEMORY_MIB_MAX)
    used_max = MEMORY_MIB_MAX if total is None else total * USED_OVER_TOTAL_MAX
    used = within("memory_used_mib", sample.memory_used_mib, 0.0, used_max)
    within("power_w", sample.power_w, 0.0, POWER_W_MAX)
    within("temperature_c", sample.temperature_c, TEMPERATURE_C_MIN, TEMPERATURE_C_MAX)
    return Reading(utilization, total, used, tuple(rejected))

"""What a reading must look like to be believed. NVML and its exporters return rubbish on some cards and drivers.

Owns: the bounds, and the split of a sample into believed values and names of rejected fields. Refuses: repairing (a value
out of bounds is no hint at the true one). Bounds are what hardware can do, not what is usual. Read next: `node.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from schemas.nodes import GpuSample, HostSample

UTILIZATION_PCT_MAX = 100.0
MEMORY_MIB_MAX = 16_777_216.0
"""The contract's bound: 16 TiB on one card."""
USED_OVER_TOTAL_MAX = 1.02
"""Used memory may exceed the total by what the driver reserves, depending on which call was used."""
POWER_W_MAX = 10_000.0
TEMPERATURE_C_MIN = -50.0
TEMPERATURE_C_MAX = 200.0
CLOCK_MHZ_MAX = 20_000.0
ENERGY_J_MAX = 1e13
"""POWER_W_MAX for thirty years."""
ECC_ERRORS_MAX = 1e8
"""A card with so many would have been taken out long before; rubbish is mostly larger."""
ROWS_MAX = 65_536.0
"""Spare rows are some hundreds per card."""
TRAFFIC_BYTES_MAX = 1e18
"""A counter at 10 TB/s for a day."""
LINK_ERRORS_MAX = 1e12
HOST_BYTES_PER_S_MAX = 1e12

BOUNDS: dict[str, tuple[float, float]] = {
    "power_w": (0.0, POWER_W_MAX),
    "power_limit_w": (0.0, POWER_W_MAX),
    "energy_j": (0.0, ENERGY_J_MAX),
    "temperature_c": (TEMPERATURE_C_MIN, TEMPERATURE_C_MAX),
    "sm_clock_mhz": (0.0, CLOCK_MHZ_MAX),
    "memory_clock_mhz": (0.0, CLOCK_MHZ_MAX),
    "ecc_corrected": (0.0, ECC_ERRORS_MAX),
    "ecc_uncorrected": (0.0, ECC_ERRORS_MAX),
    "pcie_tx_bytes": (0.0, TRAFFIC_BYTES_MAX),
    "pcie_rx_bytes": (0.0, TRAFFIC_BYTES_MAX),
    "pcie_replays": (0.0, LINK_ERRORS_MAX),
    "nvlink_tx_bytes": (0.0, TRAFFIC_BYTES_MAX),
    "nvlink_rx_bytes": (0.0, TRAFFIC_BYTES_MAX),
    "nvlink_errors": (0.0, LINK_ERRORS_MAX),
}
"""Of the fields whose bounds don't depend on others."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Believed values of one GPU; None where missing or rejected. `rejected`: fields whose value was out of bounds."""

    utilization_pct: float | None
    memory_total_mib: float | None
    memory_used_mib: float | None
    power_w: float | None
    energy_j: float | None
    temperature_c: float | None
    ecc_uncorrected: float | None
    remap_pending: bool
    remap_failed: bool
    rejected: tuple[str, ...]


def believed(sample: GpuSample) -> Reading:
    """Split one GPU's sample. A missing field is not rubbish: not every card can tell everything."""
    rejected: list[str] = []

    def within(name: str, value: float | None, low: float, high: float) -> float | None:
        if value is None:
            return None
        if low <= value <= high:  # no infinity and no NaN is
            return float(value)
        rejected.append(name)
        return None

    utilization = within("utilization_pct", sample.utilization_pct, 0.0, UTILIZATION_PCT_MAX)
    total = within("memory_total_mib", sample.memory_total_mib, 0.0, MEMORY_MIB_MAX)
    used_max = MEMORY_MIB_MAX if total is None else total * USED_OVER_TOTAL_MAX
    used = within("memory_used_mib", sample.memory_used_mib, 0.0, used_max)
    others = {name: within(name, getattr(sample, name), low, high) for name, (low, high) in BOUNDS.items()}
    rows = sample.remapped_rows
    if rows is not None:
        counts = (
            within("remapped_rows", rows.correctable, 0.0, ROWS_MAX),
            within("remapped_rows", rows.uncorrectable, 0.0, ROWS_MAX),
        )
        rows = None if None in counts else rows
    return Reading(
        utilization_pct=utilization,
        memory_total_mib=total,
        memory_used_mib=used,
        power_w=others["power_w"],
        energy_j=others["energy_j"],
        temperature_c=others["temperature_c"],
        ecc_uncorrected=others["ecc_uncorrected"],
        remap_pending=rows is not None and rows.pending,
        remap_failed=rows is not None and rows.failed,
        rejected=tuple(dict.fromkeys(rejected)),
    )


def believed_traffic(host: HostSample | None) -> tuple[float, float, int]:
    """Network and disk bytes per second (0 where missing or rejected), and how many were rejected."""
    if host is None:
        return 0.0, 0.0, 0
    values, rejected = [], 0
    for value in (host.network_bytes_per_s, host.disk_bytes_per_s):
        fine = value is not None and math.isfinite(value) and 0 <= value <= HOST_BYTES_PER_S_MAX
        rejected += value is not None and not fine
        values.append(value if fine and value is not None else 0.0)
    return values[0], values[1], rejected

"""What telemetry notices about how GPUs are used: idle while held, held by nobody's process, orphans, throttling, starved of data.

Owns: how long each must have lasted, counted over believed samples only: a time without them neither adds nor clears.
Refuses: acting, and the job's mean as a measure of idling (a job that worked for a day and has hung for an hour is idle).
Details are constant while a finding lasts, so that it is published once. Read next: `handler.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.nodes import Finding, FindingCode, GpuSample
from services.telemetry.core.holders import Holder
from services.telemetry.core.usage import IDLE_PCT

IDLE_S = 600.0
"""Long enough for loading data and compiling, short against what an idle block of GPUs costs."""
NO_PROCESS_S = 120.0
"""A start that downloads an image takes a minute."""
ORPHAN_S = 60.0
"""After a release the process gets its grace, and its memory takes a moment to be given back."""
ORPHAN_MEMORY_MIB = 512.0
"""A monitoring tool's context takes 100 to 300 MiB; what is above is in the next job's way."""
THROTTLED_S = 60.0
STARVED_S = 300.0
STARVED_PCT = 40.0
"""Between idle and this, while data pours in: the GPUs wait for it."""
NETWORK_BYTES_PER_S_MIN = 200e6
DISK_BYTES_PER_S_MIN = 200e6
"""Traffic that a training step without a data problem doesn't need: 25 MB/s for each of 8 GPUs is already much."""
HARD_THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake")
"""`sw_power_cap` is how a card at full load works, no finding."""


@dataclass
class GpuWatch:
    """How long, in milliseconds of believed samples, each has lasted for the present holder (or for nobody)."""

    holder: str = ""
    idle_ms: int = 0
    no_process_ms: int = 0
    orphan_ms: int = 0
    throttled_ms: int = 0
    starved_ms: int = 0
    throttle: str = ""

    def held_by(self, job_id: str) -> None:
        if job_id != self.holder:
            self.holder = job_id
            self.idle_ms = self.no_process_ms = self.orphan_ms = self.starved_ms = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One GPU's sample with what of it is believed. `trusted`: nothing of it was rejected."""

    sample: GpuSample
    utilization_pct: float | None
    memory_used_mib: float | None
    trusted: bool


@dataclass
class NodeWatch:
    """All GPUs of one node. `starving`: whether the host's traffic at present is such that GPUs may be waiting for it."""

    gpus: dict[int, GpuWatch] = field(default_factory=dict)

    def take(self, seen: list[Seen], held: dict[int, Holder], passed_ms: int, *, traffic: bool) -> None:
        """Fold one sample in that stands for `passed_ms`."""
        for each in seen:
            watch = self.gpus.setdefault(each.sample.index, GpuWatch())
            holder = held.get(each.sample.index)
            watch.held_by(holder.job_id if holder is not None else "")
            if each.trusted and each.sample.error is None:
                _fold(watch, each, holder, passed_ms, traffic=traffic)

    def findings(self) -> list[Finding]:
        found: list[Finding] = []
        for index, watch in sorted(self.gpus.items()):
            found.extend(_told(index, watch))
        return found

    def orphans(self) -> list[int]:
        """GPUs that are nobody's and yet taken."""
        return [index for index, watch in sorted(self.gpus.items()) if watch.orphan_ms >= ORPHAN_S * 1000]


def traffic_is_high(network_bytes_per_s: float, disk_bytes_per_s: float) -> bool:
    return network_bytes_per_s >= NETWORK_BYTES_PER_S_MIN or disk_bytes_per_s >= DISK_BYTES_PER_S_MIN


def _fold(watch: GpuWatch, seen: Seen, holder: Holder | None, passed_ms: int, *, traffic: bool) -> None:
    sample, busy_pct = seen.sample, seen.utilization_pct
    if busy_pct is not None and holder is not None and not holder.application:
        watch.idle_ms = watch.idle_ms + passed_ms if busy_pct < IDLE_PCT else 0
        starved = traffic and IDLE_PCT <= busy_pct < STARVED_PCT
        watch.starved_ms = watch.starved_ms + passed_ms if starved else 0
    if sample.throttles or watch.throttled_ms:
        hard = next((name for name in HARD_THROTTLES if name in sample.throttles), "")
        watch.throttled_ms = watch.throttled_ms + passed_ms if hard else 0
        watch.throttle = watch.throttle if hard and watch.throttle else hard
    if seen.memory_used_mib is None:
        return
    empty = not sample.processes and seen.memory_used_mib < ORPHAN_MEMORY_MIB
    watch.no_process_ms = watch.no_process_ms + passed_ms if holder is not None and empty else 0
    taken = any(process.memory_mib >= ORPHAN_MEMORY_MIB for process in sample.processes)
    watch.orphan_ms = watch.orphan_ms + passed_ms if holder is None and taken else 0


def _told(index: int, watch: GpuWatch) -> list[Finding]:
    job_id = watch.holder or None
    lasting = (
        (watch.idle_ms, IDLE_S, FindingCode.IDLE_HELD, f"below {IDLE_PCT:.0f} % for {IDLE_S / 60:.0f} min and longer"),
        (watch.no_process_ms, NO_PROCESS_S, FindingCode.HELD_NO_PROCESS, "held, and no process uses it"),
        (watch.throttled_ms, THROTTLED_S, FindingCode.THROTTLED, f"clocks held down: {watch.throttle}"),
        (
            watch.starved_ms,
            STARVED_S,
            FindingCode.DATA_STARVED,
            "little work while much data is read: data comes too slowly",
        ),
    )
    return [
        Finding(code=code, gpu=index, job_id=job_id, detail=detail)
        for lasted_ms, needed_s, code, detail in lasting
        if lasted_ms >= needed_s * 1000
    ]

"""Nodes: samples from their agents (`node-telemetry`) and what telemetry makes of them (`node-states`)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from schemas.base import Event, GpuIndex, Identifier, MemoryMib, ShortText, TimeMs, WallMs

Percent = Annotated[float, Meta(ge=0, le=100)]
SlotsPerCard = Annotated[int, Meta(ge=1, le=48, description="parts of one GPU; 1: whole")]


class GpuProcess(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that holds memory on a GPU, and the job it belongs to if known."""

    pid: Annotated[int, Meta(ge=1)]
    memory_mib: MemoryMib
    job_id: Identifier | None = None


class XidReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error the driver reported for a GPU since the last sample, by NVIDIA's Xid number, and how often."""

    code: Annotated[int, Meta(ge=0, le=2**31)]
    count: Annotated[int, Meta(ge=1)] = 1


class RemappedRows(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows of the GPU's memory that were replaced. `pending`: a reset will do it; `failed`: one could not be replaced."""

    correctable: float = 0
    uncorrectable: float = 0
    pending: bool = False
    failed: bool = False


class MigInstance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a GPU in MIG mode."""

    uuid: ShortText
    gpu_instance: Annotated[int, Meta(ge=0)] = 0
    memory_total_mib: float | None = None
    memory_used_mib: float | None = None


class GpuSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading of one GPU. A field that could not be read is missing; `error` says why the GPU could not be read at all.

    Readings are unbounded on purpose: telemetry rejects and counts garbage, the wire carries it. Counters (`ecc_*`, `pcie_*`,
    `nvlink_*`, `energy_j`) count from the driver's start or the GPU's last reset. `throttles`: why clocks are held down now.
    `processes_total` is told where `processes` had to be cut.
    """

    index: GpuIndex
    uuid: ShortText
    model: ShortText = ""
    memory_total_mib: float | None = None
    memory_used_mib: float | None = None
    utilization_pct: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    processes: list[GpuProcess] = []
    error: ShortText | None = None
    processes_total: Annotated[int, Meta(ge=0)] = 0
    power_limit_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttles: Annotated[list[ShortText], Meta(max_length=32)] = []
    ecc_corrected: float | None = None
    ecc_uncorrected: float | None = None
    remapped_rows: RemappedRows | None = None
    xids: Annotated[list[XidReport], Meta(max_length=64)] = []
    recovery_action: ShortText = ""
    pcie_tx_bytes: float | None = None
    pcie_rx_bytes: float | None = None
    pcie_replays: float | None = None
    nvlink_tx_bytes: float | None = None
    nvlink_rx_bytes: float | None = None
    nvlink_errors: float | None = None
    nvlinks_up: Annotated[int, Meta(ge=0)] | None = None
    mig: bool | None = None
    mig_instances: Annotated[list[MigInstance], Meta(max_length=64)] = []


class HostSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the node itself does: mean rates since the last sample. `boot_id` changes when the machine was started anew."""

    network_bytes_per_s: float | None = None
    disk_bytes_per_s: float | None = None
    cpu_pct: float | None = None
    boot_id: ShortText = ""


class Topology(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a node's GPUs hang together: groups joined by NVLink, and the NUMA node of each GPU (-1 unknown)."""

    nvlink_domains: list[list[GpuIndex]] = []
    numa_nodes: list[int] = []


class NodeSampled(Event, frozen=True, kw_only=True):
    """All GPUs of one node at one moment. `source`: where the readings come from (`nvml` or `simulated`).

    A machine whose cards several pools share is one node per pool; `machine` names it. `gpus` are then the slots of that pool, those of
    one card in a row, whether the card is cut that way at present or not.

    `topology` comes with an agent's first sample, after a driver reload, and every ten minutes.
    """

    node: Identifier
    cluster: Identifier
    pool: Identifier
    time_ms: TimeMs
    wall_ms: WallMs
    source: ShortText
    gpus: Annotated[list[GpuSample], Meta(max_length=1024)]
    rack: Identifier = "r0"
    order: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    driver: ShortText = ""
    period_s: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    host: HostSample | None = None
    topology: Topology | None = None
    machine: Identifier | None = None
    slots_per_card: SlotsPerCard = 1


class Health(Enum):
    """`suspect`: silent, nothing new is placed; `lost`: silent for so long that its jobs are queued again."""

    USABLE = "usable"
    DEGRADED = "degraded"
    SUSPECT = "suspect"
    LOST = "lost"


class HealthAction(Enum):
    """What telemetry's health policy asks for: nothing but counting, no new work on the GPU, or emptying it, too."""

    COUNT = "count"
    STOP_PLACING = "stop_placing"
    DRAIN = "drain"


class GpuState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Inventory and health of one GPU, with its one-minute means. Not `healthy`: nothing new is placed on it.

    `action` is the policy's strictest wish at present; counters are the last believed ones.
    """

    index: GpuIndex
    uuid: ShortText
    healthy: bool = True
    memory_total_mib: MemoryMib = 0
    memory_used_mib: MemoryMib = 0
    utilization_pct: Percent = 0.0
    stale: bool = False
    action: HealthAction = HealthAction.COUNT
    power_w: float = 0.0
    temperature_c: float = 0.0
    ecc_uncorrected: Annotated[int, Meta(ge=0)] = 0
    processes: Annotated[int, Meta(ge=0)] = 0
    mig: bool = False


class FindingCode(Enum):
    """What telemetry noticed; acting on it is somebody else's policy."""

    IDLE_HELD = "idle_held"
    HELD_NO_PROCESS = "held_no_process"
    ORPHAN_PROCESS = "orphan_process"
    GPU_ERROR = "gpu_error"
    REJECTED_SAMPLE = "rejected_sample"
    XID = "xid"
    ECC_ERROR = "ecc_error"
    ROW_REMAP = "row_remap"
    THROTTLED = "throttled"
    SLOW_JOB = "slow_job"
    DATA_STARVED = "data_starved"


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding about one GPU (or the node, without `gpu`). `action`: what the health policy asks for because of it."""

    code: FindingCode
    gpu: GpuIndex | None = None
    job_id: Identifier | None = None
    detail: ShortText = ""
    action: HealthAction = HealthAction.COUNT


class NodeStateChanged(Event, frozen=True, kw_only=True):
    """Current inventory and health of one node; `order` is its place in the pool's GPU order.

    `incarnation` rises whenever the node comes back from `lost`. `machine`, `slots_per_card`: as in its samples. `sampled_ms`: agent's
    wall time of the last sample.
    """

    node: Identifier
    cluster: Identifier
    pool: Identifier
    time_ms: TimeMs
    health: Health
    gpus: Annotated[list[GpuState], Meta(max_length=1024)]
    rack: Identifier = "r0"
    order: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    gpu_model: ShortText = ""
    driver: ShortText = ""
    incarnation: Annotated[int, Meta(ge=0)] = 0
    findings: list[Finding] = []
    source: ShortText = ""
    topology: Topology | None = None
    machine: Identifier | None = None
    slots_per_card: SlotsPerCard = 1
    sampled_ms: WallMs = 0


class NodeForgotten(Event, frozen=True, kw_only=True):
    """A node is gone for good, by an operator's order of `ordered_ms`: as if nobody had ever heard of it. Replaces its state.

    Should it come back, it is a new node with a higher `incarnation`. `sampled_ms`: agent's wall time of its last sample.
    """

    node: Identifier
    cluster: Identifier
    pool: Identifier
    time_ms: TimeMs
    ordered_ms: TimeMs
    incarnation: Annotated[int, Meta(ge=0)] = 0
    sampled_ms: WallMs = 0
    cause: ShortText = ""

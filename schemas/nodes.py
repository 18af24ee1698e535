"""Nodes: samples from their agents (`node-telemetry`) and what telemetry makes of them (`node-states`)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from schemas.base import Event, GpuIndex, Identifier, MemoryMib, ShortText, TimeMs, WallMs

Percent = Annotated[float, Meta(ge=0, le=100)]


class GpuProcess(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that holds memory on a GPU, and the job it belongs to if known."""

    pid: Annotated[int, Meta(ge=1)]
    memory_mib: MemoryMib
    job_id: Identifier | None = None


class GpuSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading of one GPU. A field that could not be read is missing; `error` says why the GPU could not be read at all.

    Readings are unbounded on purpose: telemetry rejects and counts garbage, the wire carries it.
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


class NodeSampled(Event, frozen=True, kw_only=True):
    """All GPUs of one node at one moment. `source`: where the readings come from (`nvml` or `simulated`)."""

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


class Health(Enum):
    """`suspect`: silent, nothing new is placed; `lost`: silent for so long that its jobs are queued again."""

    USABLE = "usable"
    DEGRADED = "degraded"
    SUSPECT = "suspect"
    LOST = "lost"


class GpuState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Inventory and health of one GPU, with its one-minute means."""

    index: GpuIndex
    uuid: ShortText
    healthy: bool = True
    memory_total_mib: MemoryMib = 0
    memory_used_mib: MemoryMib = 0
    utilization_pct: Percent = 0.0
    stale: bool = False


class FindingCode(Enum):
    """What telemetry noticed; acting on it is somebody else's policy."""

    IDLE_HELD = "idle_held"
    HELD_NO_PROCESS = "held_no_process"
    ORPHAN_PROCESS = "orphan_process"
    GPU_ERROR = "gpu_error"
    REJECTED_SAMPLE = "rejected_sample"


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding about one GPU (or the node, without `gpu`)."""

    code: FindingCode
    gpu: GpuIndex | None = None
    job_id: Identifier | None = None
    detail: ShortText = ""


class NodeStateChanged(Event, frozen=True, kw_only=True):
    """Current inventory and health of one node; `order` is its place in the pool's GPU order.

    `incarnation` rises whenever the node comes back from `lost`.
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

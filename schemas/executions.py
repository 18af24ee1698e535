"""What executors did (`executions`). A gang over several nodes is reported by each of its nodes, for that node's part."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from schemas.base import DurationS, Event, GpuIndex, Identifier, Sequence, ShortText, Text, TimeMs, WallMs

Attempt = Annotated[int, Meta(ge=1)]


class StopCause(Enum):
    """Why a process was stopped from outside."""

    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    DRAIN = "drain"
    NODE_LOST = "node_lost"
    GANG_BROKEN = "gang_broken"
    FENCED = "fenced"
    SCALED_DOWN = "scaled_down"
    PREEMPTED = "preempted"


class FailureCause(Enum):
    """Why a process could not start or ended without success."""

    EXIT_CODE = "exit_code"
    SIGNAL = "signal"
    SPAWN = "spawn"
    WORKING_DIRECTORY = "working_directory"
    PREFLIGHT = "preflight"
    DISK_FULL = "disk_full"
    UNKNOWN = "unknown"


class JobPrepared(Event, frozen=True, kw_only=True):
    """This node could start its part of a gang now. Said again until every node of the gang has said it, then all start.

    `port`: free on this node; that of the first node becomes MASTER_PORT. Model and driver have to be equal everywhere.
    """

    job_id: Identifier
    attempt: Attempt
    node: Identifier
    cluster: Identifier
    time_ms: TimeMs
    gpu_model: ShortText = ""
    driver: ShortText = ""
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None


class JobStarted(Event, frozen=True, kw_only=True):
    """The job's process on this node runs. `sequence`: the placement that asked for it; `speed`: as the placement said."""

    job_id: Identifier
    attempt: Attempt
    node: Identifier
    cluster: Identifier
    time_ms: TimeMs
    wall_ms: WallMs
    gpus: list[GpuIndex]
    sequence: Sequence
    pid: int | None = None
    speed: Annotated[float, Meta(gt=0, le=1000)] = 1.0


class JobProgressed(Event, frozen=True, kw_only=True):
    """Progress the job itself reported."""

    job_id: Identifier
    attempt: Attempt
    node: Identifier
    cluster: Identifier
    time_ms: TimeMs
    step: Annotated[int, Meta(ge=0)] | None = None
    fraction: Annotated[float, Meta(ge=0, le=1)] | None = None
    samples_per_s: Annotated[float, Meta(ge=0, le=1e12)] | None = None


class JobReady(Event, frozen=True, kw_only=True):
    """An application's readiness on this node changed: by its declared probe it serves, or it no longer does."""

    job_id: Identifier
    attempt: Attempt
    node: Identifier
    cluster: Identifier
    time_ms: TimeMs
    ready: bool


class JobCheckpointed(Event, frozen=True, kw_only=True):
    """The job saved its work; `fraction` of the whole is safe at `location`."""

    job_id: Identifier
    attempt: Attempt
    node: Identifier
    cluster: Identifier
    time_ms: TimeMs
    fraction: Annotated[float, Meta(ge=0, le=1)]
    location: Text = ""


class JobStopped(Event, frozen=True, kw_only=True):
    """The job's process on this node was stopped on request; `checkpointed` tells whether its answer came in time."""

    job_id: Identifier
    attempt: Attempt
    node: Identifier
    cluster: Identifier
    time_ms: TimeMs
    cause: StopCause
    checkpointed: bool = False
    fraction: Annotated[float, Meta(ge=0, le=1)] = 0.0
    run_s: DurationS = 0.0


class JobCompleted(Event, frozen=True, kw_only=True):
    """The job's process on this node ended with success. `time_ms` is the end itself, not its report."""

    job_id: Identifier
    attempt: Attempt
    node: Identifier
    cluster: Identifier
    time_ms: TimeMs
    run_s: DurationS


class JobFailed(Event, frozen=True, kw_only=True):
    """The job's process on this node could not start or ended without success."""

    job_id: Identifier
    attempt: Attempt
    node: Identifier
    cluster: Identifier
    time_ms: TimeMs
    cause: FailureCause
    exit_code: int | None = None
    signal: int | None = None
    detail: Text = ""
    run_s: DurationS = 0.0


class HeldGpus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GPUs of one node that one job or application holds right now."""

    job_id: Identifier
    attempt: Attempt
    gpus: list[GpuIndex]


class QuarantinedGpu(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU that gets nothing new until its memory is free again."""

    gpu: GpuIndex
    reason: ShortText


class NodeReported(Event, frozen=True, kw_only=True):
    """Everything that runs on a node, sent on start and when a quarantine changes. `applied`: the newest placement carried out.

    `boot_id` changes when the executor restarted and its processes did not survive. `datasets`: names of those kept on the node.
    """

    node: Identifier
    cluster: Identifier
    time_ms: TimeMs
    applied: Sequence
    epoch: Annotated[int, Meta(ge=0)]
    boot_id: ShortText
    running: list[HeldGpus]
    quarantined: Annotated[list[QuarantinedGpu], Meta(max_length=1024)] = []
    datasets: Annotated[list[Identifier], Meta(max_length=4096)] = []


class CardsShaped(Event, frozen=True, kw_only=True):
    """How the cards of a machine are cut: `pools[i]` is the pool whose slots card i offers, empty where its cut belongs to no pool.

    Said on start and after every re-partition, which it answers: `request_id`, whether it was `done`, else why not. `revision` rises
    with every change; an older one changes nothing.
    """

    node: Identifier
    cluster: Identifier
    time_ms: TimeMs
    revision: Annotated[int, Meta(ge=0)]
    pools: Annotated[list[ShortText], Meta(max_length=1024)]
    request_id: Identifier | None = None
    done: bool = True
    detail: ShortText = ""

"""Where a job is and why (`job-status`). A public contract."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from schemas.base import Event, GpuIndex, Identifier, Sequence, ShortText, Text, TimeMs, WallMs


class JobState(Enum):
    """`queued`: let in, waiting; `starting`: placed, its process not yet reported; the last five are final."""

    REFUSED = "refused"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


FINAL_STATES = frozenset(
    {JobState.REFUSED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT}
)


class NodeGpus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GPUs of one node, by local index."""

    node: Identifier
    gpus: list[GpuIndex]


class JobStatusChanged(Event, frozen=True, kw_only=True):
    """The current status of one job or application. `reason` is a public code, `detail` a sentence for people.

    `holders`: jobs that hold the GPUs it waits for. `sequence` 0: written by intake (refusals only). `pool`: of a job that accepts
    several, the one it waits for or is in.
    """

    job_id: Identifier
    state: JobState
    time_ms: TimeMs
    sequence: Sequence = 0
    cluster: Identifier | None = None
    application: bool = False
    reason: ShortText | None = None
    detail: Text = ""
    position: Annotated[int, Meta(ge=1)] | None = None
    planned_start_p50_ms: TimeMs | None = None
    planned_start_p90_ms: TimeMs | None = None
    submitted_ms: TimeMs | None = None
    started_ms: TimeMs | None = None
    ended_ms: TimeMs | None = None
    attempt: Annotated[int, Meta(ge=0)] = 0
    placed: list[NodeGpus] = []
    holders: list[Identifier] = []
    decided_wall_ms: WallMs | None = None
    pool: Identifier | None = None

"""Desired state of a node (`placements`): all an executor needs. A public contract."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from schemas.base import (
    DurationS,
    Event,
    GpuIndex,
    Identifier,
    MemoryMib,
    Sequence,
    ShortText,
    Text,
    TimeMs,
    Traceparent,
)
from schemas.executions import Attempt, StopCause
from schemas.jobs import CheckpointPolicy, Readiness, Speed


class Desired(Enum):
    """What the node shall bring about for one assignment."""

    RUN = "run"
    STOP = "stop"


class Assignment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job's or application's part of one node.

    A gang over several nodes: `nodes` lists them in rank order, `node_rank` is this node's place, the first is the master.
    An application's `gpus` may change under the same attempt; a batch-like job's never do.
    `checkpoint_request` rises when a checkpoint is wanted; it is answered once per value. `speed`: how fast it is believed to run
    here beside the pool it prefers.
    """

    job_id: Identifier
    attempt: Attempt
    desired: Desired
    gpus: list[GpuIndex]
    application: bool = False
    stop_cause: StopCause | None = None
    nodes: list[Identifier] = []
    node_rank: Annotated[int, Meta(ge=0)] = 0
    world_size: Annotated[int, Meta(ge=1)] = 1
    command: list[Text] | None = None
    template: Identifier | None = None
    environment: dict[ShortText, Text] = {}
    working_directory: Text | None = None
    memory_mib: MemoryMib = 0
    time_limit_s: DurationS = 0.0
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    checkpoint_request: Annotated[int, Meta(ge=0)] = 0
    resume_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.0
    resume_location: Text = ""
    labels: dict[ShortText, Text] = {}
    traceparent: Traceparent = ""
    readiness: Readiness | None = None
    drain_s: DurationS = 0.0
    speed: Speed = 1.0


class Reshape(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cut these cards into the slots of `pool`; nothing runs on them as far as the allocator knows. Answered once per `request_id`."""

    request_id: Identifier
    cards: Annotated[list[GpuIndex], Meta(min_length=1, max_length=1024)]
    pool: Identifier


class NodePlaced(Event, frozen=True, kw_only=True):
    """The whole desired state of one node as of decision `sequence`. What is not listed must not run.

    An executor applies the highest (epoch, sequence) it has seen for its node and ignores older ones. Of a machine whose cards are shared:
    `absent` are slots of cards that are cut for another pool, `withheld` those of cards that are to be cut; `cards_detail`: why the last
    cut failed.
    """

    node: Identifier
    cluster: Identifier
    pool: Identifier
    sequence: Sequence
    epoch: Annotated[int, Meta(ge=0)]
    time_ms: TimeMs
    assignments: list[Assignment]
    reshape: Reshape | None = None
    absent: Annotated[list[GpuIndex], Meta(max_length=1024)] = []
    withheld: Annotated[list[GpuIndex], Meta(max_length=1024)] = []
    cards_detail: ShortText = ""

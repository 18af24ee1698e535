"""The decision log (`decisions`) and its snapshots: the truth everything else is projected from.

A record is accepted iff its sequence is the last accepted one + 1 *and* its parent is the last accepted id; everyone who
reads the log applies that rule (`services.allocator.core.reader`). State, output and input positions share one record, so
they cannot disagree.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, Raw, Struct

from schemas.base import Event, GpuCount, GpuIndex, Identifier, Sequence, ShortText, Text, TimeMs, Traceparent, WallMs
from schemas.executions import Attempt, StopCause
from schemas.status import NodeGpus


class RecordKind(Enum):
    """A claim takes over ownership with a new epoch and decides nothing else."""

    CLAIM = "claim"
    DECISION = "decision"


class Covered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything of a partition below `next_offset` is covered by this decision or an earlier one."""

    topic: ShortText
    partition: Annotated[int, Meta(ge=0)]
    next_offset: Annotated[int, Meta(ge=0)]


class DecisionInput(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input event in canonical order (topic, partition, offset), with its payload."""

    topic: ShortText
    partition: Annotated[int, Meta(ge=0)]
    offset: Annotated[int, Meta(ge=0)]
    type: ShortText
    id: ShortText
    payload: Raw
    traceparent: Traceparent = ""


class Placed(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="placed", tag_field="effect"):
    """A batch-like job gets its block and starts now. `staging_s`: of both durations, to bring datasets its nodes don't hold."""

    job_id: Identifier
    attempt: Attempt
    pool: Identifier
    gpus: GpuCount
    placed: list[NodeGpus]
    p50_s: float
    p90_s: float
    staging_s: float = 0.0


class Scaled(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="scaled", tag_field="effect"):
    """An application holds exactly these GPUs from now on; `switched`: GPUs gained plus lost by this decision."""

    app_id: Identifier
    pool: Identifier
    placed: list[NodeGpus]
    switched: Annotated[int, Meta(ge=0)]


class StopOrdered(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="stop_ordered", tag_field="effect"):
    """A process shall be stopped, after a checkpoint request where it can save."""

    job_id: Identifier
    attempt: Attempt
    cause: StopCause


class Preempted(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="preempted", tag_field="effect"):
    """Running jobs are stopped, after a checkpoint, for a waiting one, and their block is held for it until `until_ms`.

    `wait_saved_s`: so much sooner it starts than by the plan that stops nobody. `at_stake_gpu_s`: of the victims' work, if none of them
    saves anything, and what saving takes.
    """

    job_id: Identifier
    pool: Identifier
    placed: list[NodeGpus]
    victims: list[Identifier]
    until_ms: TimeMs
    wait_saved_s: Annotated[float, Meta(ge=0)] = 0.0
    at_stake_gpu_s: Annotated[float, Meta(ge=0)] = 0.0


class Waits(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="waits", tag_field="effect"):
    """Why a job waits, from now on; planned starts at P50 and P90 of what it waits for, if within the horizon.

    `pool`: where, of a job that accepts several pools; this may change with any decision until it starts.
    """

    job_id: Identifier
    reason: ShortText
    holders: list[Identifier] = []
    planned_start_p50_ms: TimeMs | None = None
    planned_start_p90_ms: TimeMs | None = None
    pool: Identifier | None = None


class Promised(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="promised", tag_field="effect"):
    """A big job's planned start, kept from now on: it only moves earlier. Later than the one before, or gone (no `start_ms`):
    `cause` says why, `by` who has its GPUs instead."""

    job_id: Identifier
    pool: Identifier
    start_ms: TimeMs | None = None
    placed: list[NodeGpus] = []
    cause: ShortText = ""
    by: list[Identifier] = []


Effect = Placed | Scaled | StopOrdered | Preempted | Promised | Waits


class DecisionMade(Event, frozen=True, kw_only=True):
    """One atomic change. `id` is a digest of everything else in the record; equal inputs give equal bytes."""

    cluster: Identifier
    sequence: Sequence
    id: ShortText
    parent: ShortText
    epoch: Annotated[int, Meta(ge=0)]
    kind: RecordKind
    writer: ShortText
    now_ms: TimeMs
    wall_ms: WallMs
    inputs: list[DecisionInput] = []
    covered: list[Covered] = []
    effects: list[Effect] = []
    config_digest: ShortText = ""
    code_version: ShortText = ""
    traces: dict[str, str] = {}


class PlannedBlock(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A waiting job's place in a plan: `gpus` GPUs from local index `gpu` of `node` on, in pool order."""

    job_id: Identifier
    gpus: GpuCount
    node: Identifier
    gpu: GpuIndex
    start_ms: TimeMs


class PlannedHold(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An application's GPU in a plan, from one moment to another."""

    app_id: Identifier
    node: Identifier
    gpu: GpuIndex
    from_ms: TimeMs
    until_ms: TimeMs


class PlanImproved(Event, frozen=True, kw_only=True):
    """Full mode's answer: a better plan for the pool as it was after decision `sequence`, at `asked_ms`, up to `until_ms`.

    Travels only inside the record of the decision that took it in, as an input: so a replay needs no solver. `gain`: its value over
    that of fast mode's plan of the same problem − 1; `bound_gap`: how far from the proven optimum it can be at most, if known.
    """

    cluster: Identifier
    pool: Identifier
    sequence: Sequence
    asked_ms: TimeMs
    until_ms: TimeMs
    blocks: list[PlannedBlock]
    holds: list[PlannedHold]
    gain: Annotated[float, Meta(ge=0)] = 0.0
    bound_gap: Annotated[float, Meta(ge=0)] | None = None


class SnapshotChunk(Event, frozen=True, kw_only=True):
    """Part `index` of `chunks` of the state as of decision `sequence`: base64 of a slice of the compressed state."""

    cluster: Identifier
    sequence: Sequence
    index: Annotated[int, Meta(ge=0)]
    chunks: Annotated[int, Meta(ge=1)]
    data: str


class SnapshotCompleted(Event, frozen=True, kw_only=True):
    """Manifest, written last: the snapshot is usable iff all chunks of this sequence are there and match the digest."""

    cluster: Identifier
    sequence: Sequence
    id: ShortText
    epoch: Annotated[int, Meta(ge=0)]
    chunks: Annotated[int, Meta(ge=1)]
    digest: ShortText
    decisions_next_offset: Annotated[int, Meta(ge=0)]
    slot: Text = "a"

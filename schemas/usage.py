"""How GPUs are used (`usage`): windows of a minute, an hour and a day per GPU, and what each job made of the GPUs it held.

Written by telemetry from believed readings only, in the agents' wall time. The records carry the windows' own steps, so that
telemetry continues them after a restart from nothing but this topic.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from schemas.base import Event, GpuIndex, Identifier, MemoryMib, ShortText, TimeMs, WallMs
from schemas.nodes import Percent, SlotsPerCard

Seconds = Annotated[float, Meta(ge=0)]
Steps = Annotated[list[Annotated[list[int], Meta(max_length=2)]], Meta(max_length=64)]


class Ring(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trailing window in equal steps: `newest` is the last step's number since the Unix epoch, `steps` the last ones, newest
    first, each [observed, busy] in GPU-milliseconds. Steps never observed are empty."""

    newest: Annotated[int, Meta(ge=0)] = 0
    steps: Steps = []


class Windows(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Mean utilization over the trailing minute, hour and day (missing: nothing believed was read), and the steps behind them."""

    minute_pct: Percent | None = None
    hour_pct: Percent | None = None
    day_pct: Percent | None = None
    minute: Ring = Ring()
    hour: Ring = Ring()
    day: Ring = Ring()


class GpuUsage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU's windows."""

    index: GpuIndex
    uuid: ShortText
    windows: Windows


class NodeUsage(Event, frozen=True, kw_only=True):
    """The windows of one node's GPUs as of its sample at `wall_ms`."""

    node: Identifier
    cluster: Identifier
    wall_ms: WallMs
    gpus: Annotated[list[GpuUsage], Meta(max_length=1024)]


class JobUsage(Event, frozen=True, kw_only=True):
    """What a job or application made of its GPUs so far, over all attempts.

    `held_gpu_s` = `busy_gpu_s` (time × utilization) + what was left unused; `idle_gpu_s`: held below the idle threshold.
    `unseen_gpu_s`: held without a believed reading. `sampled_ms`: per node, up to which sample this counts. A slot of a shared card
    counts as its part of a GPU: one of four for a second is a quarter of a GPU-second.
    `samples_per_s` is the job's own usual report, `usual_samples_per_s` what `model` usually does on as many `gpus`, whole ones or
    `slots_per_card` to a card.
    """

    job_id: Identifier
    cluster: Identifier
    wall_ms: WallMs
    held_gpu_s: Seconds = 0.0
    busy_gpu_s: Seconds = 0.0
    idle_gpu_s: Seconds = 0.0
    unseen_gpu_s: Seconds = 0.0
    energy_j: Seconds = 0.0
    memory_mib_peak: MemoryMib = 0
    windows: Windows = Windows()
    model: ShortText = ""
    gpus: Annotated[int, Meta(ge=0)] = 0
    slots_per_card: SlotsPerCard = 1
    samples_per_s: Seconds | None = None
    usual_samples_per_s: Seconds | None = None
    sampled_ms: dict[Identifier, WallMs] = {}
    ended_ms: TimeMs | None = None

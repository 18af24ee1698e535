"""What the forecaster believes (`forecasts`): durations per size, demand per step, arriving work."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from schemas.base import DurationS, Event, GpuCount, Identifier, MemoryMib, ShortText, TimeMs

StepS = Annotated[int, Meta(ge=1, le=86_400)]
Gpus = Annotated[float, Meta(ge=0, le=65_536)]


class SizeForecast(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Run time of a job on one offered size; for a running job the total from its start, elapsed time included.

    , : of one GPU, where the job tells enough of its model; : the chance that this is
    more than the largest card of its pools has.
    """

    gpus: GpuCount
    p50_s: DurationS
    p90_s: DurationS
    memory_mib: MemoryMib | None = None
    memory_p90_mib: MemoryMib | None = None
    out_of_memory: Annotated[float, Meta(ge=0, le=1)] | None = None


class DurationForecast(Event, frozen=True, kw_only=True):
    """`prior`: made without usable history. `elapsed_s`: the job had run that long when this was made (0 = not started).

    Durations are those of the pool the job prefers; its `speeds` say what they are elsewhere.
    """

    job_id: Identifier
    cluster: Identifier
    made_ms: TimeMs
    model: ShortText
    sizes: Annotated[list[SizeForecast], Meta(min_length=1, max_length=20)]
    prior: bool = False
    attempt: Annotated[int, Meta(ge=0)] = 0
    elapsed_s: DurationS = 0.0


class DemandForecast(Event, frozen=True, kw_only=True):
    """GPUs one application needs per step from `start_ms` on."""

    app_id: Identifier
    cluster: Identifier
    made_ms: TimeMs
    start_ms: TimeMs
    step_s: StepS
    model: ShortText
    p50: Annotated[list[Gpus], Meta(min_length=1, max_length=1024)]
    p90: Annotated[list[Gpus], Meta(min_length=1, max_length=1024)]
    prior: bool = False


class ArrivalForecast(Event, frozen=True, kw_only=True):
    """Expected batch-like work, in GPU-seconds arriving per step from `start_ms` on."""

    cluster: Identifier
    made_ms: TimeMs
    start_ms: TimeMs
    step_s: StepS
    model: ShortText
    gpu_seconds: Annotated[list[Annotated[float, Meta(ge=0, le=1e15)]], Meta(min_length=1, max_length=1024)]

"""Jobs and applications: what upstream asks for (`job-events`) and what intake lets in (`jobs`)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from schemas.base import DurationS, Event, GpuCount, Identifier, MemoryMib, ShortText, Text, TimeMs

Priority = Annotated[int, Meta(ge=1, le=100, description="1 lowest; value per useful GPU-step")]
Labels = dict[ShortText, Text]
TimeLimitS = Annotated[float, Meta(gt=0, le=31_536_000)]
Speed = Annotated[float, Meta(gt=0, le=1000, description="how fast, beside others; twice as fast is half the time")]


class Kind(Enum):
    """Batch-like kinds: one block, uninterrupted from start to end."""

    TRAINING = "training"
    BATCH_INFERENCE = "batch_inference"
    QUANTIZATION = "quantization"
    DEBUG = "debug"


class Tuning(Enum):
    """Which parameters a training job updates."""

    FULL = "full"
    PARAMETER_EFFICIENT = "parameter_efficient"


class Technique(Enum):
    """How a training job learns."""

    SFT = "sft"
    DPO = "dpo"
    RLHF = "rlhf"
    RLVR = "rlvr"
    CPT = "cpt"


class RestartMode(Enum):
    """When a job that ended without success is queued again."""

    NEVER = "never"
    ON_FAILURE = "on_failure"
    ALWAYS = "always"


class CheckpointMode(Enum):
    """How a job is asked to save its work; `none`: it can't, stopping it loses everything. `file`: no signal, the job looks for a file."""

    NONE = "none"
    SIGNAL = "signal"
    FILE = "file"


class CheckpointSignal(Enum):
    """The signal that asks for a checkpoint. Only ones whose meaning is the program's own."""

    USR1 = "SIGUSR1"
    USR2 = "SIGUSR2"
    HUP = "SIGHUP"
    INT = "SIGINT"


class ProbeKind(Enum):
    """How an executor finds out that an application serves."""

    HTTP = "http"
    TCP = "tcp"
    FILE = "file"


class RestartPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`attempts_max` counts starts, the first included; `backoff_s` grows with each failure."""

    mode: RestartMode = RestartMode.NEVER
    attempts_max: Annotated[int, Meta(ge=1, le=100)] = 1
    backoff_s: DurationS = 0.0


class CheckpointPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint is asked for, and its answer awaited for `wait_s` before the process is stopped.

    It is asked for every `interval_s` too; 0: at an interval computed from what one costs and what is at risk. `cost_s`: what
    one costs, as long as none has been measured.
    """

    mode: CheckpointMode = CheckpointMode.NONE
    wait_s: DurationS = 30.0
    interval_s: DurationS = 0.0
    signal: CheckpointSignal = CheckpointSignal.USR1
    cost_s: DurationS = 0.0


class Readiness(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When an application counts as serving. `http`: GET `path` on `port` answers 2xx; `tcp`: `port` takes a connection;
    `file`: `path` exists (relative: in the run folder). Port 0: the one in GPUGRID_PORT. Not ready for `wait_s`: started anew.
    """

    kind: ProbeKind
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    path: Text = ""
    period_s: Annotated[float, Meta(ge=0.05, le=3600)] = 1.0
    wait_s: DurationS = 600.0


class ModelFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Optional facts for the forecasters; every one may be missing."""

    base_model: ShortText | None = None
    parameters: Annotated[float, Meta(ge=0, le=1e15)] | None = None
    trainable_parameters: Annotated[float, Meta(ge=0, le=1e15)] | None = None
    tuning: Tuning | None = None
    technique: Technique | None = None
    dataset_tokens: Annotated[float, Meta(ge=0, le=1e18)] | None = None
    dataset_items: Annotated[float, Meta(ge=0, le=1e15)] | None = None
    sequence_length: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    global_batch: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    epochs: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    precision: ShortText | None = None
    quantization_bits: Annotated[int, Meta(ge=1, le=64)] | None = None
    gradient_checkpointing: bool | None = None


class Dataset(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Data that a job reads, by the name under which nodes keep it. `size_mib`: what has to be brought where it isn't."""

    name: Identifier
    size_mib: Annotated[int, Meta(ge=0, le=1_099_511_627_776)] = 0


class JobSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a batch-like job declares. `sizes`: block sizes it can use, powers of two; `requested_gpus`: the one it asks for.

    Exactly one of `command` and `template` says what runs. `pools`: acceptable pools, the preferred one first; `gpu_models`: all pools of
    these models, too; neither = any of the cluster. `speeds`: how fast it runs, by pool or GPU model, in numbers that only count beside
    each other. `deadline_ms`: when its result is wanted; the nearer, the more urgent. `datasets`: among equally good places
    one whose nodes keep them is taken.
    """

    kind: Kind
    team: Identifier
    user: Identifier
    priority: Priority
    sizes: Annotated[list[GpuCount], Meta(min_length=1, max_length=20)]
    requested_gpus: GpuCount | None = None
    queue: Identifier = "default"
    memory_mib: MemoryMib = 0
    time_limit_s: TimeLimitS = 604_800.0
    restart: RestartPolicy = RestartPolicy()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    command: Annotated[list[Text], Meta(min_length=1, max_length=256)] | None = None
    template: Identifier | None = None
    environment: dict[ShortText, Text] = {}
    working_directory: Text | None = None
    cluster: Identifier | None = None
    pools: Annotated[list[Identifier], Meta(max_length=64)] = []
    labels: Labels = {}
    model: ModelFacts | None = None
    deadline_ms: TimeMs | None = None
    gpu_models: Annotated[list[ShortText], Meta(max_length=64)] = []
    speeds: Annotated[dict[ShortText, Speed], Meta(max_length=64)] = {}
    datasets: Annotated[list[Dataset], Meta(max_length=64)] = []


class ApplicationSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A real-time application: elastic between `floor_gpus` (never lent) and `peak_gpus`, `switch_max` GPUs per grid step.

    `quantile`: demand quantile it is planned at; `headroom`: share of the forecast added on top. `drain_s`: how long it may
    finish its requests on a GPU that is taken away. Without `readiness` it counts as serving once it runs.
    """

    team: Identifier
    user: Identifier
    priority: Priority
    floor_gpus: Annotated[int, Meta(ge=0, le=65_536)]
    peak_gpus: GpuCount
    switch_max: Annotated[int, Meta(ge=1, le=65_536)]
    quantile: Annotated[float, Meta(ge=0.5, le=0.99)] = 0.9
    headroom: Annotated[float, Meta(ge=0, le=2)] = 0.0
    queue: Identifier = "default"
    memory_mib: MemoryMib = 0
    command: Annotated[list[Text], Meta(min_length=1, max_length=256)] | None = None
    template: Identifier | None = None
    environment: dict[ShortText, Text] = {}
    cluster: Identifier | None = None
    pool: Identifier | None = None
    labels: Labels = {}
    readiness: Readiness | None = None
    drain_s: DurationS = 0.0


class JobSubmitted(Event, frozen=True, kw_only=True):
    """Upstream asks for a job to run. Sent again with the same content it changes nothing; with other content it is refused."""

    job_id: Identifier
    submitted_ms: TimeMs
    spec: JobSpec


class JobChanged(Event, frozen=True, kw_only=True):
    """Upstream changes what may change while a job waits or runs. Fields left out stay."""

    job_id: Identifier
    changed_ms: TimeMs
    priority: Priority | None = None
    time_limit_s: TimeLimitS | None = None


class JobCancelled(Event, frozen=True, kw_only=True):
    """Upstream no longer wants a job or an application. Its process is stopped, after a checkpoint request if it can save."""

    job_id: Identifier
    cancelled_ms: TimeMs
    cause: ShortText = ""


class ApplicationRegistered(Event, frozen=True, kw_only=True):
    """Upstream registers a real-time application, or registers it again with new numbers."""

    app_id: Identifier
    registered_ms: TimeMs
    spec: ApplicationSpec


class JobAccepted(Event, frozen=True, kw_only=True):
    """Intake let a job in. `digest` identifies the content; `skewed` marks a submitter's clock that was out of bounds.

    `pools`: those that could hold it, the preferred one first. `speeds`: of each of them beside the preferred one's 1, if they differ;
    `speeds_from`: where they come from (`job`, `measured`, `catalog`).
    """

    job_id: Identifier
    cluster: Identifier
    pools: list[Identifier]
    submitted_ms: TimeMs
    accepted_ms: TimeMs
    digest: ShortText
    spec: JobSpec
    skewed: bool = False
    speeds: dict[Identifier, Speed] = {}
    speeds_from: ShortText = ""


class JobAmended(Event, frozen=True, kw_only=True):
    """Intake let a change in."""

    job_id: Identifier
    cluster: Identifier
    amended_ms: TimeMs
    priority: Priority | None = None
    time_limit_s: TimeLimitS | None = None


class JobRevoked(Event, frozen=True, kw_only=True):
    """Intake let a cancellation in (of a job or an application)."""

    job_id: Identifier
    cluster: Identifier
    revoked_ms: TimeMs
    cause: ShortText = ""


class ApplicationAccepted(Event, frozen=True, kw_only=True):
    """Intake let an application in, or new numbers for one."""

    app_id: Identifier
    cluster: Identifier
    pool: Identifier
    accepted_ms: TimeMs
    digest: ShortText
    spec: ApplicationSpec

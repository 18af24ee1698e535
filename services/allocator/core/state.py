"""The allocator's state of one cluster: everything that outlives retention, as plain structs that encode to a snapshot.

Owned and changed only by `fold` (inputs) and `enact` (effects). The grid itself is not stored: who holds which GPU follows
from the parts of jobs and applications, so the two can't disagree. Read `fold.py`, then `decide.py`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from schemas.decisions import PlanImproved
from schemas.executions import NodeReported
from schemas.forecasts import DemandForecast, SizeForecast
from schemas.jobs import ApplicationSpec, JobSpec
from schemas.nodes import Health
from schemas.rules import Rules
from schemas.status import JobState, NodeGpus
from services.allocator.core.phases import Phase
from services.allocator.core.shares import Use

PART_PLACED = "placed"
PART_RUNNING = "running"
PART_COMPLETED = "completed"
PART_FAILED = "failed"
PART_STOPPED = "stopped"
PART_LOST = "lost"
PARTS_ALIVE = frozenset({PART_PLACED, PART_RUNNING})
"""A part in one of these states holds its GPUs."""

FINISHED_KEPT_MS = 9 * 86_400_000
"""Ids of finished jobs are kept longer than the `jobs` topic keeps records, so that no redelivery starts one again."""
ADVICE_KEPT_SHARE = 0.25
"""Of its window an answer of full mode may age before it is forgotten."""
EARLY_FORECASTS_MAX = 10_000
"""Forecasts that overtook their job; the oldest go first, the job then waits for the next one or takes the prior."""

EARLY_NODES_MAX = 1_000
"""Orders and reports about nodes that telemetry hasn't told of yet, of each kind; the oldest go first. More than a cluster's nodes that
come back together."""
SILENT_MS = 1_800_000
"""A node whose executor left a gang waiting gets nothing new for so long, or until its executor speaks: then it is tried again."""


class Part(Struct):
    """One node's share of an attempt: local GPU indices and how far it got. `prepared`: its executor said that it could start it, or
    that it has taken it."""

    node: str
    gpus: list[int]
    status: str = PART_PLACED
    prepared: bool = False


class Job(Struct):
    """A batch-like job. `parts` belong to the newest attempt, `earlier` to those before, by number (a late end still counts).

    `phase` moves by the table of `phases.py` only, and `state` is what the public calls it. `heard_ms`: when its start was
    reported; `placed_wall_ms`: when it was ordered, by the wall. `restores`: a gang that waits because it lost a node.
    `pools`: the preferred one first; `speeds` beside it; `planned_pool`: of several, the one it was planned in last.
    `preempted_by`, `preempted_ms`: who took its place by rule, and when; `took_place`: it has the one it is on by rule itself.
    """

    job_id: str
    spec: JobSpec
    pools: list[str]
    submitted_ms: int
    accepted_ms: int
    arrival: int
    seen_wall_ms: int
    traceparent: str = ""
    skewed: bool = False
    state: JobState = JobState.QUEUED
    phase: Phase = Phase.ACCEPTED
    attempt: int = 0
    failures: int = 0
    forecast: list[SizeForecast] = field(default_factory=list)
    forecast_prior: bool = True
    pool: str = ""
    gpus: int = 0
    parts: list[Part] = field(default_factory=list)
    earlier: dict[int, list[Part]] = field(default_factory=dict)
    placed_ms: int = 0
    placed_wall_ms: int = 0
    placed_sequence: int = 0
    placed_p50_s: float = 0.0
    placed_p90_s: float = 0.0
    staging_s: float = 0.0
    started_ms: int | None = None
    heard_ms: int = 0
    overtime: bool = False
    fraction: float = 0.0
    fraction_at_start: float = 0.0
    location: str = ""
    checkpoint_request: int = 0
    stop_cause: str = ""
    outcome: str = ""
    cause: str = ""
    not_before_ms: int = 0
    queued_ms: int = 0
    reason: str = ""
    holders: list[str] = field(default_factory=list)
    planned_start_p50_ms: int | None = None
    planned_start_p90_ms: int | None = None
    saved_ms: int = 0
    preempted_by: list[str] = field(default_factory=list)
    preempted_ms: list[int] = field(default_factory=list)
    took_place: bool = False
    restores: bool = False
    speeds: dict[str, float] = field(default_factory=dict)
    planned_pool: str = ""

    @property
    def holds_gpus(self) -> bool:
        return any(part.status in PARTS_ALIVE for part in self.parts)


class App(Struct):
    """A real-time application and the GPUs it holds. `switched` counts GPUs gained plus lost since `bucket` (a step index).

    `ready`: nodes on which it serves by its declared probe; without a probe it is not asked. `unheard`: of one with a
    probe, nodes whose executor has not said a word about it, with the wall time since when it is placed there.
    """

    app_id: str
    spec: ApplicationSpec
    pool: str
    accepted_ms: int
    digest: str
    traceparent: str = ""
    forecast: DemandForecast | None = None
    parts: list[Part] = field(default_factory=list)
    bucket: int = -1
    switched: int = 0
    since_ms: int = 0
    ready: list[str] = field(default_factory=list)
    unheard: dict[str, int] = field(default_factory=dict)


class Node(Struct):
    """A node as telemetry knows it, plus what operators ordered. `size` never shrinks: a lost GPU keeps its place.

    `quarantined`: GPUs whose memory somebody still holds, by the executor's own look at them. `said_ms`: time of the state that
    counts; an older one that comes late changes nothing. `boot_id`: as its executor said last. `silent_until_ms`: nothing new before,
    since its executor left a gang waiting; 0 once it speaks. `machine`: whose cards it shares with other nodes, one per pool; `absent`:
    its slots on cards that are cut for another pool at present (`slots.py`). `links`: per GPU its NVLink domain, if there are several;
    `datasets`: names of those kept on it.
    """

    node: str
    pool: str
    order: int
    size: int
    health: Health
    healthy: list[bool]
    rack: str = "r0"
    incarnation: int = 0
    draining: bool = False
    drain_deadline_ms: int = 0
    quarantined: list[int] = field(default_factory=list)
    said_ms: int = 0
    boot_id: str = ""
    silent_until_ms: int = 0
    machine: str = ""
    slots_per_card: int = 1
    absent: list[int] = field(default_factory=list)
    links: list[int] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)

    @property
    def takes_new(self) -> bool:
        """Whether anything may be placed on its healthy GPUs."""
        return not self.draining and not self.silent_until_ms and self.health not in (Health.SUSPECT, Health.LOST)


class Forgotten(Struct):
    """A node that is gone for good, as it was last, by the order of `ordered_ms`; its `incarnation` and `said_ms` are those of the word
    that said so. `ended`: reservations and orders to cut cards that ended with it."""

    node: Node
    ordered_ms: int
    ended: list[str] = field(default_factory=list)


class Reserved(Struct):
    """GPUs of one node kept free of new work for a window; no indices: the whole node."""

    reservation_id: str
    node: str
    gpus: list[int]
    from_ms: int
    until_ms: int


class Cut(Struct):
    """How a machine's cards are cut, by its executor: per card the pool whose slots it offers. `detail`: why the last change failed."""

    revision: int
    pools: list[str]
    detail: str = ""


class Repartition(Struct):
    """Cards that are to be cut for another pool once they are empty. `asked`: they were, at `asked_ms`, and their executor is to do it."""

    request_id: str
    machine: str
    cards: list[int]
    pool: str
    deadline_ms: int
    asked: bool = False
    asked_ms: int = 0


class Preemption(Struct):
    """A block that running jobs are leaving for a waiting one; nobody else gets it before `until_ms`."""

    pool: str
    placed: list[NodeGpus]
    victims: list[str]
    until_ms: int


class Promise(Struct):
    """A big job's planned start, which only moves earlier (`planned_starts.py`). No `start_ms`: it lost it and gets the next one.

    `rules`: their version when it was given. `cause`, `by`: why it is later than `before_ms`, the start it had.
    """

    pool: str
    start_ms: int | None
    placed: list[NodeGpus]
    rules: int
    cause: str = ""
    by: list[str] = field(default_factory=list)
    before_ms: int = 0


EARLIER_ATTEMPTS_MAX = 16
"""Attempts of one job whose late end would still count: a node away for so many of them has been given up by people, too."""
CLOSED_APPS_MAX = 10_000
OBEYED_MAX = 10_000
"""Revoked applications and ids of commands that are remembered, so that a late repetition neither revives nor repeats anything."""
HEARD_MAX = 10_000
"""Ids of what executors said of nodes and applications that are remembered: ten words each of a thousand nodes that come back together."""


class Finished(Struct, array_like=True):
    """What is left of a job once it ended."""

    state: JobState
    ended_ms: int


class State(Struct, dict=True):
    """One cluster. `covered` maps "topic/partition" to the next offset; `last_id` is the last accepted record's id. `advice`: per
    pool the newest answer of full mode (`advice.py`). `rules`: those in force; `use`: per team what its ended jobs used.
    `preemptions`: by the job that waits for its place. `promises`: planned starts of big jobs.
    `early_drains`, `early_reports`: deadline and executor's word by node that telemetry hasn't told of yet.
    `cuts`: by machine whose cards are shared; `repartitions`: by request. `forgotten`: nodes that are gone for good (`departures.py`).
    `obeyed`, `heard`: ids of what counts once (`advance.py`).

    `dict`: an index derived from the fields may hang on it (`index.py`); it is never encoded.
    """

    cluster: str
    sequence: int = 0
    last_id: str = ""
    epoch: int = 0
    now_ms: int = 0
    wall_ms: int = 0
    arrivals: int = 0
    covered: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    apps: dict[str, App] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    reservations: dict[str, Reserved] = field(default_factory=dict)
    finished: dict[str, Finished] = field(default_factory=dict)
    closed_apps: dict[str, int] = field(default_factory=dict)
    obeyed: dict[str, bool] = field(default_factory=dict)
    early_forecasts: dict[str, list[SizeForecast]] = field(default_factory=dict)
    early_demand: dict[str, DemandForecast] = field(default_factory=dict)
    early_drains: dict[str, int] = field(default_factory=dict)
    early_reports: dict[str, NodeReported] = field(default_factory=dict)
    advice: dict[str, PlanImproved] = field(default_factory=dict)
    rules: Rules = Rules()
    use: dict[str, Use] = field(default_factory=dict)
    preemptions: dict[str, Preemption] = field(default_factory=dict)
    promises: dict[str, Promise] = field(default_factory=dict)
    cuts: dict[str, Cut] = field(default_factory=dict)
    repartitions: dict[str, Repartition] = field(default_factory=dict)
    forgotten: dict[str, Forgotten] = field(default_factory=dict)
    heard: dict[str, bool] = field(default_factory=dict)


def keep_early(waiting: dict[str, Any], key: str, value: Any, kept_max: int) -> None:
    """Remember what came before what it is about; the oldest goes first."""
    waiting[key] = value
    while len(waiting) > kept_max:
        del waiting[next(iter(waiting))]


def has_aged(advice: PlanImproved, now_ms: int) -> bool:
    """Too much of its window is gone: demand and forecasts have moved on."""
    return now_ms - advice.asked_ms > ADVICE_KEPT_SHARE * (advice.until_ms - advice.asked_ms)


INDEX_ATTRIBUTE = "_index"


def forget_index(state: State) -> None:
    """To be called by whoever changes jobs without telling the index of the state; it is built again when needed."""
    state.__dict__.pop(INDEX_ATTRIBUTE, None)


class Changes:
    """Ids touched while folding and enacting, in order: their projections have to be written. Not part of the state."""

    __slots__ = ("ended", "jobs", "nodes")

    def __init__(self) -> None:
        self.jobs: dict[str, None] = {}
        self.nodes: dict[str, None] = {}
        self.ended: dict[str, Job] = {}

    def job(self, job: Job) -> None:
        """A job's status, and what its nodes shall do, may have changed."""
        self.jobs[job.job_id] = None
        for part in job.parts:
            self.nodes[part.node] = None

    def app(self, app: App) -> None:
        self.jobs[app.app_id] = None
        for part in app.parts:
            self.nodes[part.node] = None

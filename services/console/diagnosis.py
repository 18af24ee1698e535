"""What keeps the queue waiting: first "fragmentation or total shortage?" with numbers, then the classic case and what helps. Pure.

Owns the cases, as a table: each has a question about the facts of one pool, a sentence and advice; the first that
applies is named. Facts come from what the topics say (`facts_of`), so the same diagnosis can be made of a made-up pool.
Read next: `shape` (one job's question), docs/operations.md (the cases in words).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from schemas.nodes import FindingCode, Health
from schemas.status import JobState
from services.console.durations import duration_text
from services.console.facts import ACCEPTED, JobView, World
from services.console.shape import Cause, PoolShape, pool_shape

LONG_WAIT_S = 3600.0
"""From here on people ask; below it a queue is a queue."""
LOW_HELD = 0.75
"""A pool held less than this while jobs wait for hours has a problem of shapes; 68 % is the classic number."""
OVERTAKEN_MIN = 5
"""So many smaller jobs that started after a big one was submitted are no coincidence."""
SLOW_FINDINGS = (
    FindingCode.IDLE_HELD,
    FindingCode.HELD_NO_PROCESS,
    FindingCode.THROTTLED,
    FindingCode.SLOW_JOB,
    FindingCode.DATA_STARVED,
)
"""Findings that say that held cards don't work as they could."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting job: sizes it offers, how long it waits, the planner's reason, smaller ones that started meanwhile."""

    job_id: str
    sizes: tuple[int, ...]
    waited_s: float
    reason: str = ""
    overtaken: int = 0

    @property
    def smallest(self) -> int:
        return min(self.sizes, default=1)


@dataclass(frozen=True, slots=True)
class Facts:
    """One pool. `unusable`: GPUs of lost, suspect or draining nodes and unhealthy ones; `slow`: jobs with a finding of slowness."""

    shape: PoolShape
    waiting: tuple[Waiting, ...] = ()
    held: int = 0
    unusable: int = 0
    slow: tuple[str, ...] = ()

    @property
    def node_gpus(self) -> int:
        """GPUs of the pool's usual node."""
        sizes = Counter(node.gpus for node in self.shape.nodes)
        return sizes.most_common(1)[0][0] if sizes else 0

    @property
    def held_share(self) -> float:
        return self.held / self.shape.gpus if self.shape.gpus else 0.0

    def causes(self) -> Counter[Cause]:
        """How many waiting jobs each cause stops now. Many may fit alone where only some fit together: the rest lacks GPUs."""
        known: dict[tuple[int, ...], Cause] = {}
        counts: Counter[Cause] = Counter()
        fitting = []
        for one in self.waiting:
            if one.sizes not in known:
                known[one.sizes] = self.shape.cause(one.sizes)
            if known[one.sizes] is Cause.NEITHER:
                fitting.append(one.smallest)
            else:
                counts[known[one.sizes]] += 1
        free = self.shape.free
        for size in sorted(fitting):
            counts[Cause.NEITHER if size <= free else Cause.SHORTAGE] += 1
            free -= size
        return counts

    def cause(self) -> Cause:
        """What stops most of the waiting jobs now; at equal numbers the cause that can be cured comes first."""
        counts = self.causes()
        order = (Cause.FRAGMENTATION, Cause.SHORTAGE, Cause.NEITHER, Cause.IMPOSSIBLE)
        return max(order, key=lambda cause: (counts[cause], -order.index(cause))) if self.waiting else Cause.NEITHER

    def longest(self) -> Waiting | None:
        return max(self.waiting, key=lambda one: (one.waited_s, one.job_id), default=None)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table. `applies` asks, `sentence` says it with numbers, `would_help` is advice in order of effect."""

    name: str
    applies: Callable[[Facts], bool]
    sentence: Callable[[Facts], str]
    would_help: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer for one pool. `headline` has the numbers of the first question."""

    pool: str | None
    cause: str
    headline: str
    case: str
    sentence: str
    would_help: tuple[str, ...]
    numbers: dict[str, float] = field(default_factory=dict)


def _big(facts: Facts) -> list[Waiting]:
    """Waiting jobs that need a whole node or more."""
    return [one for one in facts.waiting if one.smallest >= facts.node_gpus > 1]


def _blocked(facts: Facts, cause: Cause) -> list[Waiting]:
    return [one for one in facts.waiting if facts.shape.cause(one.sizes) is cause]


def _reason_share(facts: Facts, *names: str) -> float:
    return sum(one.reason in names for one in facts.waiting) / len(facts.waiting) if facts.waiting else 0.0


def _overtaken(facts: Facts) -> Waiting | None:
    """The big job that most smaller ones went past, if that is many."""
    found = max(
        (one for one in facts.waiting if one.smallest > 1 and one.waited_s >= LONG_WAIT_S),
        key=lambda one: (one.overtaken, one.job_id),
        default=None,
    )
    return found if found is not None and found.overtaken >= OVERTAKEN_MIN else None


def _waits_text(facts: Facts) -> str:
    longest = facts.longest()
    if longest is None:
        return ""
    number = len(facts.waiting)
    jobs = f"{number} job{'' if number == 1 else 's'} wait{'s' if number == 1 else ''}"
    return f"{jobs}, the longest ({longest.job_id}) for {duration_text(longest.waited_s)}"


CASES: tuple[Case, ...] = (
    Case(
        "nodes_missing",
        lambda facts: not facts.shape.gpus,
        lambda facts: "No node of the pool has reported, so nothing can start.",
        ("See whether agents and executors run: `gpugrid status`, `gpugrid doctor`.",),
    ),
    Case(
        "training_is_slow",
        lambda facts: bool(facts.slow) and (not facts.waiting or len(facts.slow) * 4 >= max(1, facts.held)),
        lambda facts: (
            f"{len(facts.slow)} running job{'' if len(facts.slow) == 1 else 's'} hold cards that hardly work"
            f" ({', '.join(facts.slow[:3])}{' …' if len(facts.slow) > 3 else ''}): the cards are full, the work is slow."
        ),
        (
            "Look at the job, not at the queue: input, network, topology, parallelism (`gpugrid nodes` shows the findings).",
            "Stop what holds cards without a process: `gpugrid cancel JOB`.",
        ),
    ),
    Case(
        "nothing_waits",
        lambda facts: not facts.waiting,
        lambda facts: f"Nobody waits; {facts.shape.free} of {facts.shape.usable} usable GPUs are free.",
    ),
    Case(
        "impossible_sizes",
        lambda facts: facts.cause() is Cause.IMPOSSIBLE,
        lambda facts: (
            f"{len(_blocked(facts, Cause.IMPOSSIBLE))} waiting jobs offer only sizes that the pool can never form"
            f" ({_blocked(facts, Cause.IMPOSSIBLE)[0].job_id}: {min(_blocked(facts, Cause.IMPOSSIBLE)[0].sizes)} GPUs)."
        ),
        ("Submit them with a size the pool can form, or for another pool.",),
    ),
    Case(
        "nodes_unusable",
        lambda facts: facts.unusable * 5 >= facts.shape.gpus and facts.cause() is not Cause.NEITHER,
        lambda facts: (
            f"{facts.unusable} of {facts.shape.gpus} GPUs are on lost, suspect, draining or unhealthy hardware."
        ),
        ("Bring the nodes back or undrain them: `gpugrid nodes`, `gpugrid undrain NODE`.",),
    ),
    Case(
        "big_jobs_wait_for_whole_nodes",
        lambda facts: (
            facts.cause() is Cause.FRAGMENTATION
            and len(_big(facts)) * 2 >= len(facts.waiting)
            and facts.shape.free >= facts.node_gpus
        ),
        lambda facts: (
            f"{len(_big(facts))} of the waiting jobs need a whole node of {facts.node_gpus} (one NVLink domain) or more;"
            f" the {facts.shape.free} free GPUs lie scattered over"
            f" {sum(bool(node.free) for node in facts.shape.nodes)} nodes."
        ),
        (
            "Raise the big job's priority, so that the plan keeps a node for it: `gpugrid change JOB --priority N`.",
            "Drain the node with the least work left and let it empty: `gpugrid drain NODE`.",
            "Offer smaller sizes as well, if the job can use them.",
        ),
    ),
    Case(
        "queueing_at_low_utilization",
        lambda facts: (
            facts.cause() is Cause.FRAGMENTATION
            and facts.held_share < LOW_HELD
            and (longest := facts.longest()) is not None
            and longest.waited_s >= LONG_WAIT_S
        ),
        lambda facts: (
            f"{_waits_text(facts)}, although only {facts.held_share:.0%} of the GPUs are held: the fragments have the wrong"
            f" distribution, the largest free block has {facts.shape.largest_block()}."
        ),
        (
            "Offer smaller sizes; the planner packs new work so that whole blocks come back.",
            "Look for small long jobs alone on a node (`gpugrid grid`) and let them end or checkpoint.",
        ),
    ),
    Case(
        "free_cards_but_jobs_queue",
        lambda facts: facts.cause() is Cause.FRAGMENTATION,
        lambda facts: (
            f"{facts.shape.free} GPUs are free, but a block lies inside a node or is made of whole nodes: the largest free"
            f" one has {facts.shape.largest_block()}, {len(_blocked(facts, Cause.FRAGMENTATION))} jobs need more."
        ),
        (
            "Offer smaller sizes too (`--gpus 2,4,8`).",
            "Wait for the planned start: the planner packs (`gpugrid why JOB`).",
        ),
    ),
    Case(
        "small_jobs_crowd_out_big_ones",
        lambda facts: _overtaken(facts) is not None,
        lambda facts: (
            f"{one.job_id} ({one.smallest} GPUs) waits for {duration_text(one.waited_s)}, and {one.overtaken} smaller jobs"
            " started meanwhile."
            if (one := _overtaken(facts)) is not None
            else ""
        ),
        (
            "Raise its priority; waiting raises it, too, from 30 minutes on: `gpugrid change JOB --priority N`.",
            "Jobs that end before its planned start do it no harm; see it with `gpugrid why JOB`.",
        ),
    ),
    Case(
        "lent_to_applications",
        lambda facts: _reason_share(facts, "application_return") >= 0.5,
        lambda facts: (
            f"Real-time applications need GPUs back before most of the {len(facts.waiting)} waiting jobs would end."
        ),
        (
            "Offer sizes that finish sooner, or let the jobs checkpoint: short work fits into the valley before the peak.",
            "If an application's forecast is too careful, lower its headroom or quantile.",
        ),
    ),
    Case(
        "total_shortage",
        lambda facts: facts.cause() is Cause.SHORTAGE,
        lambda facts: (
            f"{facts.shape.free} of {facts.shape.usable} usable GPUs are free and {_waits_text(facts)}: more is asked for than"
            " there is."
        ),
        (
            "Let work that can wait wait: lower its priority; shortest and most valuable first is what the plan does already.",
            "See who holds the GPUs (`gpugrid report --by team --since 24h`) and whether they work (`gpugrid nodes`).",
        ),
    ),
    Case(
        "starts_soon",
        lambda facts: True,
        lambda facts: (
            f"A fitting block is free for most of the waiting jobs ({_waits_text(facts)}); the planner has other reasons:"
            f" {_reasons_text(facts)}."
        ),
        ("Look at one of them: `gpugrid why JOB`.",),
    ),
)
"""Asked in this order; the last always applies."""


def _reasons_text(facts: Facts) -> str:
    """The three commonest reasons with their numbers."""
    counts = Counter(one.reason or "about to start" for one in facts.waiting).most_common(3)
    return ", ".join(f"{name} ({number})" for name, number in counts)


def diagnose(facts: Facts) -> Diagnosis:
    """The answer for one pool."""
    shape, cause = facts.shape, facts.cause()
    case = next(one for one in CASES if one.applies(facts))
    words = {
        Cause.FRAGMENTATION: "Fragmentation, not a shortage",
        Cause.SHORTAGE: "A total shortage, not fragmentation",
        Cause.NEITHER: "Neither shortage nor fragmentation",
        Cause.IMPOSSIBLE: "Sizes the pool can never form",
    }[cause]
    if not facts.waiting:
        words = "Nobody waits"
    longest = facts.longest()
    return Diagnosis(
        pool=shape.pool,
        cause=cause.value if facts.waiting else "none",
        headline=f"{words}: {shape.free} GPU{'' if shape.free == 1 else 's'} free, schedulability {shape.schedulability}",
        case=case.name,
        sentence=case.sentence(facts),
        would_help=case.would_help,
        numbers={
            "gpus": shape.gpus,
            "usable": shape.usable,
            "free": shape.free,
            "schedulability": shape.schedulability,
            "largest_block": shape.largest_block(),
            "held": facts.held,
            "held_share": round(facts.held_share, 4),
            "waiting": len(facts.waiting),
            "longest_wait_s": round(longest.waited_s, 3) if longest is not None else 0.0,
        },
    )


def facts_of(world: World, pool: str | None, now_ms: int) -> Facts:
    """What the topics say about one pool (None: all of them as one)."""
    nodes = {node.node: node for node in world.pool_nodes(pool)}
    starts = sorted(
        (view.status.started_ms, _gpus(view))
        for view in world.jobs.values()
        if view.job is not None and view.status is not None and view.status.started_ms is not None
    )
    waiting = [
        _waiting(view, now_ms, starts)
        for view in world.jobs.values()
        if view.job is not None
        and view.state in (JobState.QUEUED.value, ACCEPTED)
        and (pool is None or view.waits_for(pool))
    ]
    bad = (Health.LOST, Health.SUSPECT)
    unusable = sum(
        node.health in bad or world.is_draining(node) or not gpu.healthy
        for node in nodes.values()
        for gpu in node.gpus
        if gpu.index not in world.absent(node.node)
    )
    slow = {
        finding.job_id
        for node in nodes.values()
        for finding in node.findings
        if finding.job_id is not None and finding.code in SLOW_FINDINGS
    }
    return Facts(
        pool_shape(world, pool),
        tuple(sorted(waiting, key=lambda one: (-one.waited_s, one.job_id))),
        sum(node in nodes for node, _ in world.holder_of()),
        unusable,
        tuple(sorted(slow)),
    )


def _gpus(view: JobView) -> int:
    if view.status is not None and view.status.placed:
        return sum(len(part.gpus) for part in view.status.placed)
    return (view.job.requested_gpus or min(view.job.sizes)) if view.job is not None else 0


def _waiting(view: JobView, now_ms: int, starts: Sequence[tuple[int, int]]) -> Waiting:
    sizes = tuple(view.job.sizes) if view.job is not None else (1,)
    since_ms = view.submitted_ms if view.submitted_ms is not None else now_ms
    overtaken = 0
    if min(sizes) > 1 and (now_ms - since_ms) / 1000 >= LONG_WAIT_S:
        overtaken = sum(started_ms > since_ms and 0 < gpus < min(sizes) for started_ms, gpus in starts)
    reason = (view.status.reason or "") if view.status is not None else ""
    return Waiting(view.job_id, sizes, max(0, now_ms - since_ms) / 1000, reason, overtaken)


def diagnose_world(world: World, now_ms: int) -> list[Diagnosis]:
    """One answer per pool, by name; one for no pool where no node has reported."""
    pools: list[str | None] = sorted({node.pool for node in world.nodes.values()}) or [None]  # type: ignore[assignment]
    return [diagnose(facts_of(world, pool, now_ms)) for pool in pools]

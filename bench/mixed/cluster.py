"""A cluster of two pools for a day, decided by the real allocator core: arrivals and ends as events, true durations as forecasts.

Owns the clockwork of the benchmark only: no bus, no executors, no failures. Reads every plan's effects, not its state's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from schemas.base import Event
from schemas.codec import encode_payload
from schemas.decisions import DecisionInput, Placed
from schemas.executions import JobCompleted, JobStarted
from schemas.forecasts import DurationForecast, SizeForecast
from schemas.jobs import JobAccepted, JobSpec
from schemas.nodes import GpuState, Health, NodeStateChanged
from schemas.records import Now
from schemas.registry import TYPE_OF, topic_of
from services.allocator.core.config import Policy
from services.allocator.core.decide import INPUT_TOPICS, Settings, decide
from services.allocator.core.state import State

TICK_MS = 60_000
"""Events of one minute are one decision: a real cluster's day has more decisions, its plans are the same."""
DRAIN_MS = 3 * 86_400_000
CLUSTER = "c0"


@dataclass(frozen=True, slots=True)
class Work:
    """A job with what it accepts: `run_s` in the pool of speed 1, `speeds` what the planner is told and what is true."""

    job_id: str
    at_ms: int
    spec: JobSpec
    run_s: Mapping[int, float]
    pools: tuple[str, ...]
    speeds: Mapping[str, float]
    true_speeds: Mapping[str, float]


@dataclass(slots=True)
class Run:
    """Where a job ran and when."""

    pool: str
    gpus: int
    start_ms: int
    end_ms: int


@dataclass(slots=True)
class Played:
    """`runs` by job; `decisions_ms`: processor milliseconds of each."""

    runs: dict[str, Run] = field(default_factory=dict)
    decisions_ms: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def unlimited(spec: JobSpec) -> JobSpec:
    """The job without its time limit and memory: every pool can hold it, and no belief about its end cuts it short."""
    return msgspec.structs.replace(spec, time_limit_s=30 * 86_400.0, memory_mib=0)


def play(
    work: Sequence[Work], pools: Mapping[str, Sequence[int]], policy: Policy, clock: Callable[[], float]
) -> Played:
    """Until everything has ended. `pools`: GPUs per node; `clock`: seconds for measuring."""
    state, played = State(cluster=CLUSTER), Played()
    settings = Settings(policy=policy, memory_mib={}, code_version="bench", writer="bench")
    start_ms = min(one.at_ms for one in work)
    waiting: list[tuple[int, int, list[Event]]] = []
    by_id, count, offset = {one.job_id: one for one in work}, 0, 0

    def push(at_ms: int, events: list[Event]) -> None:
        nonlocal count
        heapq.heappush(waiting, (-(-at_ms // TICK_MS) * TICK_MS, count, events))
        count += 1

    push(start_ms, [_node(pool, at, gpus, start_ms) for pool, nodes in pools.items() for at, gpus in enumerate(nodes)])
    for one in work:
        push(one.at_ms, [_accepted(one), _forecast(one)])
    last_ms = max(one.at_ms for one in work) + DRAIN_MS
    while waiting and waiting[0][0] <= last_ms:
        now_ms, events = waiting[0][0], list[Event]()
        while waiting and waiting[0][0] == now_ms:
            events += heapq.heappop(waiting)[2]
        inputs = []
        for event in sorted(events, key=lambda event: INPUT_TOPICS.index(topic_of(event))):
            inputs.append(_input(event, offset))
            offset += 1
        begun = clock()
        decided = decide(state, inputs, [], Now(now_ms, now_ms), settings)
        played.decisions_ms.append((clock() - begun) * 1000)
        played.violations += decided.violations
        for effect in decided.record.effects:
            if isinstance(effect, Placed):
                one = by_id[effect.job_id]
                run_s = one.run_s[effect.gpus] / one.true_speeds[effect.pool]
                end_ms = now_ms + round(run_s * 1000)
                played.runs[effect.job_id] = Run(effect.pool, effect.gpus, now_ms, end_ms)
                push(now_ms + 1, [_started(effect, part.node, now_ms) for part in effect.placed])
                push(
                    max(end_ms, now_ms + 2 * TICK_MS),
                    [_completed(effect, p.node, end_ms, run_s) for p in effect.placed],
                )
    return played


def _node(pool: str, at: int, gpus: int, now_ms: int) -> NodeStateChanged:
    cards = [GpuState(index=index, uuid=f"{pool}-{at}-{index}") for index in range(gpus)]
    return NodeStateChanged(
        node=f"{pool}-{at:02}", cluster=CLUSTER, pool=pool, time_ms=now_ms, health=Health.USABLE, gpus=cards, order=at
    )


def _accepted(one: Work) -> JobAccepted:
    return JobAccepted(
        job_id=one.job_id,
        cluster=CLUSTER,
        pools=list(one.pools),
        submitted_ms=one.at_ms,
        accepted_ms=one.at_ms,
        digest=one.job_id,
        spec=one.spec,
        speeds={pool: one.speeds[pool] / one.speeds[one.pools[0]] for pool in one.pools} if len(one.pools) > 1 else {},
    )


def _forecast(one: Work) -> DurationForecast:
    """The truth, in the pool it prefers; P90 half as much again, as a forecaster would add."""
    first = one.true_speeds[one.pools[0]]
    sizes = [SizeForecast(gpus=g, p50_s=s / first, p90_s=1.5 * s / first) for g, s in one.run_s.items()]
    return DurationForecast(job_id=one.job_id, cluster=CLUSTER, made_ms=one.at_ms, model="truth", sizes=sizes)


def _started(effect: Placed, node: str, at_ms: int) -> JobStarted:
    return JobStarted(
        job_id=effect.job_id, attempt=effect.attempt, node=node, cluster=CLUSTER, time_ms=at_ms, wall_ms=at_ms, gpus=[0],
        sequence=1,
    )  # fmt: skip


def _completed(effect: Placed, node: str, at_ms: int, run_s: float) -> JobCompleted:
    return JobCompleted(
        job_id=effect.job_id, attempt=effect.attempt, node=node, cluster=CLUSTER, time_ms=at_ms, run_s=run_s
    )


def _input(event: Event, offset: int) -> DecisionInput:
    topic = topic_of(event)
    payload = msgspec.Raw(encode_payload(event))
    return DecisionInput(
        topic=topic, partition=0, offset=offset, type=TYPE_OF[type(event)], id=str(offset), payload=payload
    )

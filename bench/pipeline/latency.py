"""Latency at a rate the stack is far from filling: the pipeline, the bare chain and an echo, in turns on one broker.

The jobs are short, so the queue stays small: a wait for GPUs is no latency. Two ends are reported, because the allocator hears
of a job from intake and again from the forecaster: the first decision that names it (it may say "awaiting_forecast"), and
the decision that places it, which has passed the same three hops as the bare chain.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from bench.pipeline.facts import Facts, facts
from bench.pipeline.hops import SPANS, TOPICS, Marks, marks_of, since_sent_ms, spans_ms
from bench.pipeline.load import Sent, arrivals_s, job_message, publish
from bench.pipeline.processor import Accounts, Pids
from bench.pipeline.sight import everything, until, watching
from bench.pipeline.stack import CHAIN, CLUSTER, ECHO, PARTITION, measured_stack
from bench.pipeline.stats import Distribution, distribution
from schemas.records import Message, Record
from services.runtime.bus.kafka import KafkaBus
from services.runtime.bus.port import Producer

P50_GOAL_MS, P99_GOAL_MS, RATIO_GOAL = 35.0, 150.0, 1.6
RUN_S = 0.5
"""At 20 jobs/s ten GPUs are busy; in the plan, which thinks in forecasts, more."""
WARM_UP_JOBS = 60
"""Published before anything is measured, and reported apart: the first requests of fresh processes."""
ARRIVE_WAIT_S = 30.0
NODES_WAIT_S = 30.0
CPU_MS_SHOWN_MIN = 0.5
SLOWEST_MAX = 10


class LatencyOptions(Struct, frozen=True, kw_only=True):
    """`blocks`: turns between pipeline, chain and echo. `poisson`: else evenly spaced."""

    jobs: int = 2_000
    rate: float = 20.0
    gpus: int = 64
    blocks: int = 8
    poisson: bool = True
    seed: int = 1


class Slow(Struct, frozen=True, kw_only=True):
    """One of the slowest jobs: its number in the run, and where the time went."""

    job: str
    named_ms: float
    intake_ms: int
    decision_ms: int


class Turn(Struct, frozen=True, kw_only=True):
    """One turn of each way: medians, their ratios to the chain's, and the cores that other programs kept busy meanwhile."""

    named_p50_ms: float
    placed_p50_ms: float
    chain_p50_ms: float
    ratio_named: float
    ratio_placed: float
    others_pipeline: float
    others_chain: float


class LatencyResult(Struct, frozen=True, kw_only=True):
    """`ways_ms`: end to end, seen by a reader. `hops_ms`: by record times. `lost`: jobs no decision named in time.
    `cpu_ms_per_job`: processor time of each process while its way was measured."""

    benchmark: str = "pipeline-latency.v1"
    facts: Facts
    options: LatencyOptions
    ways_ms: dict[str, Distribution | None]
    hops_ms: dict[str, Distribution | None]
    ratio_named: float
    ratio_placed: float
    turns: list[Turn]
    first_reasons: dict[str, int]
    cpu_ms_per_job: dict[str, float]
    lost: int
    slowest: list[Slow]
    publisher_late_ms: float
    took_s: float


class _Echoes:
    """When each identity was seen on an end topic of the chain or the echo."""

    def __init__(self) -> None:
        self.at_ns: dict[str, int] = {}

    def __call__(self, record: Record, now_ns: int) -> None:
        self.at_ns.setdefault((record.key or b"").decode(), now_ns)


class _Ways:
    """What was sent and seen so far."""

    def __init__(self, bus: KafkaBus, producer: Producer, options: LatencyOptions, pids: Pids) -> None:
        self._bus = bus
        self._producer = producer
        self._options = options
        self._draw = np.random.default_rng(options.seed) if options.poisson else None
        self.warm, self.pipeline, self.chain, self.echo = Sent({}), Sent({}), Sent({}), Sent({})
        self.decisions_ns: dict[tuple[int, int], int] = {}
        self.chain_seen, self.echo_seen = _Echoes(), _Echoes()
        self.accounts = Accounts(pids)

    def decided(self, record: Record, now_ns: int) -> None:
        self.decisions_ns[record.partition, record.offset] = now_ns

    async def send(self, name: str, count: int, sent: Sent, make: Callable[[str, int], Message]) -> None:
        first = len(sent.at_ns)
        identities = [f"{name}-{first + number:05d}" for number in range(count)]
        await publish(self._producer, identities, arrivals_s(count, self._options.rate, self._draw), make, sent)

    def cpu_ms_per_job(self) -> dict[str, float]:
        each = {name: round(used_s * 1000 / self._options.jobs, 2) for name, used_s in self.accounts.used_s.items()}
        return {name: ms for name, ms in each.items() if ms >= CPU_MS_SHOWN_MIN}

    async def settle(self, seen: Callable[[], int], wanted: int) -> None:
        """Wait until `wanted` are seen, but not for ever: what is lost is reported, not waited for."""
        await until(lambda: seen() >= wanted, ARRIVE_WAIT_S)


def measure_latency(options: LatencyOptions, run_dir: Path, tell: Callable[[str], None]) -> LatencyResult:
    """Start the stack, measure, stop it."""
    machine = facts()
    begun_s = time.monotonic()
    tell("starting broker, services and the bare chain …")
    with measured_stack(run_dir, gpus=options.gpus, bare=True) as (bootstrap, supervisor):

        def pids() -> dict[str, int]:
            return {process.name: process.pid for process in supervisor.snapshot().processes} | {"bench": os.getpid()}

        return asyncio.run(_measure(options, machine, bootstrap, pids, tell, begun_s))


async def _measure(
    options: LatencyOptions,
    machine: Facts,
    bootstrap: str,
    pids: Pids,
    tell: Callable[[str], None],
    begun_s: float,
) -> LatencyResult:
    bus = KafkaBus(bootstrap)
    producer = bus.producer("bench-publisher")
    await producer.start()
    await nodes_known(bus, options.gpus)
    ways = _Ways(bus, producer, options, pids)
    try:
        async with (
            watching(bus, "decisions", ways.decided),
            watching(bus, CHAIN[-1], ways.chain_seen),
            watching(bus, ECHO[-1], ways.echo_seen),
        ):
            tell("warming up …")
            await ways.send("warm", WARM_UP_JOBS, ways.warm, _job)
            await _bare(ways, ways.chain, ways.chain_seen, "chainwarm", CHAIN[0], WARM_UP_JOBS)
            await _bare(ways, ways.echo, ways.echo_seen, "echowarm", ECHO[0], WARM_UP_JOBS)
            ways.chain.at_ns.clear()
            ways.echo.at_ns.clear()
            await _turns(ways, options, tell)
    finally:
        await producer.stop()
    return _result(options, machine, ways, await everything(bus, TOPICS), time.monotonic() - begun_s)


async def _turns(ways: _Ways, options: LatencyOptions, tell: Callable[[str], None]) -> None:
    each = options.jobs // options.blocks
    for block in range(options.blocks):
        seconds = each / options.rate
        tell(f"block {block + 1} of {options.blocks}: {each} jobs each way, {3 * seconds:.0f} s …")
        with ways.accounts.period("pipeline"):
            await ways.send("job", each, ways.pipeline, _job)
            await asyncio.sleep(2 * RUN_S)  # the last jobs end: their reports must not run beside the bare chain
        with ways.accounts.period("chain"):
            await _bare(ways, ways.chain, ways.chain_seen, "chain", CHAIN[0], each)
        await _bare(ways, ways.echo, ways.echo_seen, "echo", ECHO[0], each)


def _job(job_id: str, number: int) -> Message:
    return job_message(job_id, number, RUN_S)


async def _bare(ways: _Ways, sent: Sent, seen: _Echoes, name: str, topic: str, count: int) -> None:
    def make(identity: str, number: int) -> Message:
        job = _job(identity, number)
        return Message(topic, job.key, job.value, job.headers, PARTITION)

    before = len(seen.at_ns)
    await ways.send(name, count, sent, make)
    await ways.settle(lambda: len(seen.at_ns), before + count)


async def nodes_known(bus: KafkaBus, gpus: int) -> None:
    """Wait until every node's state has been published; the allocator hears of it at the same moment."""
    nodes: set[bytes | None] = set()
    wanted = gpus // 8
    for _ in range(int(NODES_WAIT_S * 2)):
        nodes = {record.key for record in await everything(bus, ["node-states"])}
        if len(nodes) >= wanted:
            return
        await asyncio.sleep(0.5)
    raise TimeoutError(f"only {len(nodes)} of {wanted} nodes appeared within {NODES_WAIT_S:.0f} s: see the run's logs")


def _result(
    options: LatencyOptions, machine: Facts, ways: _Ways, records: list[Record], took_s: float
) -> LatencyResult:
    marks = marks_of(records, ways.decisions_ns, CLUSTER)
    jobs = ways.pipeline.at_ns
    measured = [marks[job_id] for job_id in jobs if job_id in marks]
    found = {
        "pipeline: submit → first decision": since_sent_ms(jobs, marks, "named_seen_ns"),
        "pipeline: submit → placing decision": since_sent_ms(jobs, marks, "placed_seen_ns"),
        "bare chain: 2 faust + 1 aiokafka": _echo_ms(ways.chain, ways.chain_seen),
        "bare aiokafka echo": _echo_ms(ways.echo, ways.echo_seen),
        "first jobs after the start: submit → first decision": since_sent_ms(ways.warm.at_ns, marks, "named_seen_ns"),
    }
    spread = {name: distribution(durations) for name, durations in found.items()}
    named, placed, chain, _, _ = spread.values()
    reasons: dict[str, int] = {}
    for entry in measured:
        reasons[entry.reason or "placed at once"] = reasons.get(entry.reason or "placed at once", 0) + 1
    return LatencyResult(
        facts=machine,
        options=options,
        ways_ms=spread,
        hops_ms={name: distribution(spans_ms(measured, span)) for name, span in SPANS.items()},
        ratio_named=_ratio(named, chain),
        ratio_placed=_ratio(placed, chain),
        turns=_turn_by_turn(ways, marks),
        first_reasons=dict(sorted(reasons.items())),
        cpu_ms_per_job=ways.cpu_ms_per_job(),
        lost=len(jobs) - (named.count if named else 0),
        slowest=_slowest(jobs, marks),
        publisher_late_ms=round(max(ways.pipeline.late_s_max, ways.chain.late_s_max) * 1000, 3),
        took_s=round(took_s, 1),
    )


def _turn_by_turn(ways: _Ways, marks: dict[str, Marks]) -> list[Turn]:
    """Everything again, per turn: identities were sent in the order of the turns."""
    others = ways.accounts.others
    jobs, chain = list(ways.pipeline.at_ns.items()), list(ways.chain.at_ns.items())
    count = len(others) // 2
    found = []
    for turn in range(count):
        mine = dict(jobs[turn * len(jobs) // count : (turn + 1) * len(jobs) // count])
        theirs = dict(chain[turn * len(chain) // count : (turn + 1) * len(chain) // count])
        named = _median(since_sent_ms(mine, marks, "named_seen_ns"))
        placed = _median(since_sent_ms(mine, marks, "placed_seen_ns"))
        bare = _median(_echo_ms(Sent(theirs), ways.chain_seen))
        found.append(
            Turn(
                named_p50_ms=named,
                placed_p50_ms=placed,
                chain_p50_ms=bare,
                ratio_named=round(named / bare, 3) if bare else 0.0,
                ratio_placed=round(placed / bare, 3) if bare else 0.0,
                others_pipeline=others[2 * turn],
                others_chain=others[2 * turn + 1],
            )
        )
    return found


def _median(durations_ms: Sequence[float]) -> float:
    spread = distribution(durations_ms)
    return spread.p50_ms if spread is not None else 0.0


def _slowest(at_ns: dict[str, int], marks: dict[str, Marks]) -> list[Slow]:
    found = []
    for job_id, sent_ns in at_ns.items():
        entry = marks.get(job_id)
        if entry is None or entry.named_seen_ns is None or entry.named_ms is None:
            continue
        accepted_ms = entry.accepted_ms or entry.named_ms
        found.append(
            Slow(
                job=job_id,
                named_ms=round((entry.named_seen_ns - sent_ns) / 1e6, 1),
                intake_ms=accepted_ms - (entry.submitted_ms or accepted_ms),
                decision_ms=entry.named_ms - accepted_ms,
            )
        )
    return sorted(found, key=lambda slow: -slow.named_ms)[:SLOWEST_MAX]


def _echo_ms(sent: Sent, seen: _Echoes) -> list[float]:
    return [(seen.at_ns[name] - at_ns) / 1e6 for name, at_ns in sent.at_ns.items() if name in seen.at_ns]


def _ratio(ours: Distribution | None, bare: Distribution | None) -> float:
    return round(ours.p50_ms / bare.p50_ms, 3) if ours and bare and bare.p50_ms else 0.0

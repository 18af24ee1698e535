"""Throughput: job events at a steady rate through intake to the decision, and whether anything falls behind.

Every job runs for an hour, so all but the first few stay queued: the queue grows to rate × seconds, which is the hard case for
the allocator. Lag is sampled each second: events published and not yet named by a decision a reader has seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct

from bench.pipeline.facts import Facts, facts
from bench.pipeline.hops import TOPICS, marks_of, since_sent_ms
from bench.pipeline.latency import nodes_known
from bench.pipeline.load import Sent, arrivals_s, job_message, publish
from bench.pipeline.sight import everything, watching
from bench.pipeline.stack import CLUSTER, measured_stack
from bench.pipeline.stats import Distribution, distribution
from schemas.codec import decode_record
from schemas.decisions import DecisionMade, Placed, Waits
from schemas.records import Record
from services.runtime.bus.kafka import KafkaBus

SAMPLE_S = 1.0
DRAIN_S_MAX = 60.0
SETTLED_SHARE = 1 / 3
"""The first third of the run fills caches and queues; growth is judged after it."""
GROWTH_SHARE_MAX = 0.01
"""Lag that grows by less than this share of the rate is level: at 300/s 3 events per second, 180 in a minute."""


class ThroughputOptions(Struct, frozen=True, kw_only=True):
    """`run_s`: how long each job runs; short ones free their GPUs and add their reports to the allocator's inputs."""

    rate: float = 300.0
    seconds: float = 60.0
    gpus: int = 64
    run_s: float = 3_600.0
    seed: int = 1


class Sample(Struct, frozen=True, kw_only=True, array_like=True):
    """One second: events published and named by a decision so far, the difference, and the latest decision's number."""

    at_s: float
    published: int
    decided: int
    lag: int
    decisions: int


class ThroughputResult(Struct, frozen=True, kw_only=True):
    """`lag_slope`: events per second over the settled part. `drained_s`: from the last event to the last decision; -1: never."""

    benchmark: str = "pipeline-throughput.v1"
    facts: Facts
    options: ThroughputOptions
    samples: list[Sample]
    lag_slope: float
    lag_max: int
    growing: bool
    drained_s: float
    decisions: int
    jobs_per_decision: float
    latency_ms: Distribution | None
    publisher_late_ms: float
    took_s: float


class _Progress:
    """Jobs named by decisions, as they are seen."""

    def __init__(self) -> None:
        self.named: set[str] = set()
        self.decisions = 0
        self.seen_ns: dict[tuple[int, int], int] = {}
        self._records: list[Record] = []

    def __call__(self, record: Record, now_ns: int) -> None:
        self.seen_ns[record.partition, record.offset] = now_ns
        self._records.append(record)

    def count(self) -> int:
        """Decoding happens here, once a second, and not on the way."""
        records, self._records = self._records, []
        for record in records:
            event = decode_record(record).event
            if isinstance(event, DecisionMade):
                self.decisions += 1
                self.named.update(effect.job_id for effect in event.effects if isinstance(effect, Placed | Waits))
        return len(self.named)


def measure_throughput(options: ThroughputOptions, run_dir: Path, tell: Callable[[str], None]) -> ThroughputResult:
    """Start the stack, measure, stop it."""
    machine = facts()
    begun_s = time.monotonic()
    tell("starting broker and services …")
    with measured_stack(run_dir, gpus=options.gpus, bare=False) as (bootstrap, _):
        return asyncio.run(_measure(options, machine, bootstrap, tell, begun_s))


async def _measure(
    options: ThroughputOptions, machine: Facts, bootstrap: str, tell: Callable[[str], None], begun_s: float
) -> ThroughputResult:
    bus = KafkaBus(bootstrap)
    producer = bus.producer("bench-publisher")
    await producer.start()
    await nodes_known(bus, options.gpus)
    count = round(options.rate * options.seconds)
    identities = [f"job-{number:06d}" for number in range(count)]
    at_s = arrivals_s(count, options.rate, np.random.default_rng(options.seed))
    sent, progress = Sent({}), _Progress()
    async with watching(bus, "decisions", progress):
        publishing = asyncio.ensure_future(
            publish(producer, identities, at_s, lambda name, n: job_message(name, n, options.run_s), sent)
        )
        samples, drained_s = await _sampled(sent, progress, publishing, count, tell)
        await publishing
    await producer.stop()
    marks = marks_of(await everything(bus, TOPICS), progress.seen_ns, CLUSTER)
    slope = lag_slope(samples, options.seconds)
    return ThroughputResult(
        facts=machine,
        options=options,
        samples=samples,
        lag_slope=round(slope, 3),
        lag_max=max(sample.lag for sample in samples),
        growing=slope > GROWTH_SHARE_MAX * options.rate,
        drained_s=round(drained_s, 2),
        decisions=progress.decisions,
        jobs_per_decision=round(len(progress.named) / max(1, progress.decisions), 2),
        latency_ms=distribution(since_sent_ms(sent.at_ns, marks, "named_seen_ns")),
        publisher_late_ms=round(sent.late_s_max * 1000, 3),
        took_s=round(time.monotonic() - begun_s, 1),
    )


async def _sampled(
    sent: Sent, progress: _Progress, publishing: asyncio.Future, count: int, tell: Callable[[str], None]
) -> tuple[list[Sample], float]:
    """Samples until everything is decided, or DRAIN_S_MAX after the last event."""
    samples: list[Sample] = []
    begun_s = time.monotonic()
    ended_s: float | None = None
    while True:
        await asyncio.sleep(max(0.0, begun_s + (len(samples) + 1) * SAMPLE_S - time.monotonic()))
        now_s = time.monotonic()
        if ended_s is None and publishing.done():
            ended_s = now_s
        published = len(sent.at_ns)
        decided = progress.count()
        at_s = round(now_s - begun_s, 2)
        lag = published - decided
        samples.append(Sample(at_s=at_s, published=published, decided=decided, lag=lag, decisions=progress.decisions))
        if len(samples) % 10 == 0:
            tell(f"{at_s:.0f} s: {published} published, lag {lag}, {progress.decisions} decisions")
        if ended_s is not None and decided >= count:
            return samples, now_s - ended_s
        if ended_s is not None and now_s - ended_s > DRAIN_S_MAX:
            return samples, -1.0


def lag_slope(samples: list[Sample], seconds: float) -> float:
    """Events per second by which the lag grows, least squares over the part of the run that is settled."""
    settled = [sample for sample in samples if seconds * SETTLED_SHARE <= sample.at_s <= seconds]
    if len(settled) < 2:
        return 0.0
    slope, _ = np.polyfit([sample.at_s for sample in settled], [sample.lag for sample in settled], 1)
    return float(slope)

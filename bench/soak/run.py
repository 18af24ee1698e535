"""One run of a script on a stack of its own, from the first process to the verdict; and both runs, compared.

Owns the order: start, publish with kills or without, drain, read the topics, meter, judge. Read next: `__main__.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.pipeline.facts import Facts, facts
from bench.soak.evidence import TOPICS, Evidence
from bench.soak.judge import certain_counts, compare, judge
from bench.soak.kills import Kill, Planned, carry_out, plan
from bench.soak.publish import Progress, following, publish
from bench.soak.resources import Resources, Scale
from bench.soak.script import Script
from bench.soak.stack import CLUSTERS, NODE_GPUS, Soaked, second_name, soaked
from schemas.codec import DecodeError, decode_record
from schemas.records import Record
from services.console.metering.account import Window, rows_of
from services.console.metering.ledger import TOPICS as METERED_TOPICS
from services.console.metering.ledger import Ledger
from services.console.metering.report import By, report_of
from services.runtime.bus.kafka import KafkaBus
from services.runtime.bus.port import BusError
from services.runtime.hop import read_to_end

NODES_WAIT_S = 120.0
STALLED_S = 240.0
"""Without a single job's end: longer than any kill takes to be overcome, node loss (a minute) included."""
TELL_S = 0.5
SAMPLES_MAX = 200
READ_TRIES = 20


class SoakOptions(Struct, frozen=True, kw_only=True):
    """`gpus` per cluster. `kills`: of each process, `second_kills` of each that joins later."""

    events: int = 300_000
    seed: int = 1
    gpus: int = 64
    kills: int = 2
    second_kills: int = 1


class Sample(Struct, frozen=True, kw_only=True, array_like=True):
    """Seconds since the first event, events published, jobs ended, jobs open."""

    at_s: float
    published: int
    ended: int
    open: int


class RunResult(Struct, frozen=True, kw_only=True):
    """`events_per_s`: published ÷ time until the last job's end. `counts`: records by topic and type, repetitions included; `certain`:
    what must not change. `wrong`: violated promises as sentences; empty is the goal.
    """

    took_s: float
    publish_s: float
    drained_s: float
    events_per_s: float
    jobs: int
    resent: int
    open_max: int
    samples: list[Sample]
    kills: list[Kill]
    counts: dict[str, int]
    certain: dict[str, int]
    decisions_by: dict[str, dict[str, int]]
    metered_gpu_h: float
    used: dict[str, Resources]
    wrong: list[str]


class SoakResult(Struct, frozen=True, kw_only=True):
    """`differences` between the two runs' certain counts."""

    benchmark: str = "soak.v1"
    facts: Facts
    options: SoakOptions
    undisturbed: RunResult
    disturbed: RunResult
    differences: list[str]

    @property
    def wrong(self) -> list[str]:
        """Every violation as a sentence."""
        return [
            *(f"undisturbed: {sentence}" for sentence in self.undisturbed.wrong),
            *(f"disturbed: {sentence}" for sentence in self.disturbed.wrong),
            *(f"between the runs: {sentence}" for sentence in self.differences),
        ]


Tell = Callable[[str, Progress], None]
"""(which run, how far): called about twice a second."""


class Undisturbed(Struct, frozen=True, kw_only=True):
    """The first of the two runs, kept in a file: each takes long, and they may be made at different hours."""

    facts: Facts
    options: SoakOptions
    run: RunResult


def soak(options: SoakOptions, run_dir: Path, tell: Tell, kept: Path | None = None) -> SoakResult:
    """Both runs; the undisturbed one is read from `kept` if it is there and written to it otherwise.

    Raises RuntimeError or TimeoutError if one could not be brought to its end, ValueError if `kept` is of other events or sources.
    """
    machine = facts()
    calm = undisturbed(options, run_dir, tell, kept)
    disturbed = one_run(options, run_dir / "disturbed", plan(options.seed, options.kills, options.second_kills), tell)
    return SoakResult(
        facts=machine,
        options=options,
        undisturbed=calm,
        disturbed=disturbed,
        differences=compare(calm.certain, disturbed.certain),
    )


def undisturbed(options: SoakOptions, run_dir: Path, tell: Tell, kept: Path | None = None) -> RunResult:
    """The first run alone, as `soak` makes it."""
    machine = facts()
    if kept is not None and kept.exists():
        try:
            found = msgspec.json.decode(kept.read_bytes(), type=Undisturbed)
        except msgspec.DecodeError as error:
            raise ValueError(
                f"{kept} holds no undisturbed run ({error}): give the path of one, or of no file"
            ) from None
        if (found.options, found.facts.commit) != (options, machine.commit):
            raise ValueError(
                f"{kept} is of {found.options} at {found.facts.commit}, not of {options} at {machine.commit}: "
                "remove it to make the run again"
            )
        return found.run
    run = one_run(options, run_dir / "undisturbed", [], tell)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(msgspec.json.encode(Undisturbed(facts=machine, options=options, run=run)))
    return run


def one_run(options: SoakOptions, run_dir: Path, kills: Sequence[Planned], tell: Tell) -> RunResult:
    """Start a stack, run the script, judge, stop it."""
    with soaked(run_dir, options.gpus) as stack:
        return asyncio.run(_run(options, stack, kills, tell))


async def _run(options: SoakOptions, stack: Soaked, kills: Sequence[Planned], tell: Tell) -> RunResult:
    bus = KafkaBus(stack.bootstrap)
    script = Script(options.seed, options.events, tuple(CLUSTERS))
    progress, scale = Progress(script), Scale()
    name = "disturbed" if kills else "undisturbed"
    await _nodes_known(bus, len(CLUSTERS) * options.gpus // NODE_GPUS)
    begun_s = time.monotonic()
    weighing = asyncio.ensure_future(scale.weigh(stack, progress))
    publishing = asyncio.ensure_future(publish(bus, progress))
    killing = asyncio.ensure_future(carry_out(stack, progress, kills, begun_s)) if kills else None
    samples: list[Sample] = []
    try:
        async with following(bus, progress, stack.check) as follower:
            tasks = [task for task in (weighing, publishing, killing, follower) if task is not None]
            publish_s = await _until_drained(stack, progress, tasks, samples, begun_s, lambda: tell(name, progress))
        drained_s = time.monotonic() - begun_s
        found = await killing if killing is not None else []
    finally:
        for task in (weighing, publishing, killing):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in (weighing, publishing, killing) if task), return_exceptions=True)
    evidence, ledger = await _read(bus)
    rows = rows_of(ledger, Window(0, 2**53))
    metered = {row.name: row.held_gpu_ms for row in rows}
    wrong = judge(script, evidence, metered)
    if kills:
        wrong += _second_idle(evidence)
    return RunResult(
        took_s=round(time.monotonic() - begun_s, 1),
        publish_s=round(publish_s, 1),
        drained_s=round(drained_s, 1),
        events_per_s=round(options.events / drained_s, 1),
        jobs=len(script.jobs),
        resent=progress.resent,
        open_max=max(sample.open for sample in samples),
        samples=samples[:: max(1, len(samples) // SAMPLES_MAX)],
        kills=found,
        counts=dict(sorted(evidence.counts.items())),
        certain=certain_counts(script, evidence),
        decisions_by={cluster: dict(writers) for cluster, writers in evidence.writers.items()},
        metered_gpu_h=report_of(rows, By.TEAM, Window(0, 2**53)).total.held_h,
        used=scale.results(options.events),
        wrong=wrong,
    )


async def _until_drained(
    stack: Soaked,
    progress: Progress,
    tasks: Sequence[asyncio.Future],
    samples: list[Sample],
    begun_s: float,
    tell: Callable[[], None],
) -> float:
    """Seconds until the last event was published; returns when the last job has ended."""
    publish_s, moved = 0.0, (0, time.monotonic())
    while not (progress.all_published and progress.open == 0):
        await asyncio.sleep(TELL_S)
        stack.check()
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise RuntimeError(f"the soak failed: {error!r}") from error
        now_s = time.monotonic()
        samples.append(
            Sample(
                at_s=round(now_s - begun_s, 1), published=progress.published, ended=progress.ended, open=progress.open
            )
        )
        if progress.all_published and not publish_s:
            publish_s = now_s - begun_s
        if progress.ended != moved[0]:
            moved = (progress.ended, now_s)
        elif now_s - moved[1] > STALLED_S:
            left = ", ".join(progress.unfinished())
            raise TimeoutError(f"no job ended for {STALLED_S:.0f} s; {progress.open} are open: {left}")
        tell()
    return publish_s or time.monotonic() - begun_s


async def _nodes_known(bus: KafkaBus, wanted: int) -> None:
    """Wait until every node's state has been published."""
    deadline_s = time.monotonic() + NODES_WAIT_S
    nodes: set[bytes | None] = set()
    reader = bus.reader(
        "soak-nodes", [("node-states", number) for number in range(await bus.partition_count("node-states"))]
    )
    await reader.start()
    try:
        while len(nodes) < wanted:
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"only {len(nodes)} of {wanted} nodes appeared in time: see the logs in the run folder"
                )
            nodes |= {record.key for record in await reader.poll(max_records=1_000, timeout_s=1.0)}
    finally:
        await reader.stop()


async def _read(bus: KafkaBus) -> tuple[Evidence, Ledger]:
    """Every topic once, each into those who need it. A broker that has just come back may lose a reader: then all again."""
    for left in reversed(range(READ_TRIES)):
        evidence, ledger = Evidence(), Ledger()
        try:
            for topic in dict.fromkeys((*TOPICS, *METERED_TOPICS)):
                await _topic(bus, topic, evidence, ledger)
            return evidence, ledger
        except BusError:
            if not left:
                raise
            await asyncio.sleep(1.0)
    raise AssertionError("unreachable")


async def _topic(bus: KafkaBus, topic: str, evidence: Evidence, ledger: Ledger) -> None:
    def fold(record: Record) -> None:
        if topic in TOPICS:
            evidence.fold(record)
        if topic in METERED_TOPICS and record.value is not None:
            with contextlib.suppress(DecodeError):  # the evidence has named it
                ledger.fold(decode_record(record).event)

    reader = bus.reader("soak-judge", [(topic, number) for number in range(await bus.partition_count(topic))])
    await reader.start()
    try:
        await read_to_end(reader, fold)
    finally:
        await reader.stop()


def _second_idle(evidence: Evidence) -> list[str]:
    """Partitions must have moved to the added allocator."""
    writers = {name for found in evidence.writers.values() for name in found}
    if any(name.startswith(f"{second_name('allocator')}-") for name in writers):
        return []
    return [f"the second allocator never decided anything: only {', '.join(sorted(writers))} did"]

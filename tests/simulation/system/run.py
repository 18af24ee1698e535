"""One seed from beginning to end: world, stack, faults, the wait until everything has drained, then judgement.

Owns: the phases of a run and what is kept of it. The same seed gives the same digest in every process. Read next:
`faults.py`, `checks.py`, `story.py`.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.codec import DecodeError, decode_record
from schemas.decisions import Preempted
from schemas.placements import NodePlaced
from schemas.records import Record
from schemas.status import FINAL_STATES, JobStatusChanged
from services.allocator.core.decide import INPUT_TOPICS
from services.runtime.virtual import VirtualClock, run_virtual
from tests.simulation.system.checks import check
from tests.simulation.system.evidence import Evidence, evidence_of
from tests.simulation.system.faults import Faults, Weather, weather_of
from tests.simulation.system.read_once import each_read_once
from tests.simulation.system.stack import SPEED, Stack, digest_bytes
from tests.simulation.system.world import SPAN_MS, START_MS, World, build_world

LEAD_MS = 60_000
"""Domain time for nodes to appear before the first job."""
DRAIN_MS_MAX = 10 * 3_600_000
"""Domain time from the last fault until everything must have ended."""
LOOK_S = 5.0
SETTLE_S = 20.0
"""Wall seconds after the last job ended, for projections and applications."""
SILENCE_S, SILENCE_WAIT_S = 0.25, 10.0
"""A run ends after so long without an input: what services say by the clock, of no job, is decided, too. Looked for so long at most."""
SILENCE_LOOK_S = 0.1237
"""Not a part of a second: the run must not end in the instant in which a service speaks."""
CARDS_SETTLE_S = 600.0
"""And where cards are shared, at most so long for the last orders to cut them: one that hangs is given up after 300, each of the others
takes 40."""
CARDS_QUIET_S = 120.0
"""Nothing is asked of the cards for so long (40 minutes of domain time): nothing more will be."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What is left of one run."""

    seed: int
    digest: str
    violations: list[str]
    counts: dict[str, int]
    kinds: tuple[str, ...]
    took_s: float
    evidence: Evidence | None = field(default=None, repr=False)


def run_seed(seed: int, *, calm: bool = False, keep: bool = False) -> Ran:
    """Run it and judge it. `calm`: no faults at all. `keep`: the evidence, too, for the story."""
    begun_s = time.process_time()
    world = build_world(seed)
    return run_world(world, weather_of(seed, world, calm=calm), keep=keep, begun_s=begun_s)


def run_world(world: World, weather: Weather, *, keep: bool = False, begun_s: float | None = None) -> Ran:
    """Run this world in this weather and judge it."""
    begun_s = time.process_time() if begun_s is None else begun_s

    async def main(clock: VirtualClock) -> tuple[Stack, bool]:
        stack = Stack(world, clock, weather.bus, weather.skew_of)
        return stack, await _play(stack, weather)

    gc.disable()  # a run leaves many small rings behind; collected when all are dead they cost a tenth less
    try:
        with each_read_once():
            stack, drained = run_virtual(main, START_MS - LEAD_MS, speed=SPEED)
            evidence = evidence_of(stack, weather, drained)
            violations = check(evidence)
        digest, counts = hashlib.sha256(digest_bytes(stack.bus)).hexdigest(), _counts(evidence, stack)
        kept = evidence if keep or violations else None
        del stack, evidence
    finally:
        gc.enable()
    return Ran(
        seed=world.seed,
        digest=digest,
        violations=violations,
        counts=counts,
        kinds=weather.kinds,
        took_s=time.process_time() - begun_s,
        evidence=kept,
    )


async def _play(stack: Stack, weather: Weather) -> bool:
    """Whether everything drained in time."""
    faults = Faults(stack, weather)
    stack.start()
    upstream = asyncio.ensure_future(stack.upstream())
    blowing = asyncio.ensure_future(faults.blow())
    try:
        await blowing
        await stack.clock.sleep_until(START_MS + SPAN_MS)
        faults.calm_down()
        stack.tell("weather", "no more faults from here on")
        drained = await _drained(stack)
        upstream.cancel()  # what it would still order concerns jobs that wait, and none does
        await stack.clock.sleep_wall(max(0.0, stack.bus.hidden_until_s() - stack.clock.wall_s()))
        await stack.clock.sleep_wall(SETTLE_S)
        if stack.cards is not None:
            await _cards_settle(stack)
        await _silence(stack)
        return drained
    finally:
        for task in (upstream, blowing):
            task.cancel()
        await asyncio.gather(upstream, blowing, return_exceptions=True)
        await stack.end()


async def _drained(stack: Stack) -> bool:
    """Wait until every job that was let in has a final status."""
    until_ms = stack.clock.now_ms() + DRAIN_MS_MAX
    looking = _Looking(stack)
    while stack.clock.now_ms() < until_ms:
        if not looking.left():
            return True
        await stack.clock.sleep_wall(LOOK_S)
    return False


async def _silence(stack: Stack) -> None:
    """Wait until no input has come for a moment."""
    logs = [stack.bus.log(part) for topic in INPUT_TOPICS for part in stack.bus.partitions(topic)]
    given_up_s = stack.clock.wall_s() + SILENCE_WAIT_S
    newest_ms = stack.clock.wall_ms()
    while newest_ms >= stack.clock.wall_ms() - SILENCE_S * 1000 and stack.clock.wall_s() < given_up_s:
        await stack.clock.sleep_wall(SILENCE_LOOK_S)
        newest_ms = max((records[-1].timestamp_ms for log in logs if (records := log.records())), default=0)


async def _cards_settle(stack: Stack) -> None:
    """Wait until no placement has asked for cards to be cut for a while."""
    looking, asked = _Looking(stack), dict[str, bool]()
    begun_s = quiet_s = stack.clock.wall_s()
    while (now_s := stack.clock.wall_s()) < min(begun_s + CARDS_SETTLE_S, quiet_s + CARDS_QUIET_S):
        for placed in looking.placed():
            asked[placed.node] = placed.reshape is not None
        if any(asked.values()):
            quiet_s = now_s
        await stack.clock.sleep_wall(LOOK_S)


class _Looking:
    """Follows `jobs` and `job-status` without reading them again and again."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._seen: Counter[tuple[str, int]] = Counter()
        self._open: dict[str, None] = {}
        self._closed: dict[str, None] = {}

    def left(self) -> bool:
        for record in self._new("jobs"):
            if record.header("ce_type") == "job.accepted.v1" and record.key is not None:
                self._open[record.key.decode()] = None
        for record in self._new("job-status"):
            status = _decoded(record)
            if isinstance(status, JobStatusChanged) and status.state in FINAL_STATES:
                self._closed[status.job_id] = None
        return any(job_id not in self._closed for job_id in self._open)

    def placed(self) -> Iterator[NodePlaced]:
        """Placements since it was asked last."""
        for record in self._new("placements"):
            event = _decoded(record)
            if isinstance(event, NodePlaced):
                yield event

    def _new(self, topic: str) -> Iterator[Record]:
        for part in self._stack.bus.partitions(topic):
            records = self._stack.bus.log(part).records()
            yield from records[self._seen[part] :]
            self._seen[part] = len(records)


def _decoded(record: Record) -> object:
    try:
        return decode_record(record).event
    except DecodeError:
        return None


def _counts(evidence: Evidence, stack: Stack) -> dict[str, int]:
    return {
        "decisions": len(evidence.accepted),
        "refused decisions": evidence.refused,
        "places taken": sum(isinstance(effect, Preempted) for record in evidence.accepted for effect in record.effects),
        "deaths": sum(1 for _, _, what in stack.told if what == "died"),
        "processes": sum(len(machine.procs) for machine in stack.machines.values()),
        "records": sum(len(stack.bus.records(topic)) for topic in evidence.topics),
    }

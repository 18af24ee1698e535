"""Full mode beside the loop, in virtual time: its answers are inputs of recorded decisions, and nothing depends on them."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import msgspec
import pytest

from schemas.codec import decode_record, encode_payload
from schemas.decisions import DecisionMade, PlanImproved, RecordKind
from schemas.jobs import JobRevoked
from schemas.messages import message
from schemas.records import Now, Record
from services.allocator.core.decide import replay
from services.allocator.core.reader import read
from services.allocator.core.snapshot import restore, take
from services.allocator.core.state import State
from services.allocator.shell import full_mode as full_mode_module
from services.allocator.shell.full_mode import Answer, FullMode, InlineSolver, SolverError, Task
from services.allocator.shell.intake_batch import batches
from services.allocator.shell.loop import Allocator
from services.runtime.bus.memory import MemoryBus
from services.runtime.virtual import VirtualClock, run_virtual
from tests import build
from tests.allocator_driver import SETTINGS

WEAK = msgspec.structs.replace(SETTINGS, policy=msgspec.structs.replace(SETTINGS.policy, iterations=0))
"""Decisions without any search: full mode finds better plans."""
SOLVER_S, EVERY_S = 0.05, 2.0
JOBS = 20


class Failing:
    """A solver that never answers."""

    async def solve(self, task: Task) -> Answer:
        raise SolverError("broken")

    async def stop(self) -> None:
        pass


class Hanging(Failing):
    """A solver that is still at it when somebody stops it."""

    stopped = False

    async def solve(self, task: Task) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    async def stop(self) -> None:
        self.stopped = True


class World:
    """One bus, its upstream, and allocators that come and go."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.bus = MemoryBus(build.topic_partitions(), clock=clock)
        self.outcomes: Counter[str] = Counter()
        self.stop = asyncio.Event()
        self.allocators: list[asyncio.Task] = []

    def start(self, solver, name: str = "a") -> Allocator:
        full = FullMode(solver, SOLVER_S, EVERY_S, lambda outcome, _: self.outcomes.update([outcome]))
        settings = msgspec.structs.replace(WEAK, writer=name)
        allocator = Allocator(
            self.bus, self.clock, build.catalog(), lambda _: settings, instance_id=name, full_mode=full
        )
        self.allocators.append(asyncio.ensure_future(allocator.run(self.stop)))
        return allocator

    async def send(self, *events) -> None:
        producer = self.bus.producer("upstream")
        await producer.start()
        for event in events:
            key = getattr(event, "job_id", "") or getattr(event, "node", "")
            identity = f"{key}/{type(event).__name__}"
            await producer.send(message(event, key=key, id=identity, source="/t", time_ms=0, partition=0))
        await producer.stop()

    async def submit(self, seed: int = 3) -> None:
        dice, events = Random(seed), [build.node("n00"), build.node("n01", order=1)]
        for number in range(JOBS):
            sizes = sorted({dice.choice([1, 2, 4, 8]), dice.choice([1, 2, 4])})
            hours = dice.randint(1, 9)
            events.append(build.accepted(f"j{number:02}", *sizes, priority=dice.randint(1, 9)))
            events.append(build.forecast(f"j{number:02}", {size: 3600.0 * hours / size for size in sizes}))
        await self.send(*events)

    async def until_outcome(self) -> None:
        for _ in range(400):
            if self.outcomes:
                return
            await self.clock.sleep_wall(0.25)
        raise AssertionError("no answer was counted")

    async def leave(self) -> list[DecisionMade]:
        self.stop.set()
        await asyncio.gather(*self.allocators)
        return [decode_record(record).event for record in self.bus.records("decisions")]


def run(scenario):
    return run_virtual(scenario, build.START_MS)


def with_answers(log: list[DecisionMade]) -> list[DecisionMade]:
    return [record for record in log if any(item.type == "plan.improved.v1" for item in record.inputs)]


def check_replays(log: list[DecisionMade]) -> None:
    """Every decision replays to the same bytes from a snapshot of the state before it."""
    state = State(cluster=build.CLUSTER)
    for at, record in enumerate(log):
        if record.kind is RecordKind.DECISION:
            chunks, manifest = take(state, "a", at)
            before = restore(manifest, {chunk.index: chunk for chunk in chunks})
            assert before is not None
            assert encode_payload(replay(before, record, WEAK)) == encode_payload(record)
        assert read(state, record, WEAK.policy.step_ms) is not None


async def improved_day(clock: VirtualClock) -> tuple[list[DecisionMade], Counter[str]]:
    world = World(clock)
    world.start(InlineSolver(clock, 0.5))
    await world.submit()
    await world.until_outcome()
    await clock.sleep_wall(600)  # the grid is planned again and again, with what was answered
    return await world.leave(), world.outcomes


def test_an_answer_is_recorded_followed_and_replayed_twice_the_same() -> None:
    log, outcomes = run(improved_day)
    assert outcomes["followed"] > 0
    assert len(with_answers(log)) == outcomes["followed"] + outcomes["outdone"]
    check_replays(log)
    again, _ = run(improved_day)
    assert [encode_payload(record) for record in again] == [encode_payload(record) for record in log]


def test_nobody_can_send_an_answer_from_outside() -> None:
    """An answer has no topic of its own: on any topic it is a dead letter, however well formed."""
    forged = PlanImproved(
        cluster="c0", pool=build.POOL, sequence=1, asked_ms=build.START_MS, until_ms=build.START_MS + 1, blocks=[], holds=[]
    )  # fmt: skip
    sent = message(forged, key="c0", id="forged", source="/t", time_ms=0, partition=0)
    record = Record("commands", 0, 0, sent.key, sent.value, sent.headers, 0)
    found, letters = batches([record], {"c0": {}}, Now(build.START_MS, build.START_MS))
    assert found["c0"][0].inputs == []
    assert found["c0"][0].covered == {("commands", 0): 1}
    assert len(letters) == 1


def test_an_answer_to_a_question_of_yesterday_is_dropped() -> None:
    async def scenario(clock: VirtualClock):
        world = World(clock)
        world.start(InlineSolver(clock, 5.0))
        await world.submit()
        await clock.sleep_wall(EVERY_S + 1.0)  # asked; the answer is on its way
        gone = [JobRevoked(job_id=f"j{number:02}", cluster="c0", revoked_ms=clock.now_ms()) for number in range(JOBS)]
        await world.send(*gone)
        await world.until_outcome()
        return await world.leave(), world.outcomes

    log, outcomes = run(scenario)
    assert outcomes == Counter(stale=1)
    assert not with_answers(log)


def test_a_broken_solver_costs_nothing_but_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_mode_module, "PAUSE_S", 1e9)

    async def scenario(clock: VirtualClock):
        world = World(clock)
        world.start(Failing())
        await world.submit()
        for number in range(30):
            await clock.sleep_wall(EVERY_S)
            await world.send(build.accepted(f"more{number}", 1))
        return await world.leave(), world.outcomes

    log, outcomes = run(scenario)
    assert outcomes == Counter(failed=full_mode_module.FAILURES_MAX), "then it is left alone"
    assert len({item.id for record in log for item in record.inputs}) >= 30 + 2 * JOBS
    check_replays(log)


def test_a_successor_knows_the_advice_and_ignores_what_its_predecessor_asked() -> None:
    async def scenario(clock: VirtualClock):
        world = World(clock)
        world.start(InlineSolver(clock, 0.5))
        await world.submit()
        await world.until_outcome()
        world.allocators.pop().cancel()  # in the middle of whatever it does, perhaps with a question open
        await clock.sleep_wall(1.0)
        successor = world.start(Hanging(), "b")
        await clock.sleep_wall(60.0)
        advice = successor.owned[build.CLUSTER].state.advice
        return await world.leave(), bool(advice), world.outcomes

    log, advised, outcomes = run(scenario)
    assert advised
    assert outcomes["failed"] == 0
    check_replays(log)


def test_the_solver_is_stopped_with_the_allocator_whatever_it_is_at() -> None:
    solver = Hanging()

    async def scenario(clock: VirtualClock):
        world = World(clock)
        world.start(solver)
        await world.submit()
        await clock.sleep_wall(EVERY_S + 1.0)
        begun_s = clock.wall_s()
        await world.leave()
        return clock.wall_s() - begun_s

    assert run(scenario) < 5.0
    assert solver.stopped

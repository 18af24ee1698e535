"""Random histories of a machine whose cards two pools share: no slot twice, no card in two pools, orders end, and the log replays."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import encode_payload
from schemas.decisions import DecisionMade
from schemas.executions import StopCause
from schemas.nodes import Health
from services.allocator.core.decide import replay
from services.allocator.core.reader import read
from services.allocator.core.state import State
from tests import build
from tests.allocator_driver import Driver
from tests.shared_cards import CARDS, HALF, HALVES, MACHINE, SETTINGS, half_job, machine, order, shaped

POOLS = (build.POOL, HALF)
ACTIONS = ("whole", "half", "start", "end", "order", "order", "cut", "cut", "fail", "lose", "return", "say", "time")
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7), st.integers(0, 3)), min_size=12, max_size=30)


@dataclass
class World:
    """The machine as it really is; `pools`: how its cards are cut."""

    driver: Driver = field(default_factory=lambda: Driver(SETTINGS))
    pools: list[str] = field(default_factory=lambda: [build.POOL] * CARDS)
    revision: int = 1
    incarnation: int = 0
    up: bool = True
    count: int = 0

    def __post_init__(self) -> None:
        self.driver.give(*machine()).give(shaped(self.pools, 1))
        for name, size in (("a", 1), ("b", 2), ("c", 1)):  # orders begin among jobs
            self.driver.give(build.accepted(name, size), build.forecast(name, {size: 36_000}))

    def step(self, action: str, which: int, much: int) -> None:
        driver = self.driver
        driver.pass_ms(much * 300_000)
        self.count += 1
        if action in ("whole", "half"):
            size, name = (1, 2, 4, 8)[much], f"j{self.count}"
            job = build.accepted(name, size) if action == "whole" else half_job(name, min(size, 4))
            driver.give(job, build.forecast(name, {size: 3600}))
        elif action == "order":
            cards = [which % 5] if much < 2 else [which % 5, which % 5 + 1]
            driver.give(order(f"p{self.count}", cards, POOLS[much % 2], driver.now_ms, 600.0 * much))
        elif action in ("cut", "fail"):
            self.cut(fails=action == "fail")
        elif action == "lose":
            self.up = False
            driver.give(*machine(Health.LOST, self.incarnation))
        elif action == "return" and not self.up:
            self.up, self.incarnation = True, self.incarnation + 1
            driver.give(*machine(incarnation=self.incarnation))
        elif action == "say":
            driver.give(shaped(self.pools, self.revision), shaped([build.POOL] * CARDS, 0))
        elif action == "time":
            driver.give()
        else:
            self.report(action, which)
        self.check()

    def cut(self, *, fails: bool) -> None:
        """What the executor does about the newest placement, if the machine is up and nothing runs on the cards."""
        wanted = self.driver.placement(MACHINE).reshape
        if wanted is None or not self.up:
            return
        assert not {card for _, _, card in self.held()} & set(wanted.cards), "asked to cut a card that is in use"
        self.revision += 1
        for card in () if fails else wanted.cards:
            self.pools[card] = wanted.pool
        if fails:
            self.pools[wanted.cards[0]] = ""
        self.driver.give(
            shaped(list(self.pools), self.revision, wanted.request_id, done=not fails, detail="no" * fails)
        )

    def report(self, action: str, which: int) -> None:
        driver = self.driver
        alive = [
            (job, part)
            for job in driver.state.jobs.values()
            for part in job.parts
            if part.status in ("placed", "running")
        ]
        if not alive or not self.up:
            return
        job, part = alive[which % len(alive)]
        if action == "start":
            driver.give(build.started(job.job_id, part.node, driver.now_ms, job.attempt))
        elif job.stop_cause:
            cause = StopCause(job.stop_cause)
            driver.give(build.stopped(job.job_id, part.node, driver.now_ms, cause, job.attempt))
        else:
            driver.give(build.completed(job.job_id, part.node, driver.now_ms, job.attempt))

    def held(self) -> list[tuple[str, str, int]]:
        """(job, node, card) of everything that is placed."""
        return [
            (job.job_id, part.node, gpu // (2 if part.node == HALVES else 1))
            for job in self.driver.state.jobs.values()
            for part in job.parts
            if part.status in ("placed", "running")
            for gpu in part.gpus
        ]

    def check(self) -> None:
        """The driver has checked that no slot is held twice."""
        node_of: dict[int, str] = {}
        for job, node, card in self.held():
            assert node_of.setdefault(card, node) == node, f"{job}: card {card} is held as a whole and in halves"
        absent = {name: set(node.absent) for name, node in self.driver.state.nodes.items()}
        for card, pool in enumerate(self.pools):
            assert (card in absent[MACHINE]) is (pool != build.POOL)
            assert ({2 * card, 2 * card + 1} <= absent[HALVES]) is (pool != HALF)
        for job in self.driver.state.jobs.values():
            cards = {card for name, _, card in self.held() if name == job.job_id}
            assert job.pool != HALF or len(cards) <= 1, f"{job.job_id} has slots on several cards"

    def settle(self) -> None:
        """The machine comes back, jobs end, and its executor does what it is asked for."""
        self.step("return", 0, 0)
        for _ in range(60):
            self.step("end", 0, 0)
            self.cut(fails=False)
            if not self.driver.state.repartitions and not self.held():
                return
            self.driver.pass_ms(600_000).give()


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_no_card_is_in_two_pools_and_every_order_ends(history: list[tuple[str, int, int]]) -> None:
    world = World()
    for action, which, much in history:
        world.step(action, which, much)
    world.settle()
    assert world.driver.state.repartitions == {}
    assert world.driver.state.reservations == {}


@settings(max_examples=8, deadline=None)
@given(STEPS)
def test_decisions_about_shared_cards_replay_to_the_same_bytes(history: list[tuple[str, int, int]]) -> None:
    world = World()
    for action, which, much in history:
        world.step(action, which, much)
    log = [msgspec.json.decode(encode_payload(record), type=DecisionMade) for record in world.driver.log]
    state = State(cluster=build.CLUSTER)
    for record in log:
        before = msgspec.json.decode(msgspec.json.encode(state), type=State)
        if record.kind.value == "decision":
            assert encode_payload(replay(before, record, SETTINGS)) == encode_payload(record)
        assert read(state, record, SETTINGS.policy.step_ms) is not None
    assert msgspec.json.encode(state) == msgspec.json.encode(world.driver.state)

"""Whole cards, MIG halves, MPS shares with a memory limit and a pool of another model in one history: what each job gets, and what not.

The oracle knows the catalog, how the cards are cut, and what jobs ask for; it counts memory per card by itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.catalog import Catalog, Cluster, Pool, SlotKind, Slots
from schemas.commands import RepartitionCards
from schemas.executions import CardsShaped, StopCause
from schemas.nodes import NodeStateChanged
from services.allocator.core.decide import Settings
from tests import build
from tests.allocator_driver import POLICY, Driver
from tests.mixed_pools import node_of

WHOLE, HALF, EIGHTH, OTHER = build.POOL, "h100-half", "h100-eighth", "a100"
MACHINE, CARD_MIB = "n00", 81_559


def pools_of(cards: int) -> dict[str, Pool]:
    """Of one machine and two nodes of another model."""
    half = Slots(of=WHOLE, kind=SlotKind.MIG, per_card=2, profile="3g.40gb")
    eighth = Slots(of=WHOLE, kind=SlotKind.MPS, per_card=8)
    model = "NVIDIA H100 80GB HBM3"
    return {
        WHOLE: Pool(gpus=cards, node_gpus=cards, gpu_model=model, memory_mib=CARD_MIB),
        HALF: Pool(gpus=2 * cards, node_gpus=2 * cards, gpu_model=model, memory_mib=40_448, slots=half),
        EIGHTH: Pool(gpus=8 * cards, node_gpus=8 * cards, gpu_model=model, memory_mib=10_000, slots=eighth),
        OTHER: Pool(gpus=6, node_gpus=4, gpu_model="NVIDIA A100", memory_mib=40_960),
    }


def driver_of(pools: dict[str, Pool]) -> Driver:
    """An allocator of this catalog."""
    catalog = Catalog(clusters={build.CLUSTER: Cluster(partition=0, pools=pools)}, default_cluster=build.CLUSTER)
    memory_mib = {name: pool.memory_mib for name, pool in catalog.clusters[build.CLUSTER].pools.items()}
    return Driver(Settings(policy=POLICY, memory_mib=memory_mib, code_version="test", writer="test"))


def nodes_of(pools: dict[str, Pool]) -> list[NodeStateChanged]:
    """The machine's node in each of its pools, as its agent tells of them."""
    found = []
    for name, pool in pools.items():
        if name == WHOLE or pool.slots is not None:
            node = MACHINE if name == WHOLE else f"{MACHINE}+{name}"
            told = build.node(node, gpus=pool.node_gpus, machine=MACHINE)
            found.append(replace(told, pool=name, slots_per_card=pool.slots_per_card))
    return found


def shaped(cards: list[str], revision: int, request_id: str | None = None) -> CardsShaped:
    return CardsShaped(
        node=MACHINE, cluster=build.CLUSTER, time_ms=build.START_MS, revision=revision, pools=cards, request_id=request_id
    )  # fmt: skip


def job(job_id: str, sizes: list[int], pools: tuple[str, ...], memory_mib: int, at_ms: int):
    speeds = {pool: 1.0 if not at else 0.5 for at, pool in enumerate(pools)} if len(pools) > 1 else {}
    told = build.accepted(job_id, *sizes, at_ms=at_ms, memory_mib=memory_mib)
    return replace(told, pools=list(pools), speeds=speeds, speeds_from="job" if speeds else "")


@pytest.mark.parametrize("pool", [HALF, "h100-mps-half"])
def test_sixteen_halves_with_a_memory_limit_are_two_per_card_and_the_same_at_once_as_one_by_one(pool: str) -> None:
    """By MIG and by MPS alike; a seventeenth waits, and one that asks for a MiB more than a slot has never gets one."""
    mps = Slots(of=WHOLE, kind=SlotKind.MPS, per_card=2)
    pools = {name: one for name, one in pools_of(8).items() if name in (WHOLE, HALF)}
    if pool != HALF:
        pools[pool] = replace(pools.pop(HALF), slots=mps)
    names = [f"j{number:02d}" for number in range(16)]

    def start() -> Driver:
        return driver_of(pools).give(*nodes_of(pools)).give(shaped([pool] * 8, 1))

    def halves(name: str, memory_mib: int = 40_448) -> list:
        return [job(name, [1], (pool,), memory_mib, build.START_MS), build.forecast(name, {1: 600})]

    def grid(driver: Driver) -> set[int]:
        return {slot for name in names for part in driver.job(name).parts for slot in part.gpus}

    at_once, one_by_one = start().give(*[event for name in names for event in halves(name)]), start()
    for name in names:
        one_by_one.give(*halves(name))
    assert grid(at_once) == grid(one_by_one) == set(range(16))
    assert Counter(slot // 2 for slot in grid(at_once)) == dict.fromkeys(range(8), 2)
    at_once.give(*halves("late"), *halves("fat", 40_449))
    assert (at_once.job("late").reason, at_once.job("fat").reason) == ("waiting_for_gpus", "memory_exceeds_gpu")


CARDS = 4
CUTS = (WHOLE, HALF, EIGHTH)
WISHES = (
    ((WHOLE,), [[1], [2], [4], [1, 2]], [0, 40_449, 81_559]),
    ((WHOLE, OTHER), [[1], [2], [2, 4]], [0, 40_449, 50_000]),
    ((OTHER, WHOLE), [[1], [4]], [0, 40_960, 40_961]),
    ((HALF,), [[1], [2], [4], [1, 2]], [0, 10_001, 40_448, 40_449]),
    ((EIGHTH,), [[1], [4], [8], [16], [2, 8]], [0, 10_000, 10_001]),
)
ACTIONS = ("submit",) * 6 + ("end",) * 4 + ("order", "order", "cut", "cut", "cut", "time")
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000), st.integers(0, 3)), min_size=15, max_size=40)


@dataclass
class World:
    """The machine as it really is, and what jobs asked for: pools, sizes, memory."""

    driver: Driver = field(default_factory=lambda: driver_of(pools_of(CARDS)))
    cards: list[str] = field(default_factory=lambda: [WHOLE, WHOLE, HALF, EIGHTH])
    asked: dict[str, tuple[tuple[str, ...], list[int], int]] = field(default_factory=dict)
    revision: int = 1
    count: int = 0

    def __post_init__(self) -> None:
        self.pools = pools_of(CARDS)
        others = [node_of(OTHER, "a0", gpus=4), node_of(OTHER, "a1", gpus=2, order=1)]
        self.driver.give(*nodes_of(self.pools), *others).give(shaped(list(self.cards), 1))

    def step(self, action: str, which: int, much: int) -> None:
        driver = self.driver
        self.count += 1
        driver.pass_ms(much * 200_000)
        if action == "submit":
            pools, sizes, memories = WISHES[which % len(WISHES)]
            self.submit(pools, sizes[which // 5 % len(sizes)], memories[which // 50 % len(memories)], much)
        elif action == "order":
            self.order([which % CARDS], CUTS[which // 4 % 3], 600.0 * much)
        elif action == "cut":
            self.cut()
        elif action == "end":
            self.end(which)
        else:
            driver.give()
        self.check()

    def submit(self, pools: tuple[str, ...], sizes: list[int], memory_mib: int, much: int) -> None:
        job_id = f"j{self.count:03d}"
        self.asked[job_id] = (pools, sizes, memory_mib)
        told = job(job_id, sizes, pools, memory_mib, self.driver.now_ms)
        self.driver.give(told, build.forecast(job_id, {size: 1800 * (1 + much) / size for size in sizes}))

    def order(self, cards: list[int], pool: str, deadline_s: float) -> None:
        self.driver.give(
            RepartitionCards(
                request_id=f"p{self.count}-{self.revision}",
                cluster=build.CLUSTER,
                node=MACHINE,
                cards=cards,
                pool=pool,
                ordered_ms=self.driver.now_ms,
                deadline_s=deadline_s,
            )
        )

    def cut(self) -> None:
        wanted = self.driver.placement(MACHINE).reshape
        if wanted is not None:
            self.revision += 1
            for card in wanted.cards:
                self.cards[card] = wanted.pool
            self.driver.give(shaped(list(self.cards), self.revision, wanted.request_id))

    def end(self, which: int) -> None:
        alive = [one for one in self.driver.state.jobs.values() if one.holds_gpus]
        if not alive:
            return
        one, now_ms = alive[which % len(alive)], self.driver.now_ms
        cause = one.stop_cause
        for node in [part.node for part in one.parts if part.status in ("placed", "running")]:
            said = build.completed(one.job_id, node, now_ms, one.attempt)
            if cause:
                said = build.stopped(one.job_id, node, now_ms, StopCause(cause), one.attempt)
            self.driver.give(said)

    def impossible(self, job_id: str) -> str:
        """Why no pool can ever have it; empty if one can."""
        pools, sizes, memory_mib = self.asked[job_id]
        if all(memory_mib > self.pools[pool].memory_mib for pool in pools):
            return "memory_exceeds_gpu"
        per_card = max(self.pools[pool].slots_per_card for pool in pools)
        return "size_exceeds_card" if 1 < per_card < min(sizes) else ""

    def confirm(self) -> None:
        """Executors say of every start that it happened: one that nobody confirms is given up."""
        while fresh := [
            build.started(one.job_id, part.node, self.driver.now_ms, one.attempt)
            for one in self.driver.state.jobs.values()
            for part in one.parts
            if part.status == "placed"
        ]:
            self.driver.give(*fresh)

    def check(self) -> None:
        self.confirm()
        memory_of: Counter[tuple[str, int]] = Counter()
        use_of: dict[tuple[str, int], set[str]] = {}
        for one in self.driver.state.jobs.values():
            pools, sizes, memory_mib = self.asked[one.job_id]
            if why := self.impossible(one.job_id):
                assert (one.parts, one.reason) == ([], why)
                continue
            held = [(part.node, gpu) for part in one.parts if part.status in ("placed", "running") for gpu in part.gpus]
            if not held:
                continue
            pool = self.pools[one.pool]
            assert one.pool in pools
            assert len(held) == one.gpus
            assert one.gpus in sizes
            assert memory_mib <= pool.memory_mib
            if one.pool == OTHER:
                assert {node for node, _ in held} <= {"a0", "a1"}
                continue
            cards = {gpu // pool.slots_per_card for _, gpu in held}
            assert {node.partition("+")[0] for node, _ in held} == {MACHINE}
            assert pool.slots is None or len(cards) == 1
            for card in cards:
                assert self.cards[card] == one.pool, (
                    f"{one.job_id} is on card {card}, which is cut for {self.cards[card]}"
                )
                use_of.setdefault((MACHINE, card), set()).add(one.pool)
            for _, gpu in held:
                memory_of[MACHINE, gpu // pool.slots_per_card] += pool.memory_mib
        assert all(len(of) == 1 for of in use_of.values())
        assert all(mib <= CARD_MIB for mib in memory_of.values())

    def settle(self) -> None:
        """Every card in turn is cut for every pool, and everything ends."""
        for pool in (*CUTS, WHOLE):
            self.count += 1
            self.order(list(range(CARDS)), pool, 0.0)
            self.confirm()
            for _ in range(400):
                self.driver.pass_ms(900_000).give()
                self.cut()
                self.check()
                if not any(one.holds_gpus for one in self.driver.state.jobs.values()) and self.cards == [pool] * CARDS:
                    break
                self.end(0)
                self.confirm()


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_every_job_gets_slots_that_it_asked_for_with_their_memory_or_the_reason_why_never(
    history: list[tuple[str, int, int]],
) -> None:
    world = World()
    for action, which, much in history:
        world.step(action, which, much)
    world.settle()
    left = set(world.driver.state.jobs)
    assert left == {name for name in world.asked if world.impossible(name)}, "whoever can run ran"
    assert world.driver.state.repartitions == {}
    assert set(world.driver.state.finished) == world.asked.keys() - left

"""Builders for tests of shared cards: a machine of eight cards that two pools share, what its executor says, what operators order."""

from __future__ import annotations

from msgspec.structs import replace

from schemas.commands import RepartitionCards
from schemas.executions import CardsShaped
from schemas.jobs import JobAccepted
from schemas.nodes import Health, NodeStateChanged
from services.allocator.core.decide import Settings
from tests import build
from tests.allocator_driver import POLICY, Driver

HALF = "h100-half"
MACHINE = "n00"
HALVES = f"{MACHINE}+{HALF}"
CARDS = 8
SETTINGS = Settings(policy=POLICY, memory_mib={build.POOL: 81_920, HALF: 40_960}, code_version="test", writer="test")


def machine(health: Health = Health.USABLE, incarnation: int = 0, cards: int = CARDS) -> list[NodeStateChanged]:
    """The machine's two nodes: whole cards, and halves."""
    whole = build.node(MACHINE, gpus=cards, health=health, machine=MACHINE, incarnation=incarnation)
    halves = build.node(HALVES, gpus=2 * cards, health=health, machine=MACHINE, incarnation=incarnation)
    return [whole, replace(halves, pool=HALF, slots_per_card=2)]


def shaped(
    pools: list[str], revision: int, request_id: str | None = None, *, done: bool = True, detail: str = ""
) -> CardsShaped:
    """What the executor says of its cards."""
    return CardsShaped(
        node=MACHINE,
        cluster=build.CLUSTER,
        time_ms=build.START_MS,
        revision=revision,
        pools=pools,
        request_id=request_id,
        done=done,
        detail=detail,
    )


def order(request_id: str, cards: list[int], pool: str, at_ms: int, deadline_s: float = 86_400.0) -> RepartitionCards:
    """An operator's order to cut cards anew."""
    return RepartitionCards(
        request_id=request_id,
        cluster=build.CLUSTER,
        node=MACHINE,
        cards=cards,
        pool=pool,
        ordered_ms=at_ms,
        deadline_s=deadline_s,
    )


def half_job(job_id: str, *sizes: int, pools: tuple[str, ...] = (HALF,), **changed) -> JobAccepted:
    """A job of halves."""
    return replace(build.accepted(job_id, *sizes, **changed), pools=list(pools))


def shared(halves: int = CARDS) -> Driver:
    """A cluster of the one machine, so many of its cards cut into halves, the last ones."""
    pools = [build.POOL] * (CARDS - halves) + [HALF] * halves
    return Driver(SETTINGS).give(*machine()).give(shaped(pools, 1))

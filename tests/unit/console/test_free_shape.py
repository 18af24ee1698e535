"""Shortage or fragmentation: the counts a person would make by hand."""

from __future__ import annotations

import pytest

from schemas.nodes import Health
from services.console.facts import World
from services.console.shape import Cause, NodeShape, PoolShape, pool_shape, shape_sentence
from tests import build


def shape(*free_per_node: tuple[int, ...], gpus: int = 8) -> PoolShape:
    return PoolShape("h100", tuple(NodeShape(f"n{i}", gpus, free, True) for i, free in enumerate(free_per_node)))


def test_the_missions_example_has_twenty_free_gpus_and_one_whole_node() -> None:
    """Free 2, 3, 8, 7 on four 8-GPU nodes: 20 cards, schedulability 1."""
    pool = shape((0, 1), (0, 1, 2), tuple(range(8)), tuple(range(7)))
    assert (pool.free, pool.schedulability) == (20, 1)
    assert pool.largest_block() == 8
    assert pool.cause([16]) is Cause.FRAGMENTATION
    assert pool.cause([8]) is Cause.NEITHER
    assert pool.cause([32]) is Cause.SHORTAGE
    assert pool.cause([64]) is Cause.IMPOSSIBLE


def test_a_block_over_nodes_needs_whole_neighbours() -> None:
    whole = tuple(range(8))
    assert shape(whole, whole, ()).fits(16)
    assert not shape(whole, (), whole).fits(16)
    assert not shape((4, 5, 6, 7), (0, 1, 2, 3)).fits(8)


def test_one_free_gpu_on_every_node_is_fragmentation() -> None:
    pool = shape((0,), (3,), (7,), (1,))
    assert pool.cause([4]) is Cause.FRAGMENTATION
    assert "fragmentation, not a shortage" in shape_sentence(pool, [4])


@pytest.mark.parametrize(
    ("sizes", "words"),
    [([2], "neither shortage nor"), ([4], "a shortage, not fragmentation"), ([128], "can never form a block of 128")],
)
def test_the_sentence_says_which(sizes: list[int], words: str) -> None:
    assert words in shape_sentence(shape((0, 1), ()), sizes)


def test_what_can_never_be_is_said_with_what_can_and_lost_nodes_and_cut_cards_could() -> None:
    """Nodes of six form no block of eight, whether they are there or not; a node of eight does, though cards of it are cut away."""
    six = PoolShape("h100", (NodeShape("n0", 6, (), False), NodeShape("n1", 6, (0, 1), True)))
    assert six.cause([8]) is Cause.IMPOSSIBLE
    assert "can never form a block of 8 GPUs, even when it is empty; its blocks have 1, 2, 4." in shape_sentence(
        six, [8]
    )
    assert PoolShape("h100", (NodeShape("n0", 8, (), False),)).cause([8]) is Cause.SHORTAGE
    assert PoolShape("h100", (NodeShape("n0", 6, (0, 1), True, absent=2),)).cause([8]) is Cause.SHORTAGE


def test_lost_draining_and_broken_gpus_are_not_free() -> None:
    world = World()
    for state in (
        build.node("n00", order=0, unhealthy=(7,)),
        build.node("n01", order=1, health=Health.LOST),
        build.node("n02", order=2, health=Health.SUSPECT),
    ):
        world.nodes[state.node] = state
    pool = pool_shape(world, "h100")
    assert (pool.free, pool.usable, pool.gpus) == (7, 8, 24)
    assert pool.nodes[0].largest_run == 7


def test_an_empty_pool_says_that_nothing_is_known() -> None:
    assert "has reported yet" in shape_sentence(pool_shape(World(), "h100"), [1])


def test_a_pool_of_slots_without_a_card_cut_for_it_says_how_to_get_one() -> None:
    shape = PoolShape("h100-half", (NodeShape("n00+h100-half", 0, (), True, 16),))
    assert "No card is cut for pool h100-half" in shape_sentence(shape, [1])

"""A drain may reach the allocator before the first word of its node: it counts from the node's first moment on, unless undone."""

from __future__ import annotations

from schemas.commands import DrainNode, UndrainNode
from services.allocator.core.state import EARLY_DRAINS_MAX
from tests import build
from tests.allocator_driver import Driver


def drain(node: str, at_ms: int = build.START_MS) -> DrainNode:
    return DrainNode(node=node, cluster=build.CLUSTER, ordered_ms=at_ms, deadline_s=600.0)


def with_a_job(driver: Driver) -> Driver:
    return driver.give(build.accepted("j", 1), build.forecast("j", {1: 600}))


def test_a_node_that_was_drained_before_it_was_known_takes_nothing() -> None:
    driver = with_a_job(Driver().give(drain("n00")).give(build.node("n00")))
    assert driver.state.nodes["n00"].draining
    assert driver.state.nodes["n00"].drain_deadline_ms == build.START_MS + 600_000
    assert (driver.job("j").parts, driver.job("j").reason) == ([], "node_degraded")
    assert driver.state.early_drains == {}
    driver.give(UndrainNode(node="n00", cluster=build.CLUSTER, ordered_ms=driver.now_ms))
    assert driver.job("j").parts


def test_an_undrain_takes_back_what_is_kept() -> None:
    undrain = UndrainNode(node="n00", cluster=build.CLUSTER, ordered_ms=build.START_MS)
    driver = with_a_job(Driver().give(drain("n00")).give(undrain).give(build.node("n00")))
    assert driver.job("j").parts


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    driver = Driver().give(*[drain(f"m{number}") for number in range(EARLY_DRAINS_MAX + 1)])
    assert len(driver.state.early_drains) == EARLY_DRAINS_MAX
    assert "m0" not in driver.state.early_drains

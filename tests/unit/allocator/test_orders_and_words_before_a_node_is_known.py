"""What is said of a node may reach the allocator before telemetry's first word of it: it counts from the node's first moment on."""

from __future__ import annotations

import msgspec
import pytest

from schemas.base import Event
from schemas.commands import DrainNode, ReleaseBlock, ReserveBlock, UndrainNode
from schemas.executions import NodeReported
from services.allocator.core.snapshot import restore, take
from services.allocator.core.state import EARLY_NODES_MAX
from tests import build
from tests.allocator_driver import Driver

HOUR_MS = 3_600_000


def drain(node: str, at_ms: int = build.START_MS) -> DrainNode:
    return DrainNode(node=node, cluster=build.CLUSTER, ordered_ms=at_ms, deadline_s=600.0)


def reserve(node: str, name: str = "r0", gpus: tuple[int, ...] = ()) -> ReserveBlock:
    return ReserveBlock(
        reservation_id=name,
        cluster=build.CLUSTER,
        node=node,
        from_ms=build.START_MS,
        until_ms=build.START_MS + HOUR_MS,
        ordered_ms=build.START_MS,
        gpus=list(gpus),
    )


def report(node: str, *quarantined: int) -> NodeReported:
    return build.reported(node, build.START_MS, applied=0, epoch=0, quarantined=quarantined)


def with_a_job(driver: Driver, gpus: int = 1) -> Driver:
    return driver.give(build.accepted("j", gpus), build.forecast("j", {gpus: 600}))


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


@pytest.mark.parametrize(("gpus", "reserved"), [(1, ()), (8, (3,))])
def test_a_reservation_of_a_node_that_was_not_known_keeps_its_gpus_free(gpus: int, reserved: tuple[int, ...]) -> None:
    driver = with_a_job(Driver().give(reserve("n00", gpus=reserved)).give(build.node("n00")), gpus)
    assert (driver.job("j").parts, driver.job("j").reason) == ([], "reserved")
    driver.give(ReleaseBlock(reservation_id="r0", cluster=build.CLUSTER, ordered_ms=driver.now_ms))
    assert driver.job("j").parts


def test_a_release_takes_back_a_reservation_that_is_kept_and_one_that_is_over_is_forgotten() -> None:
    release = ReleaseBlock(reservation_id="r0", cluster=build.CLUSTER, ordered_ms=build.START_MS)
    driver = Driver().give(reserve("n00")).give(release)
    assert driver.state.reservations == {}
    driver.give(reserve("n00", "r1")).pass_ms(HOUR_MS).give()
    assert driver.state.reservations == {}
    driver.give(reserve("n00", "r2"))
    assert driver.state.reservations == {}, "it came too late"


def test_gpus_that_were_in_quarantine_before_their_node_was_known_get_nothing() -> None:
    driver = with_a_job(Driver().give(report("n00", *range(8))).give(build.node("n00")))
    assert driver.state.nodes["n00"].boot_id == "b"
    assert (driver.job("j").parts, driver.job("j").reason) == ([], "node_degraded")
    assert driver.state.early_reports == {}
    driver.give(report("n00"))
    assert driver.job("j").parts


@pytest.mark.parametrize("make", [drain, reserve, report])
def test_what_is_kept_outlives_a_restart(make) -> None:
    driver = Driver().give(make("n00") if make is not report else report("n00", *range(8)))
    chunks, manifest = take(driver.state, "a", 7)
    restored = restore(manifest, dict(enumerate(chunks)))
    assert restored is not None
    assert msgspec.json.encode(restored) == msgspec.json.encode(driver.state)
    driver.state = restored
    assert with_a_job(driver.give(build.node("n00"))).job("j").parts == []


@pytest.mark.parametrize("kept", ["early_drains", "early_reports", "reservations"])
def test_what_is_kept_is_bounded_and_the_oldest_goes_first(kept: str) -> None:
    def make(node: str) -> Event:
        return {"early_drains": drain, "early_reports": report}.get(kept, lambda name: reserve(name, name))(node)

    driver = Driver().give(*[make(f"m{number}") for number in range(EARLY_NODES_MAX + 1)])
    found = getattr(driver.state, kept)
    assert len(found) == EARLY_NODES_MAX
    assert "m0" not in found

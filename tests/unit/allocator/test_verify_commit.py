"""The commit check finds every kind of planted fault; on what the planner makes it finds none (the driver asserts that everywhere)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from schemas.commands import DrainNode
from schemas.decisions import Effect, Placed, Scaled, Waits
from schemas.nodes import Health
from schemas.records import Now
from schemas.status import NodeGpus
from services.allocator.core.verify_commit import verify_commit
from tests import build
from tests.allocator_driver import SETTINGS, Driver


def cluster() -> Driver:
    """Three nodes of 4 GPUs; `held` runs on one, `chat` holds two GPUs, `big` and `small` wait for a forecast."""
    driver = Driver()
    driver.give(*[build.node(f"n{i:02}", order=i, gpus=4) for i in range(3)])
    driver.give(
        build.application("chat", floor=2, peak=3), build.accepted("held", 4), build.forecast("held", {4: 3600})
    )
    driver.give(build.accepted("small", 2, 3), build.accepted("big", 8))
    return driver


def placed(job_id: str, *nodes: NodeGpus, **changed) -> Placed:
    fields = {
        "attempt": 1,
        "pool": build.POOL,
        "gpus": sum(len(item.gpus) for item in nodes),
        "p50_s": 60.0,
        "p90_s": 90.0,
    }
    return Placed(job_id=job_id, placed=list(nodes), **(fields | changed))


def on(node: str, *gpus: int) -> NodeGpus:
    return NodeGpus(node=node, gpus=list(gpus))


def scaled(*nodes: NodeGpus, switched: int) -> Scaled:
    return Scaled(app_id="chat", pool=build.POOL, placed=list(nodes), switched=switched)


def free_node(driver: Driver) -> str:
    taken = {part.node for job in driver.state.jobs.values() for part in job.parts}
    taken |= {part.node for app in driver.state.apps.values() for part in app.parts}
    return next(name for name in sorted(driver.state.nodes) if name not in taken)


FAULTS: dict[str, tuple[Callable[[Driver], list[Effect]], str]] = {
    "unknown job": (lambda d: [placed("ghost", on(free_node(d), 0))], "placed but not queued"),
    "running job": (lambda d: [placed("held", on(free_node(d), 0))], "placed but not queued"),
    "taken by a job": (lambda d: [placed("small", NodeGpus(node=d.job("held").parts[0].node, gpus=[0, 1]))], "held by held"),
    "taken by an application": (
        lambda d: [placed("small", NodeGpus(node=d.state.apps["chat"].parts[0].node, gpus=d.state.apps["chat"].parts[0].gpus))],
        "held by",
    ),
    "twice in one decision": (
        lambda d: [placed("small", on(free_node(d), 0, 1)), placed("big", on("n00", 0, 1, 2, 3), on("n01", 0, 1, 2, 3))],
        "held by",
    ),
    "size not offered": (lambda d: [placed("small", on(free_node(d), 0, 1, 2, 3))], "not offered"),
    "no power of two": (lambda d: [placed("small", on(free_node(d), 0, 1, 2))], "no power of two"),
    "fewer GPUs than the size": (lambda d: [placed("small", on(free_node(d), 0), gpus=2)], "GPUs for size"),
    "hole in the block": (lambda d: [placed("small", on(free_node(d), 0, 2))], "not contiguous"),
    "part of nodes": (lambda d: [placed("big", on("n00", 0, 1, 2), on("n01", 0, 1, 2, 3), gpus=8)], "takes part of"),
    "nodes apart": (lambda d: [placed("big", on("n00", 0, 1, 2, 3), on("n02", 0, 1, 2, 3))], "not neighbours"),
    "foreign pool": (lambda d: [placed("small", on(free_node(d), 0, 1), pool="a100")], "not acceptable"),
    "wrong attempt": (lambda d: [placed("small", on(free_node(d), 0, 1), attempt=3)], "attempt 3 after 0"),
    "application above its peak": (lambda d: [scaled(on(free_node(d), 0, 1, 2, 3), switched=6)], "above its peak"),
    "too many switches": (lambda d: [scaled(on(free_node(d), 0, 1, 2), switched=5)], "switches in a step"),
    "switches miscounted": (lambda d: [scaled(switched=0)], "counts 0 switches"),
    "unknown application": (lambda d: [Scaled(app_id="ghost", pool="h100", placed=[], switched=0)], "unknown application"),
    "reason for nobody": (lambda d: [Waits(job_id="ghost", reason="fragmented")], "unknown job"),
}  # fmt: skip


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_each_planted_fault_is_found(fault: str) -> None:
    driver = cluster()
    make, expected = FAULTS[fault]
    found = verify_commit(driver.state, make(driver), SETTINGS.policy, Now(driver.now_ms, driver.wall_ms))
    assert any(expected in sentence for sentence in found), found


@pytest.mark.parametrize("how", ["suspect", "draining", "broken"])
def test_nothing_new_on_a_node_that_takes_nothing_new(how: str) -> None:
    driver = cluster()
    name = free_node(driver)
    order = int(name[1:])
    if how == "draining":
        driver.give(DrainNode(node=name, cluster="c0", ordered_ms=driver.now_ms))
    elif how == "suspect":
        driver.give(build.node(name, order=order, gpus=4, health=Health.SUSPECT))
    else:
        driver.give(build.node(name, order=order, gpus=4, unhealthy=(1,)))
    found = verify_commit(
        driver.state, [placed("small", on(name, 0, 1))], SETTINGS.policy, Now(driver.now_ms, driver.wall_ms)
    )
    assert any("takes nothing new" in sentence for sentence in found)
    job = driver.state.jobs["small"]
    assert job.parts == [] or job.parts[0].node != name


def test_a_faultless_placement_passes() -> None:
    driver = cluster()
    now = Now(driver.now_ms, driver.wall_ms)
    assert verify_commit(driver.state, [placed("small", on(free_node(driver), 2, 3))], SETTINGS.policy, now) == []

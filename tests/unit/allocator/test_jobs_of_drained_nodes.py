"""A drain by command: what runs goes on until the deadline, then saves its work, stops and waits for another place; nothing new starts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from schemas.commands import DrainNode, UndrainNode
from schemas.executions import JobCheckpointed, JobStopped, StopCause
from schemas.placements import Desired
from schemas.status import JobState
from services.allocator.core.due import due_domain_ms
from tests import build
from tests.allocator_driver import POLICY, Driver

DAY_S = 86_400.0


def running(*jobs: tuple[str, int], nodes: int = 2) -> Driver:
    """Jobs of so many GPUs, all running for a minute."""
    driver = Driver().give(*(build.node(f"n{i:02}", order=i) for i in range(nodes)))
    for job_id, gpus in jobs:
        submit(driver, job_id, gpus)
        job = driver.job(job_id)
        driver.give(*(build.started(job_id, part.node, driver.now_ms, job.attempt) for part in job.parts))
    return driver.pass_ms(60_000)


def submit(driver: Driver, job_id: str, gpus: int) -> None:
    driver.give(
        build.accepted(job_id, gpus, at_ms=driver.now_ms, time_limit_s=DAY_S), build.forecast(job_id, {gpus: 36_000})
    )


def drain(driver: Driver, node: str, deadline_s: float) -> None:
    driver.give(DrainNode(node=node, cluster=build.CLUSTER, ordered_ms=driver.now_ms, deadline_s=deadline_s))


@pytest.mark.parametrize("deadline_s", [0.0, 60.0, 7200.0])
@pytest.mark.parametrize("gpus", [1, 8, 16])
def test_what_runs_goes_on_to_the_deadline_and_then_from_what_it_saved(gpus: int, deadline_s: float) -> None:
    driver = running(("j", gpus))
    node = driver.job("j").parts[-1].node
    drain(driver, node, deadline_s)
    if deadline_s > 0:
        assert driver.job("j").stop_cause == ""
        ends_ms = driver.now_ms + int(deadline_s * 1000)
        while (due_ms := due_domain_ms(driver.state, POLICY)) < ends_ms:
            driver.pass_ms(due_ms - driver.now_ms).give()
            assert driver.job("j").stop_cause == "", "not before the deadline"
        assert due_ms == ends_ms, "and at it, without anybody's word"
        driver.pass_ms(due_ms - driver.now_ms).give()
    job = driver.job("j")
    assert job.stop_cause == StopCause.DRAIN.value
    for part in list(job.parts):
        asked = driver.placement(part.node).assignments[0]
        assert (asked.desired, asked.stop_cause) == (Desired.STOP, StopCause.DRAIN)
        saved: dict[str, Any] = {
            "job_id": "j",
            "attempt": 1,
            "node": part.node,
            "cluster": build.CLUSTER,
            "time_ms": driver.now_ms,
        }
        driver.give(
            JobCheckpointed(**saved, fraction=0.3, location="/saved"),
            JobStopped(**saved, cause=StopCause.DRAIN, checkpointed=True, fraction=0.3),
        )
    job = driver.job("j")
    assert (job.fraction, job.location, job.failures) == (0.3, "/saved", 0)
    assert all(part.node != node for part in job.parts)
    assert bool(job.parts) == (gpus < 16), "what fits on the other node goes on there"


@pytest.mark.parametrize("deadline_s", [0.0, 60.0, 7200.0])
def test_nothing_new_starts_on_it_and_it_is_used_again_after_an_undrain(deadline_s: float) -> None:
    driver = running(nodes=1)
    drain(driver, "n00", deadline_s)
    for later_ms in (0, 60_000, 86_400_000):
        submit(driver.pass_ms(later_ms), f"new{later_ms}", 1)
        assert driver.job(f"new{later_ms}").reason == "node_degraded"
    driver.give(UndrainNode(node="n00", cluster=build.CLUSTER, ordered_ms=driver.now_ms))
    assert all(job.parts for job in driver.state.jobs.values())


def test_a_later_order_moves_the_deadline_and_an_undrain_in_time_stops_nobody() -> None:
    driver = running(("j", 8), nodes=1)
    drain(driver, "n00", 600.0)
    driver.pass_ms(60_000)
    drain(driver, "n00", 6000.0)
    driver.pass_ms(1_000_000).give()
    assert driver.job("j").state is JobState.RUNNING
    driver.give(UndrainNode(node="n00", cluster=build.CLUSTER, ordered_ms=driver.now_ms))
    driver.pass_ms(10_000_000).give()
    assert (driver.job("j").state, driver.job("j").stop_cause) == (JobState.RUNNING, "")


def test_only_what_has_a_part_there_is_stopped() -> None:
    driver = running(("gang", 16), ("alone", 8), nodes=3)
    drain(driver, driver.job("gang").parts[0].node, 60.0)
    driver.pass_ms(60_000).give()
    assert driver.job("gang").stop_cause == StopCause.DRAIN.value
    assert driver.job("alone").stop_cause == ""
    drained = driver.state.nodes[driver.job("gang").parts[0].node]
    driver.give(replace(build.node(drained.node, order=drained.order), time_ms=driver.now_ms))
    assert not drained.takes_new, "its samples don't end the drain"

"""`gpugrid why` of a waiting job tells what racks, NVLink domains and its data make of it, and nothing where all places are alike."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from schemas.jobs import Dataset
from schemas.nodes import Topology
from services.allocator.core.state import State
from services.console.near_parts import near_parts
from tests import build
from tests.allocator_driver import Driver
from tests.unit.console.console_rig import Rig

HALVES = Topology(nvlink_domains=[[0, 1, 2, 3], [4, 5, 6, 7]])


def near(rig: Rig, job_id: str) -> dict[str, str]:
    found: dict[str, Any] = rig.json("why", job_id)
    lines = {part["code"]: part["sentence"] for part in found["near"]}
    assert all(sentence in found["lines"] for sentence in lines.values())
    return lines


def racks(*of: str) -> Rig:
    return Rig().give(*[build.node(f"n{at}", order=at, rack=rack) for at, rack in enumerate(of)])


def runs(rig: Rig, job_id: str, size: int, nodes: list[str]) -> None:
    rig.give(build.accepted(job_id, size, priority=90), build.forecast(job_id, {size: 40 * 3600}))
    rig.give(*[build.started(job_id, node, build.START_MS) for node in nodes])


def test_a_gang_that_waits_for_a_rack_is_told_how_many_blocks_there_are() -> None:
    rig = racks("x", "x", "y", "y")
    runs(rig, "all", 32, ["n0", "n1", "n2", "n3"])
    rig.give(build.accepted("gang", 16), build.forecast("gang", {16: 7200}))
    assert near(rig, "gang") == {
        "within_racks": "It waits for 16 GPUs within one rack: h100 has 2 such blocks, none is free now; one over more racks is taken"
        " only if it comes free earlier."
    }


def test_a_job_inside_a_node_is_told_of_its_nvlink_domain() -> None:
    rig = Rig().give(build.node("n0", topology=HALVES))
    runs(rig, "all", 8, ["n0"])
    rig.give(build.accepted("four", 4), build.forecast("four", {4: 7200}))
    assert near(rig, "four") == {
        "within_domains": "It waits for 4 GPUs within one NVLink domain: h100 has 2 such blocks, none is free now; one over more NVLink"
        " domains is taken only if it comes free earlier."
    }


def test_where_all_places_are_alike_nothing_is_said() -> None:
    rig = racks("x", "x")
    runs(rig, "all", 16, ["n0", "n1"])
    for job_id, size in (("gang", 16), ("one", 8)):
        rig.give(build.accepted(job_id, size), build.forecast(job_id, {size: 7200}))
        assert near(rig, job_id) == {}


def test_data_tells_who_keeps_it_and_what_bringing_it_takes() -> None:
    rig = racks("x", "x", "x")
    runs(rig, "all", 16, ["n0", "n1"])
    runs(rig, "rest", 8, ["n2"])
    rig.give(build.reported("n1", build.START_MS, applied=0, datasets=["c4"]))
    rig.give(
        build.accepted("far", 8, datasets=[Dataset(name="c4", size_mib=307_200)]), build.forecast("far", {8: 7200})
    )
    assert near(rig, "far") == {
        "data_kept": "n1 keeps all of its data: of places that start equally early it gets one there.",
        "data_elsewhere": "Elsewhere 300 GiB have to be brought first, about 5 min of its expected time.",
    }
    rig.give(build.accepted("new", 8, datasets=[Dataset(name="pile", size_mib=1024)]), build.forecast("new", {8: 7200}))
    assert near(rig, "new") == {
        "data_elsewhere": "No node of h100 keeps all of its data: 1 GiB have to be brought first, about 1 s of its expected time."
    }


@pytest.mark.parametrize("seed", range(10))
def test_spans_are_those_of_a_count_by_hand(seed: int) -> None:
    """Random racks and loads: what is said of a gang of two nodes agrees with a walk over all neighbouring pairs."""
    dice = Random(seed)
    of = sorted(dice.choice("xyz") for _ in range(6))
    driver = Driver().give(*[build.node(f"n{at}", order=at, rack=rack) for at, rack in enumerate(of)])
    for at in range(6):
        if dice.random() < 0.5:
            driver.give(build.accepted(f"j{at}", 8, priority=90), build.forecast(f"j{at}", {8: 90 * 3600}))
    driver.give(build.accepted("gang", 16, priority=1))
    state: State = driver.state
    busy = {part.node for job in state.jobs.values() if job.job_id != "gang" for part in job.parts}
    pairs = [(a, b) for a, b in pairwise(range(6))]
    free = [(a, b) for a, b in pairs if not busy & {f"n{a}", f"n{b}"}]
    spans = {pair: len({of[pair[0]], of[pair[1]]}) for pair in pairs}
    job = state.jobs["gang"]
    job.parts = []
    [*said] = [part.code for part in near_parts(state, job, build.POOL, driver.now_ms)]
    if len(set(spans.values())) < 2:
        assert said == []
    elif not free:
        assert said == ["within_racks"]
    elif all(spans[pair] == 2 for pair in free):
        assert said == ["spread_over_racks"]
    else:
        assert said == []

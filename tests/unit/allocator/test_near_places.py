"""Among equally early places the nearest is taken: fewest NVLink domains and racks, then nodes that keep the data. Never against value."""

from __future__ import annotations

import pytest

from schemas.commands import ChangeRules
from schemas.executions import NodeReported
from schemas.jobs import Dataset
from schemas.nodes import Topology
from schemas.rules import Rules
from services.allocator.core.heuristic import plan_fast
from services.allocator.core.layout import layout_of
from services.allocator.core.near import domain_numbers, lacking_of, links_of
from services.allocator.core.problem import Option, QueuedJob, RunningBlock, build_problem
from services.allocator.core.state import Node
from tests import build
from tests.allocator_driver import Driver

SMALL, LARGE = 2, 80
"""Nodes of 8: planned block by block, and node by node (beyond 512 GPUs)."""


def node(name: str, rack: str = "r0", order: int = 0, **changed) -> Node:
    from schemas.nodes import Health

    fields = {"pool": build.POOL, "size": 8, "health": Health.USABLE, "healthy": [True] * 8}
    return Node(node=name, order=order, rack=rack, **(fields | changed))


def keeps(name: str, *datasets: str) -> NodeReported:
    return build.reported(name, build.START_MS, applied=0, datasets=datasets)


def test_nvlink_domains_count_only_where_a_node_has_several_side_by_side() -> None:
    assert links_of([[0, 1, 2, 3], [4, 5, 6, 7]], 8) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert links_of([[0, 1, 2, 3, 4, 5, 6, 7]], 8) == []
    assert links_of([[0, 2], [1, 3]], 4) == []
    assert links_of([], 8) == []


def test_one_rack_of_plain_nodes_tells_nothing() -> None:
    assert domain_numbers([node("a"), node("b", order=1)]) == []


def test_a_rack_more_weighs_more_than_all_nodes_of_the_pool() -> None:
    numbers = domain_numbers([node("a", "x"), node("b", "x", 1), node("c", "y", 2)])
    assert numbers[8] - numbers[0] == 1
    assert numbers[16] - numbers[8] > numbers[8] - numbers[0] + 24


@pytest.mark.parametrize("nodes", [SMALL, LARGE])
def test_a_block_inside_one_nvlink_domain_comes_before_the_lowest_one(nodes: int) -> None:
    halves = [at * 2 + (gpu >= 4) for at in range(nodes) for gpu in range(8)]
    board = {
        "steps": 4,
        "node_sizes": [8] * nodes,
        "queued": [QueuedJob("q", 1000, (Option(4, 2),))],
        "running": [RunningBlock("r", 1000, 0, 2, 9)],
    }
    assert plan_fast(build_problem(**board), 0).first_gpu[0] == 2
    assert plan_fast(build_problem(**board, domains=halves), 0).first_gpu[0] == 4


@pytest.mark.parametrize("nodes", [SMALL * 2, LARGE])
def test_a_gang_stays_in_one_rack_if_it_starts_as_early(nodes: int) -> None:
    racks = [(at + 1) // 2 * 1000 + at for at in range(nodes) for _ in range(8)]
    board = {
        "steps": 4,
        "node_sizes": [8] * nodes,
        "queued": [QueuedJob("q", 1000, (Option(16, 2),))],
        "domains": racks,
    }
    assert plan_fast(build_problem(**board), 0).first_gpu[0] == 8
    busy = [RunningBlock("r", 1000, 8, 8 * (nodes - 2), 2)]
    apart = plan_fast(build_problem(**(board | {"running": busy, "domains": racks})), 0)
    assert apart.start[0] == 2, "two single nodes at the ends are no block"


@pytest.mark.parametrize("nodes", [SMALL, LARGE])
def test_a_node_with_the_data_comes_before_the_lowest_but_not_before_an_earlier_start(nodes: int) -> None:
    last = 8 * (nodes - 1)
    lacking = [[5] * last + [0] * 8]
    board = {"steps": 8, "node_sizes": [8] * nodes, "queued": [QueuedJob("q", 1000, (Option(8, 2),), data=0)]}
    assert plan_fast(build_problem(**board, lacking=lacking), 0).first_gpu[0] == last
    busy = [RunningBlock("r", 1000, last, 8, 3)]
    early = plan_fast(build_problem(**board, lacking=lacking, running=busy), 0)
    assert (int(early.start[0]), int(early.first_gpu[0])) == (0, 0)


def test_what_a_node_lacks_is_counted_by_size_and_by_name() -> None:
    nodes = [node("a", datasets=["c4"]), node("b", order=1)]
    assert lacking_of(nodes, [Dataset(name="c4", size_mib=4096)]) == [0] * 8 + [4] * 8
    assert lacking_of(nodes, [Dataset(name="small")]) == [1] * 16


def test_a_job_goes_where_its_data_is_and_is_expected_to_take_longer_where_it_isnt() -> None:
    driver = Driver().give(build.node("n0"), build.node("n1", order=1), keeps("n1", "c4"))
    data = [Dataset(name="c4", size_mib=3_600_000)]
    driver.give(build.accepted("near", 8, datasets=data), build.forecast("near", {8: 7200}))
    assert driver.job("near").parts[0].node == "n1"
    assert (driver.job("near").staging_s, driver.job("near").placed_p50_s) == (0.0, 7200)
    driver.give(build.accepted("far", 8, datasets=data), build.forecast("far", {8: 7200}))
    assert driver.job("far").parts[0].node == "n0"
    assert (driver.job("far").staging_s, driver.job("far").placed_p50_s) == (3600.0, 10_800)
    assert driver.status("far").detail == (
        "Its nodes don't keep all of its data: about 1 h 0 min of its expected time are for bringing it."
    )


@pytest.mark.parametrize(("mib_per_s", "staging_s"), [(100.0, 36_000.0), (250.0, 14_400.0), (4000.0, 900.0)])
def test_the_time_for_bringing_data_follows_the_rules(mib_per_s: float, staging_s: float) -> None:
    """In P50, in P90 and in what is said; a change counts from the next start on."""
    driver = Driver().give(*[build.node(f"n{at}", order=at) for at in range(4)], keeps("n0", "c4"), keeps("n1", "c4"))
    data = [Dataset(name="c4", size_mib=3_600_000)]
    driver.give(build.accepted("before", 8, datasets=data), build.forecast("before", {8: 7200}))
    rules = Rules(version=1, staging_mib_per_s=mib_per_s)
    driver.give(ChangeRules(cluster=build.CLUSTER, rules=rules, ordered_ms=driver.now_ms))
    driver.give(build.accepted("small", 8, datasets=data), build.forecast("small", {8: 7200}))
    driver.give(build.accepted("gang", 16, datasets=data), build.forecast("gang", {16: 7200}, stretch=2.0))
    assert {driver.job(name).staging_s for name in ("before", "small")} == {0.0}
    gang = driver.job("gang")
    assert (gang.staging_s, gang.placed_p50_s, gang.placed_p90_s) == (staging_s, 7200 + staging_s, 14_400 + staging_s)
    hours, minutes = divmod(round(staging_s) // 60, 60)
    said = f"{hours} h {minutes} min" if hours else f"{minutes} min"
    assert f"about {said} of its expected time are for bringing it" in driver.status("gang").detail
    driver.give(ChangeRules(cluster=build.CLUSTER, rules=Rules(version=2), ordered_ms=driver.now_ms))
    assert driver.job("gang").staging_s == staging_s, "what was placed keeps its estimate"


def test_nodes_of_a_rack_lie_together_whatever_their_order_says_and_gangs_start_on_them() -> None:
    racks = ["x", "y", "x", "y"]
    driver = Driver().give(*[build.node(f"n{at}", order=at, rack=rack) for at, rack in enumerate(racks)])
    assert [node.node for node in layout_of(driver.state, build.POOL).nodes] == ["n0", "n2", "n1", "n3"]
    driver.give(build.accepted("one", 8), build.forecast("one", {8: 7200}))
    driver.give(build.accepted("gang", 16), build.forecast("gang", {16: 7200}))
    assert {part.node for part in driver.job("gang").parts} == {"n1", "n3"}


def test_nodes_tell_their_nvlink_domains_now_and_then_and_they_are_remembered() -> None:
    halves = Topology(nvlink_domains=[[0, 1, 2, 3], [4, 5, 6, 7]])
    driver = Driver().give(build.node("n0", topology=halves))
    driver.give(build.node("n0"))
    assert driver.state.nodes["n0"].links == [0] * 4 + [1] * 4
    driver.give(build.accepted("first", 2), build.forecast("first", {2: 7200}))
    driver.give(build.accepted("second", 4), build.forecast("second", {4: 7200}))
    assert driver.job("second").parts[0].gpus == [4, 5, 6, 7]

"""When a gang may start: everybody prepared, everybody alike."""

from __future__ import annotations

import pytest

from schemas.executions import JobPrepared
from services.executor.core.gang import Go, Mismatch, Missing, is_gang, verdict
from tests.unit.executor.executor_rig import assignment

NODES = ["n00", "n01", "n02"]


def said(*nodes: str, models: dict[str, str] | None = None, drivers: dict[str, str] | None = None):
    return {
        node: JobPrepared(
            job_id="g",
            attempt=1,
            node=node,
            cluster="c0",
            time_ms=0,
            port=20_000 + int(node[1:]),
            gpu_model=(models or {}).get(node, "H100"),
            driver=(drivers or {}).get(node, "560"),
        )
        for node in nodes
    }


def test_all_start_on_the_first_nodes_port_once_all_have_spoken():
    assert verdict(NODES, "n01", said("n01")) == Missing(("n00", "n02"))
    assert verdict(NODES, "n01", said("n00", "n01")) == Missing(("n02",))
    assert {verdict(NODES, node, said(*NODES)) for node in NODES} == {Go(20_000)}


@pytest.mark.parametrize("odd", [{"models": {"n01": "A100"}}, {"drivers": {"n01": "550"}}])
def test_the_odd_one_fails_and_nobody_else_starts(odd):
    everybody = said(*NODES, **odd)
    found = {node: verdict(NODES, node, everybody) for node in NODES}
    assert isinstance(found["n01"], Mismatch)
    assert found["n00"] == found["n02"] == Missing(("n01",))


def test_what_a_node_does_not_know_differs_from_nothing():
    assert verdict(NODES, "n00", said(*NODES, models={"n01": ""}, drivers={"n00": ""})) == Go(20_000)


def test_an_applications_parts_and_single_nodes_are_no_gang():
    assert is_gang(assignment("g", 0, nodes=["n00", "n01"]))
    assert not is_gang(assignment("g", 0, nodes=["n00"]))
    assert not is_gang(assignment("g", 0, nodes=["n00", "n01"], application=True))

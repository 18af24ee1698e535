"""grid, nodes, drain, undrain on records that a real allocator wrote."""

from __future__ import annotations

from schemas.codec import decode_record
from schemas.commands import DrainNode, UndrainNode
from schemas.nodes import Finding, FindingCode, Health, HealthAction
from tests import build
from tests.unit.console.console_rig import Rig, contended


def test_nodes_shows_health_free_gpus_and_who_is_there() -> None:
    rig = Rig()
    rig.give(
        build.node("n00", order=0, findings=[Finding(code=FindingCode.IDLE_HELD, gpu=3, job_id="a")]),
        build.node("n01", order=1, health=Health.LOST),
    )
    rig.give(build.accepted("a", 4), build.forecast("a", {4: 600}))
    rows = {row["node"]: row for row in rig.json("nodes")}
    assert rows["n00"]["jobs"] == [{"job_id": "a", "gpus": [0, 1, 2, 3], "desired": "run"}]
    assert rows["n00"]["free"] == [4, 5, 6, 7]
    assert rows["n01"]["health"] == "lost"
    assert rows["n01"]["free"] == []
    table = rig.run("nodes")
    assert "a:0-3" in table
    assert "idle_held gpu 3 (a)" in table
    assert "schedulability) 0" in table
    assert rig.json("nodes", "--pool", "other") == []


def test_drain_goes_to_the_nodes_own_cluster_and_partition_and_shows() -> None:
    rig = contended()
    rig.run("drain", "n01", "--deadline", "30m", "--cause", "fan")
    (record,) = rig.records("commands")
    event = decode_record(record).event
    assert isinstance(event, DrainNode)
    assert (event.node, event.cluster, event.deadline_s, event.cause, record.partition) == (
        "n01",
        "c0",
        1800.0,
        "fan",
        0,
    )
    assert [row["draining"] for row in rig.json("nodes")] == [False, True]
    assert "usable, draining" in rig.run("nodes")
    rig.run("undrain", "n01")
    assert isinstance(decode_record(rig.records("commands")[1]).event, UndrainNode)
    assert [row["draining"] for row in rig.json("nodes")] == [False, False]


def test_an_undrain_tells_what_it_changes() -> None:
    rig = Rig()
    xid = Finding(code=FindingCode.XID, gpu=3, detail="xid 79: fallen off", action=HealthAction.DRAIN)
    idle = Finding(code=FindingCode.IDLE_HELD, gpu=2, job_id="a", action=HealthAction.COUNT)
    rig.give(build.node("n00", order=0, findings=[xid, idle]), build.node("n01", order=1))
    sent = rig.json("undrain", "n00")
    assert sent["clears"] == [{"node": "n00", "gpu": 3, "error": "xid 79"}]
    assert "Cleared with its next sample, unless still there: xid 79 on GPU 3." in rig.run("undrain", "n00")
    assert "nothing changes" in rig.run("undrain", "n01")
    rig.publish(build.node("n01", order=1, health=Health.LOST))
    rig.run("drain", "n01")
    assert "may be used again. It is lost" in rig.run("undrain", "n01")


def test_an_unknown_node_is_not_drained() -> None:
    rig = contended()
    for order in ("drain", "undrain"):
        rig.run(order, "n1", code=1)
        assert "No node is named n1. Did you mean" in rig.stderr
    assert rig.records("commands") == []


def test_grid_shows_the_planners_own_plan() -> None:
    rig = contended()
    grid = rig.json("grid")
    assert (grid["steps"], grid["step_s"], len(grid["gpus"])) == (48, 900, 16)
    runs = {run["job_id"]: run for row in grid["gpus"] for run in reversed(row["runs"])}
    assert runs["big"]["first"] == 0
    planned_ms = build.START_MS + 60_000 + runs["small"]["first"] * 900_000
    assert planned_ms == rig.json("why", "small")["planned_start_p50_ms"]
    text = rig.run("grid")
    assert "n00" in text
    assert "A big" in text
    assert "B small" in text


def test_grid_without_the_plan_comes_from_placements() -> None:
    rig = contended()
    grid = rig.json("grid", "--now")
    assert {run["job_id"] for row in grid["gpus"] for run in row["runs"]} == {"big"}
    assert [one["job_id"] for one in grid["planned_starts"]] == ["small"]
    assert "small starts" in rig.run("grid", "--now", "--steps", "8")


def test_lost_and_draining_nodes_look_different_from_free_ones() -> None:
    rig = Rig()
    rig.give(build.node("n00", order=0, unhealthy=(0,)), build.node("n01", order=1, health=Health.LOST))
    rig.run("drain", "n00")
    lines = rig.run("grid", "--now", "--steps", "4").splitlines()
    assert lines[1].endswith("xxxx")
    assert lines[2].endswith("####")
    assert lines[9].endswith("xxxx")


def test_an_empty_grid_says_why() -> None:
    rig = Rig()
    rig.run("grid", code=1)
    assert "No node has reported yet" in rig.stderr
    assert "No node has reported yet" in rig.run("nodes")


def test_more_jobs_than_letters_still_draw() -> None:
    rig = Rig()
    rig.give(*(build.node(f"n{i:02d}", order=i) for i in range(9)))
    names = [f"job-{i:02d}" for i in range(70)]
    rig.give(*(build.accepted(name, 1) for name in names), *(build.forecast(name, {1: 3600}) for name in names))
    assert "and 30 more" in rig.run("grid")

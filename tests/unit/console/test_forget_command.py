"""`gpugrid forget`: what it shows, whom it refuses, what it orders, and what the console knows of the node afterwards."""

from __future__ import annotations

from msgspec.structs import replace

from schemas.codec import decode_record
from schemas.commands import DrainNode, ForgetNode, ReserveBlock
from schemas.executions import JobStarted
from schemas.nodes import Health, NodeForgotten
from services.console.metering.account import Window, rows_of
from services.console.metering.ledger import Ledger
from services.console.page.board import Board
from services.console.page.rows import take_changes
from tests import build
from tests.unit.console.console_rig import Rig


def lost_with_a_job() -> Rig:
    """n00 is silent and holds job a; n01 reports."""
    rig = Rig()
    rig.give(build.node("n00", order=0), build.node("n01", order=1))
    rig.give(
        ReserveBlock(
            reservation_id="r7",
            cluster="c0",
            node="n00",
            from_ms=build.START_MS + 3_600_000,
            until_ms=build.START_MS + 90_000_000,
            ordered_ms=build.START_MS,
        )
    )
    rig.give(build.accepted("a", 8), build.forecast("a", {8: 600}))
    (placed,) = rig.json("jobs", "--all")
    assert placed["job_id"] == "a"
    rig.give(build.node("n00", order=0, health=Health.SUSPECT))
    return rig


def said(node: str, time_ms: int) -> NodeForgotten:
    return NodeForgotten(node=node, cluster="c0", pool="h100", time_ms=time_ms, ordered_ms=time_ms - 1)


def test_it_shows_what_ends_asks_and_orders_one_life_of_one_node() -> None:
    rig = lost_with_a_job()
    held = next(row["node"] for row in rig.json("nodes") if row["jobs"])
    rig.give(build.node(held, order=0 if held == "n00" else 1, health=Health.SUSPECT))
    before = len(rig.records("commands"))
    text = rig.run("forget", held, "--yes", "--cause", "sold")
    assert f"{held} (suspect): 8 GPUs leave the grid for good." in text
    assert "a: queued again at once" in text
    (record,) = rig.records("commands")[before:]
    event = decode_record(record).event
    assert isinstance(event, ForgetNode)
    assert (event.node, event.cluster, event.incarnation, event.force, event.cause) == (held, "c0", 0, False, "sold")
    assert record.key == held.encode()


def test_without_a_yes_nothing_is_ordered() -> None:
    rig = lost_with_a_job()
    before = len(rig.records("commands"))
    rig.run("forget", "n00", code=1)
    assert len(rig.records("commands")) == before


def test_json_names_everything_that_ends() -> None:
    rig = lost_with_a_job()
    sent = rig.json("forget", "n00")
    assert sent["node"] == "n00"
    assert sent["reservations"] == ["r7"]
    assert [(one["node"], one["health"], one["incarnation"]) for one in sent["orders"]] == [("n00", "suspect", 0)]
    assert set(sent) == {"node", "orders", "jobs", "applications", "planned_starts", "reservations", "cuts"}


def test_a_node_that_reports_needs_force_and_nobody_is_no_node() -> None:
    rig = lost_with_a_job()
    rig.run("forget", "n01", "--yes", code=1)
    assert "Still reporting: n01 (usable). Stop the agent first, or use --force" in rig.stderr
    rig.run("forget", "n0", "--yes", code=1)
    assert "No node is named n0. Did you mean" in rig.stderr
    assert rig.json("forget", "n01", "--force")["orders"][0]["node"] == "n01"
    event = decode_record(rig.records("commands")[-1]).event
    assert isinstance(event, ForgetNode)
    assert event.force


def test_a_machine_means_all_its_nodes() -> None:
    rig = Rig()
    lost = {"health": Health.LOST, "machine": "m0"}
    rig.publish(build.node("m0", order=0, **lost), build.node("m0-half", order=1, **lost), build.node("n01", order=2))
    sent = rig.json("forget", "m0")
    assert [one["node"] for one in sent["orders"]] == ["m0", "m0-half"]


def test_after_telemetrys_word_nothing_lists_it_and_its_drain_is_over() -> None:
    rig = lost_with_a_job()
    now_ms = build.START_MS + 600_000
    rig.publish(DrainNode(node="n00", cluster="c0", ordered_ms=now_ms))
    rig.publish(ForgetNode(node="n00", cluster="c0", ordered_ms=now_ms + 1))
    rig.publish(said("n00", now_ms + 2))
    assert [row["node"] for row in rig.json("nodes")] == ["n01"]
    rig.run("drain", "n00", code=1)
    assert "No node is named n00" in rig.stderr
    rig.publish(replace(build.node("n00", order=0, incarnation=1), time_ms=now_ms + 60_000))
    assert [(row["node"], row["draining"]) for row in rig.json("nodes")] == [("n00", False), ("n01", False)]


def test_the_page_drops_its_rows() -> None:
    rig = lost_with_a_job()
    board = Board()
    for topic in ("node-states", "placements"):
        for record in rig.records(topic):
            board.fold(record)
    assert "n00" in take_changes(board)["set"]["nodes"]
    rig.publish(said("n00", build.START_MS + 600_000))
    board.fold(rig.records("node-states")[-1])
    assert take_changes(board) == {"gone": {"nodes": ["n00"]}}


def test_metering_closes_what_nobody_will_report_any_more() -> None:
    hour_ms = 3_600_000
    ledger = Ledger()
    ledger.fold(build.accepted("a", 4))
    start_ms = build.START_MS
    started = JobStarted(
        job_id="a",
        attempt=1,
        node="n00",
        cluster="c0",
        time_ms=start_ms,
        wall_ms=start_ms,
        sequence=1,
        gpus=[0, 1, 2, 3],
    )
    ledger.fold(started)
    window = Window(start_ms, start_ms + 5 * hour_ms)
    assert rows_of(ledger, window)[0].held_gpu_ms == 4 * 5 * hour_ms
    ledger.fold(said("n00", start_ms + 2 * hour_ms))
    (row,) = rows_of(ledger, window)
    assert (row.held_gpu_ms, row.interruptions, row.state) == (4 * 2 * hour_ms, 1, "waiting")
    ledger.fold(replace(started, attempt=2, time_ms=start_ms + 3 * hour_ms))
    assert rows_of(ledger, window)[0].held_gpu_ms == 4 * (2 + 2) * hour_ms, "its next life is another one"

"""A machine whose cards are shared: its nodes, what their cards offer, what is being cut and why a cut failed; and the order to cut."""

from __future__ import annotations

import json

from schemas.codec import decode_record
from schemas.commands import DrainNode, RepartitionCards
from services.console.page.board import TOPICS, Board
from services.console.page.rows import node_row
from services.console.read import in_time
from tests import build
from tests.shared_cards import HALF, HALVES, MACHINE, half_job, machine, shaped
from tests.unit.console.console_rig import Rig

WHOLE = build.POOL


def cut(halves: int = 2) -> Rig:
    rig = Rig()
    rig.give(*machine(), shaped([WHOLE] * (8 - halves) + [HALF] * halves, 1))
    rig.give(half_job("h", 1), build.forecast("h", {1: 600}))
    return rig


def test_nodes_tells_what_of_a_machine_is_there_and_free() -> None:
    rig = cut()
    rows = {row["node"]: row for row in rig.json("nodes")}
    assert (rows[MACHINE]["free"], rows[MACHINE]["absent"]) == ([0, 1, 2, 3, 4, 5], [6, 7])
    assert (rows[HALVES]["machine"], rows[HALVES]["slots_per_card"]) == (MACHINE, 2)
    assert rows[HALVES]["free"] == [13, 14, 15]
    table = rig.run("nodes")
    assert "6 of 8" in table
    assert "4 of 16" in table
    assert [row["gpu"] for row in rig.json("grid", "--now")["gpus"] if row["node"] == HALVES] == [12, 13, 14, 15]


def test_the_page_marks_slots_whose_card_is_cut_for_another_pool() -> None:
    rig, board = cut(), Board()
    for record in in_time([record for topic in TOPICS for record in rig.records(topic)]):
        board.fold(record)
    flags = {node: [gpu[3] for gpu in node_row(board, node)["gpus"]] for node in (MACHINE, HALVES)}
    assert flags == {MACHINE: [0] * 6 + [4] * 2, HALVES: [4] * 12 + [0] * 4}


def test_a_partition_is_ordered_where_the_machine_is_and_shows_until_it_is_over() -> None:
    rig = cut()
    rig.run("partition", MACHINE, "--cards", "7,0-1", "--pool", WHOLE, "--deadline", "30m", "--cause", "big jobs")
    (record,) = rig.records("commands")
    order = decode_record(record).event
    assert isinstance(order, RepartitionCards)
    assert (order.node, order.cards, order.pool, order.deadline_s, record.partition) == (
        MACHINE,
        [0, 1, 7],
        WHOLE,
        1800,
        0,
    )
    rig.give(order)
    rows = {row["node"]: row for row in rig.json("nodes")}
    assert (rows[MACHINE]["withheld"], rows[HALVES]["withheld"]) == ([7], [14, 15])
    assert "cards 7 are being emptied or cut" in rig.run("nodes")
    rig.give(shaped([WHOLE] * 6 + [HALF] * 2, 2, order.request_id, done=False, detail="card 7: In use"))
    rows = {row["node"]: row for row in rig.json("nodes")}
    assert (rows[MACHINE]["withheld"], rows[MACHINE]["cards_detail"]) == ([], "card 7: In use")
    assert "last cut: card 7: In use" in rig.run("nodes")


def test_diagnosis_counts_the_slots_that_are_there_and_a_drained_machine_as_a_whole() -> None:
    rig = cut()
    rig.give(DrainNode(node=MACHINE, cluster="c0", ordered_ms=build.START_MS))
    rig.give(half_job("later", 4), build.forecast("later", {4: 600}))
    told = next(one for one in rig.json("diagnose") if one["pool"] == HALF)
    assert "4 of 4 GPUs" in json.dumps(told)


def test_an_order_that_makes_no_sense_is_not_sent() -> None:
    rig = cut()
    rig.give(build.node("n01", order=1))
    for words, arguments in (
        ("The cards of n01 are not shared", ("n01", "--pool", HALF)),
        ("No node is named n77", ("n77", "--pool", HALF)),
        ("it is set up for h100, h100-half", (MACHINE, "--pool", "a100")),
        ("has cards 0 to 7", (MACHINE, "--pool", HALF, "--cards", "8")),
    ):
        rig.run("partition", *arguments, code=1)
        assert words in rig.stderr
    for cards in ("six", "5-3", "-1", "0-4000"):
        rig.run("partition", MACHINE, "--pool", HALF, "--cards", cards, code=2)
        assert "indices" in rig.stderr
    assert rig.records("commands") == []


def test_a_drain_of_the_machine_shows_on_all_its_nodes() -> None:
    rig = cut()
    rig.give(DrainNode(node=MACHINE, cluster="c0", ordered_ms=build.START_MS))
    rig.run("drain", MACHINE)
    assert {row["node"]: row["draining"] for row in rig.json("nodes")} == {MACHINE: True, HALVES: True}


def test_why_says_that_a_jobs_slots_lie_on_one_card() -> None:
    rig = cut()
    rig.give(half_job("wide", 4), build.forecast("wide", {4: 600}))
    assert "lie on one card" in rig.run("why", "wide")

"""`gpugrid migrations` on a real decided log: a split pool, what a move would free and cost, and that nothing is moved."""

from __future__ import annotations

from schemas.jobs import CheckpointMode, CheckpointPolicy
from tests import build
from tests.unit.console.console_rig import Rig

SAVES = CheckpointPolicy(mode=CheckpointMode.SIGNAL, cost_s=30.0)


def split() -> Rig:
    """Two nodes of 8, each half held; `wide` needs a whole one. Only `saves` can save its work."""
    rig = Rig().give(build.node("n00", order=0), build.node("n01", order=1))
    rig.give(build.accepted("filler", 4), build.forecast("filler", {4: 7200}))
    rig.give(build.accepted("stays", 4), build.forecast("stays", {4: 36_000}))
    rig.give(build.accepted("saves", 4, checkpoint=SAVES), build.forecast("saves", {4: 36_000}))
    rig.give(*[build.started(job, node, build.START_MS) for job, node in (("filler", "n00"), ("stays", "n00"))])
    rig.give(build.started("saves", "n01", build.START_MS))
    rig.give(build.completed("filler", "n00", build.START_MS))
    rig.give(build.accepted("wide", 8), build.forecast("wide", {8: 7200}))
    return rig


def test_a_move_is_shown_with_what_it_frees_whom_it_helps_and_what_it_costs() -> None:
    rig = split()
    [found] = rig.json("migrations", "--json")["migrations"]
    [move] = found["moves"]
    assert (move["job_id"], move["from"][0]["node"], move["to"][0]["node"]) == ("saves", "n01", "n00")
    assert found["frees"] == [{"gpus": 8, "blocks": 1}]
    assert found["helps"] == ["wide"]
    assert found["cost_gpu_s"] >= 4 * (30 + 120)
    assert "saves (4)" in rig.run("migrations")
    assert rig.records("commands") == []


def test_no_move_is_said_in_a_sentence() -> None:
    rig = Rig().give(build.node("n00", order=0))
    assert "No move" in rig.run("migrations")
    assert rig.json("migrations", "--json")["migrations"] == []

"""`gpugrid why` says that a big job's start is promised, what moved it, and how long a job's data takes to bring."""

from __future__ import annotations

from schemas.commands import ChangeRules
from schemas.jobs import Dataset
from schemas.rules import PlannedStarts, Rules
from tests import build
from tests.unit.console.console_rig import Rig


def test_why_tells_a_promised_start_and_what_moved_it() -> None:
    rules = ChangeRules(
        cluster=build.CLUSTER,
        rules=Rules(version=1, planned_starts=PlannedStarts(nodes_min=1)),
        ordered_ms=build.START_MS,
    )
    rig = Rig().give(build.node("n00", order=0), rules)
    rig.give(build.accepted("first", 4), build.forecast("first", {4: 7200}))
    rig.give(build.accepted("big", 8), build.forecast("big", {8: 7200}))
    assert "can only move earlier" in " ".join(rig.run("why", "big").split())
    rig.give(build.accepted("urgent", 8, priority=90), build.forecast("urgent", {8: 7200}))
    told = " ".join(rig.run("why", "big").split())
    assert "later: jobs of higher priority would have had to wait for it (urgent)" in told


def test_why_tells_how_long_data_takes_to_bring() -> None:
    rig = Rig().give(build.node("n00", order=0))
    data = [Dataset(name="c4", size_mib=600_000)]
    rig.give(build.accepted("far", 8, datasets=data), build.forecast("far", {8: 7200}))
    assert "about 10 min of its expected time are for bringing it" in " ".join(rig.run("why", "far").split())

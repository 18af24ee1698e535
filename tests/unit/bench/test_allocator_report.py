"""The planner's benchmark: spreads, verdicts, and a page that says what was measured and what was not."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.allocator.draws import spread, spreads
from bench.allocator.goals import GOALS, verdicts
from bench.allocator.plots import bars, strips
from bench.allocator.report import write_report
from bench.allocator.speed import steps_rows

DRAW = {
    "held_out": True, "long_s": 0.0, "fast_of_best": 0.99, "fast_of_bound": 0.98, "full_of_best": 1.0, "full_of_bound": 0.99,
}  # fmt: skip
RESULTS = {
    "machine": {"cpus": 2, "system": "test"},
    "versions": {"python": "3"},
    "measured": {"draws": {"load": 1.0}},
    "incremental": [{"event": "one job added", "repair_cpu_ms": 2.0, "repair_ms": 2.5}],
    "draws": [DRAW | {"family": "scale_64", "seed": 1000}, DRAW | {"family": "scale_64", "seed": 1001, "fast_of_best": 0.95}],
    "published": [
        {"name": "training_heavy", "value_of_best_known": 1.0, "gain_over_fifo": 1.5, "utilization": 0.94,
         "utilization_fifo": 0.54, "useful_utilization": 0.93, "completed": 6, "completed_fifo": 7}
    ],
}  # fmt: skip


def test_spread_names_the_tails() -> None:
    found = spread([0.9, 0.95, 1.0, 1.0, 1.0])
    assert (found["min"], found["median"], found["mean"]) == (0.9, 1.0, pytest.approx(0.97))
    assert found["min"] <= found["p5"] <= found["median"] <= found["p95"]
    assert spread([0.5]) == {"min": 0.5, "p5": 0.5, "median": 0.5, "p95": 0.5, "mean": 0.5}


def test_held_out_draws_are_kept_apart() -> None:
    rows = [DRAW | {"family": "scale_64", "fast_of_best": 0.5, "held_out": False}, *RESULTS["draws"]]
    assert [row["draws"] for row in spreads(rows, "fast_of_best", True)] == [2, 2]
    assert spreads(rows, "fast_of_best", False)[0]["min"] == 0.5


def test_verdicts_say_met_missed_and_not_measured() -> None:
    found = {verdict.measure: verdict for verdict in verdicts(RESULTS)}
    assert len(found) == len(GOALS)
    assert found["utilization, training-heavy"].met is True
    assert found["jobs completed (FIFO), given files"].met is False
    assert found["fast mode ÷ best known, at the times below"].met is False, "one draw at 0.95"
    assert found["96 steps instead of 24"].met is None
    assert found["… one added job"].met is True


def test_steps_are_paired_by_board() -> None:
    rows = [
        {"board": "64 GPUs, 30 queued, 24 steps", "first_grid_cpu_ms": 1.0, "decision_cpu_ms": 2.0},
        {"board": "64 GPUs, 30 queued, 96 steps", "first_grid_cpu_ms": 2.0, "decision_cpu_ms": 3.0},
        {"board": "training_heavy, 8 GPUs", "first_grid_cpu_ms": 1.0, "decision_cpu_ms": 1.0},
    ]
    assert steps_rows(rows) == [{"board": "64 GPUs, 30 queued", "first_grid_ratio": 2.0, "decision_ratio": 1.5}]


def test_the_page_has_every_goal_and_its_pictures_are_well_formed(tmp_path: Path) -> None:
    page, *pictures = write_report(RESULTS, tmp_path / "allocator.md")
    text = page.read_text(encoding="utf-8")
    assert all(goal[0] in text for goal in GOALS)
    assert "not measured" in text
    assert len(pictures) == 3
    for picture in pictures:
        assert picture.name in text
        ElementTree.fromstring(picture.read_text(encoding="utf-8"))


@pytest.mark.parametrize("values", [[1.0], [0.2, 1.4], [0.99999, 1.0]])
def test_pictures_hold_for_narrow_and_wide_ranges(values: list[float]) -> None:
    ElementTree.fromstring(strips("t", "a", {"x": values, "y": values}, 0.96))
    ElementTree.fromstring(bars("t", "a", {"x": {"one": values[0], "two": values[-1]}}))

"""`gpugrid plan`: plan.v1 on --json, a drawing for people, a picture, one sentence for what can't be read."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.console.app import build_app

FILE = Path(__file__).parents[2] / "data" / "scenarios" / "training_heavy.json"


def run(*arguments: object) -> Result:
    from services.console.session import Session

    return CliRunner().invoke(build_app(), ["plan", *map(str, arguments)], obj=Session())


@pytest.mark.parametrize(("mode", "value"), [("fifo", 149.0), ("backfill", 224.3478), ("fast", None)])
def test_json_is_a_plan_document(mode: str, value: float | None) -> None:
    result = run(FILE, "--mode", mode, "--json", "--repeat", 3)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["format"] == "plan.v1"
    assert document["mode"] == mode
    assert document["decision_us"] > 0
    assert len(document["realtime"][0]["gpus"]) == 24
    assert document["score"]["value"] == pytest.approx(value, abs=1e-3) if value else document["score"]["value"] > 366
    assert {row["id"] for row in document["batch"]} | {row["id"] for row in document["waiting"]} == {
        f"j{i:02d}" for i in range(10)
    }


def test_people_get_the_grid_the_numbers_and_the_reasons() -> None:
    result = run(FILE)
    assert result.exit_code == 0
    for words in ("▒", "GPU-steps in use", "WAITS BECAUSE", "j00"):
        assert words in result.stdout


def test_same_seed_same_plan_and_a_longer_search_is_no_worse() -> None:
    plans = [json.loads(run(FILE, "--json", "--repeat", 1, "--seed", 7).stdout) for _ in range(2)]
    assert plans[0]["batch"] == plans[1]["batch"]
    longer = json.loads(run(FILE, "--json", "--seconds", 0.2, "--seed", 7).stdout)
    assert longer["score"]["value"] >= plans[0]["score"]["value"]


def test_picture_shows_fifo_above_ours(tmp_path: Path) -> None:
    picture = tmp_path / "day.svg"
    assert run(FILE, "--svg", picture).exit_code == 0
    titles = [node.text or "" for node in ET.parse(picture).getroot().iter() if node.get("font-weight") == "600"]
    assert [title.split(":")[0] for title in titles] == ["FIFO", "fast"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ('{"format": "scenario.v1", "horizon_steps": 0, "gpus": 1}', "$.horizon_steps: must be in 1..96"),
    ],
)
def test_malformed_files_name_field_and_reason(tmp_path: Path, text: str, words: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    result = run(bad)
    assert result.exit_code == 2
    assert words in result.stderr


def test_unreadable_files_get_one_sentence(tmp_path: Path) -> None:
    result = run(tmp_path / "missing.json")
    assert result.exit_code == 2
    assert "Can't read" in result.stderr
    assert run(FILE, "--svg", tmp_path / "no" / "folder.svg").exit_code == 1


def test_full_mode_reports_its_bound_and_gap() -> None:
    result = run(FILE, "--mode", "full", "--seconds", 1, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["mode"] == "full"
    assert document["bound"] >= document["score"]["value"] - 1e-6
    assert document["gap"] == pytest.approx(1 - document["score"]["value"] / document["bound"], abs=1e-6)
    assert "no legal plan is worth more" in run(FILE, "--mode", "full", "--seconds", 1).stdout

"""`gpugrid backtest`: tables for people, one document on --json, a picture, rows, and one sentence for what can't be run."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.console.app import build_app
from services.console.session import Session

SMALL = ("--trace", "lingjun", "--start", 1, "--gpus", 16, "--load", 0.5, "--workers", 1)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), ["backtest", *map(str, arguments)], obj=Session())


def test_json_picture_and_rows_say_the_same(tmp_path: Path) -> None:
    picture, rows = tmp_path / "days.svg", tmp_path / "days.csv"
    result = run(
        *SMALL, "--levels", "true,none", "--schedulers", "fifo,easy_backfill", "--svg", picture, "--csv", rows, "--json"
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    ran = [(one["scheduler"], one["level"]) for one in document["findings"]]
    assert ran == [("fifo", ""), ("easy_backfill", "true"), ("easy_backfill", "none")]
    assert document["gpus"] == 16
    assert document["load"] >= 0.5
    with rows.open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [(row["scheduler"], row["level"]) for row in written] == ran
    assert [float(row["value"]) for row in written] == pytest.approx(
        [one["outcome"]["value"] for one in document["findings"]], abs=1e-3
    )
    texts = [node.text or "" for node in ET.parse(picture).getroot().iter() if node.tag.endswith("text")]
    assert any("Value" in text for text in texts)
    assert sum("EASY" in text for text in texts) >= 2


def test_people_get_a_table_and_the_goals() -> None:
    result = run(*SMALL, "--levels", "true", "--schedulers", "fifo,easy_backfill,gpugrid")
    assert result.exit_code == 0, result.output
    for words in ("True durations", "utilization", "whole nodes", "Goals", "never below a floor", "re-plans"):
        assert words in result.stdout


def test_without_a_load_it_is_the_one_at_which_people_queue_for_hours() -> None:
    arguments = [word for word in SMALL if word not in ("--load", 0.5)]
    document = json.loads(run(*arguments, "--schedulers", "fifo", "--json").stdout)
    assert document["findings"][0]["wait_s"]["all"]["p90_s"] > 7200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--levels", "perfect"), "--levels perfect is none of true, forecast, limit, none"),
        (("--schedulers", "slurm"), "no scheduler slurm; there are fifo"),
        (("--load", "much"), "--load much is neither a number nor auto"),
        (("--load", "9"), "load must be above 0 and at most 3"),
        (("--start", "2017-01-01"), "is not in trace lingjun"),
        (("--gpus", "20"), "gpus must be a multiple of 8"),
        (("--file", "/nowhere.csv"), "/nowhere.csv is no file"),
        (("--schedulers", ","), "nothing to run"),
        (("--svg", "/nowhere/days.svg"), "its folder doesn't exist"),
    ],
)
def test_what_cant_be_run_gets_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = run(*SMALL, *arguments)
    assert result.exit_code != 0
    assert words.lower() in " ".join((result.output + result.stderr).split()).lower()
    assert "Traceback" not in result.output

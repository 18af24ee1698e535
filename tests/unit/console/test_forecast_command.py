"""`gpugrid forecast`: answers offline, scores a trace, writes predictions and pictures, and says in one sentence what is wrong."""

from __future__ import annotations

import csv
import gzip
import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from schemas.codec import encode_payload
from schemas.jobs import JobSubmitted, ModelFacts, Technique, Tuning
from services.console.app import build_app
from services.console.session import Session
from services.forecaster.shell.training import PHILLY
from tests import build

HEADER = "submit_time,submit_s,num_gpus,span_s,run_s,vc"


def run(*arguments: object) -> Result:
    words = ["forecast", *map(str, arguments)]
    return CliRunner().invoke(build_app(), words, obj=Session(), env={"COLUMNS": "250"})


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.json"
    spec = build.spec(2, 4, team="6214e9")
    file.write_bytes(encode_payload(JobSubmitted(job_id="known", submitted_ms=build.START_MS, spec=spec)))
    return file


@pytest.fixture
def jobs_trace(tmp_path: Path) -> Path:
    with gzip.open(PHILLY, "rt") as source:
        rows = [row for row, _ in zip(csv.DictReader(source), range(800), strict=False)]
    lines = [f",{row['submit_s']},{row['num_gpus']},{row['span_s']},,{row['vc']}" for row in rows]
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress("\n".join([HEADER, *lines, ""]).encode()))
    return path


@pytest.fixture
def rates_trace(tmp_path: Path) -> Path:
    lines = [
        f"{second},{10 - 8 * math.cos(2 * math.pi * second / 86_400):.3f}" for second in range(0, 8 * 86_400, 3_600)
    ]
    path = tmp_path / "rates.csv"
    path.write_text("\n".join(["window_start_s,c<7>", *lines, ""]))
    return path


def test_a_job_is_explained_from_its_team_s_history_and_the_model(job: Path) -> None:
    result = run("explain", job, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [size["gpus"] for size in found["sizes"]] == [2, 4]
    assert all(1 <= size["p50_s"] <= size["p90_s"] for size in found["sizes"])
    nearest = found["levels"][found["nearest"]]
    assert (nearest["level"], nearest["key"], found["prior"]) == ("team, size", "6214e9 4", False)
    assert nearest["starts"] > 50
    asked = next(size for size in found["sizes"] if size["gpus"] == found["asked_gpus"])
    log_p50 = math.log(found["history_p50_s"] * found["usual_p50_factor"])
    log_p50 += sum(math.log(moved["p50_factor"]) for moved in found["moved"])
    assert asked["p50_s"] == pytest.approx(math.exp(log_p50), rel=0.01), "the parts make the whole"


def test_a_job_that_tells_of_its_model_gets_its_cost_and_memory_taken_apart(tmp_path: Path) -> None:
    facts = ModelFacts(parameters=7e9, dataset_tokens=1e8, tuning=Tuning.FULL, technique=Technique.DPO)
    file = tmp_path / "tune.json"
    spec = build.spec(1, 8, model=facts, requested_gpus=8)
    file.write_bytes(encode_payload(JobSubmitted(job_id="tune", submitted_ms=build.START_MS, spec=spec)))
    shown = run("explain", file, "--card", "A100-SXM4-80GB").stdout
    for words in ("MEMORY P50", "Its facts alone say", "compute", "optimizer", "reference", "the card has 80.0 GiB"):
        assert words in shown
    found = json.loads(run("explain", file, "--json").stdout)
    slower = json.loads(run("explain", file, "--card", "A100", "--json").stdout)
    assert slower["facts"]["p50_s"] > 2 * found["facts"]["p50_s"]
    assert found["sizes"][0]["out_of_memory"] > 0.9 > found["sizes"][1]["out_of_memory"]


def test_people_read_sizes_history_and_features(job: Path) -> None:
    result = run("explain", job)
    assert result.exit_code == 0, result.output
    assert run(job).stdout == result.stdout, "a file alone is explained"
    assert run("-", "--json").exit_code == 2, "nothing on standard input is no job"
    for words in ("P50", "It rests on", "team, size", "own_p50", "margin"):
        assert words in result.stdout


def test_a_stranger_gets_the_day_one_prior_and_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('kind = "training"\nsizes = [8]\npriority = 1\ncommand = ["train"]\n')
    result = run("explain", file, "--model", "none", "--team", "new")
    assert result.exit_code == 0, result.output
    assert "day-one prior" in result.stdout
    assert "No model moved it" in result.stdout


def test_a_trace_of_jobs_is_scored_written_and_drawn(tmp_path: Path, jobs_trace: Path) -> None:
    out, pictures = tmp_path / "out.csv", tmp_path / "pictures"
    arguments = ("evaluate", "--trace", jobs_trace, "--format", "philly", "--from-row", 100, "--limit", 700)
    result = run(*arguments, "--predictions", out, "--svg", pictures, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found["methods"]) == ["ours", "one global history", "same key, all history", "same key, last 20"]
    assert found["methods"]["ours"]["runs"] == 600
    assert [int(row["row"]) for row in csv.DictReader(out.open())] == list(range(100, 700))
    assert {file.name for file in pictures.iterdir()} == {"coverage.svg", "pinball.svg"}
    for file in pictures.iterdir():
        assert ET.parse(file).getroot().tag.endswith("svg")
    shown = run(*arguments)
    for words in ("P90 COVERS", "same key, last 20", "GPUs 1"):
        assert words in shown.stdout


def test_load_per_client_is_scored_written_and_drawn(tmp_path: Path, rates_trace: Path) -> None:
    out, pictures = tmp_path / "out.csv", tmp_path / "pictures"
    result = run(
        "evaluate", "--trace", rates_trace, "--format", "rates", "--predictions", out, "--svg", pictures, "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["forecasts"] == 2
    assert found["total"]["ours"]["loss"] < found["total"]["last value"]["loss"]
    rows = list(csv.DictReader(out.open()))
    assert list(rows[0]) == ["client", "origin_s", "window_start_s", "p50", "p90"]
    assert len(rows) == 48
    assert ET.parse(pictures / "demand-c_7_.svg").getroot().tag.endswith("svg")
    assert "c<7>" in run("evaluate", "--trace", rates_trace, "--format", "rates").stdout


@pytest.mark.parametrize(
    ("text", "layout", "words"),
    [
        (HEADER + "\n,1,one,60,60,red\n", "philly", "line 2, column num_gpus: 'one'"),
        ("window_start_s,c0\n0,1\n600,2\n", "rates", "--history"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, text: str, layout: str, words: str) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(text)
    result = run("evaluate", "--trace", path, "--format", layout)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_wrong_files_and_models_are_one_sentence_too(tmp_path: Path, job: Path, jobs_trace: Path) -> None:
    for arguments, words in (
        (("explain", tmp_path / "none.json"), "Can't read"),
        (("explain", job, "--model", tmp_path / "none.json"), "can't be read"),
        (("evaluate", "--trace", tmp_path / "none.csv", "--format", "hpc"), "can't be read"),
        (("evaluate", "--trace", jobs_trace, "--format", "philly", "--from-row", 9_999), "has only 800 rows"),
    ):
        result = run(*arguments)
        assert (result.exit_code, words in result.stderr) == (2, True), result.output

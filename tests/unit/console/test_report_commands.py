"""`gpugrid report`, `latency`, `diagnose`, `top`, `page --token`: commands on a bus on which a real allocator has decided."""

from __future__ import annotations

import builtins
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.jobs import JobSubmitted
from services.console.latency_view import span_latencies
from services.console.metering.load_report import window_of
from services.runtime.span_spool import SpanLine, SpanSpool, recent_spans
from tests import build
from tests.unit.console.console_rig import Rig, contended

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def rig() -> Rig:
    made = contended()
    made.publish(
        build.completed("big", "n00", build.START_MS + HOUR_MS), build.completed("big", "n01", build.START_MS + HOUR_MS)
    )
    made.clock.at_ms = build.START_MS + 2 * HOUR_MS
    return made


def test_a_report_as_table_json_and_csv_has_the_same_numbers(rig: Rig):
    table = rig.run("report", "--since", "24h", "--by", "team")
    assert "GPU-H" in table
    assert "blue" in table
    document = rig.json("report", "--since", "24h", "--by", "team")
    rows = list(csv.DictReader(io.StringIO(rig.run("report", "--since", "24h", "--by", "team", "--format", "csv"))))
    assert rows[0]["team"] == document["rows"][0]["team"] == "blue"
    assert float(rows[0]["held_h"]) == document["rows"][0]["held_h"] > 0
    assert rows[-1]["team"] == "total"
    assert document["total"]["completed"] == 1


def test_a_report_as_parquet_reads_back(rig: Rig, tmp_path: Path):
    pq = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "r.parquet"
    rig.run("report", "--by", "job", "--format", "parquet", "--out", str(out))
    table = pq.read_table(out).to_pydict()
    assert table["job"][0] == "big"
    assert table["completed"][0] == 1


def test_without_pyarrow_the_error_says_what_to_install(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    rig.run("report", "--format", "parquet", "--out", str(tmp_path / "r"), code=1)
    assert "gpugrid[parquet]" in rig.stderr


def test_a_report_as_html_stands_alone(rig: Rig, tmp_path: Path):
    out = tmp_path / "r.html"
    rig.run("report", "--format", "html", "--out", str(out))
    page = out.read_text()
    assert "<svg" in page
    assert "<table>" in page
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "yesterday"), "is no time"),
        (("--format", "parquet"), "--out"),
        (("--out", "x.txt"), "choose --format"),
        (("--since", "1h", "--until", "2h"), "Nothing lies"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_sentence(rig: Rig, words: tuple[str, ...], said: str):
    rig.run("report", *words, code=2)
    assert said in rig.stderr


def test_windows_are_so_long_ago_or_dates_in_utc():
    now_ms = 1_767_225_600_000  # 2026-01-01
    assert window_of("2h", None, now_ms).since_ms == now_ms - 2 * HOUR_MS
    assert window_of("2025-12-31", "2025-12-31T12:00", now_ms).until_ms == now_ms - 12 * HOUR_MS
    assert window_of("2025-12-31T01:00+01:00", None, now_ms).since_ms == now_ms - 24 * HOUR_MS


def test_diagnose_answers_the_first_question(rig: Rig):
    assert "GPUs free, schedulability" in rig.run("diagnose")
    (found,) = rig.json("diagnose")
    assert found["numbers"]["waiting"] == 1
    assert found["case"]


def test_top_draws_one_picture(rig: Rig):
    text = rig.run("top", "--once")
    assert "GPUs held" in text
    assert "small" in text
    assert "n00" in text


def test_latency_has_every_hop(rig: Rig):
    rig.publish(JobSubmitted(job_id="small", submitted_ms=build.START_MS, spec=build.spec(2)))
    hops = {hop["hop"]: hop for hop in rig.json("latency")["hops"]}
    assert hops["submit → first decision"]["jobs"] == 1
    assert "HOP" in rig.run("latency")


def test_spans_are_summed_up_per_service_and_name(tmp_path: Path):
    spool = SpanSpool(tmp_path, "a")
    for number in range(1, 11):
        spool.write(
            SpanLine(
                trace_id="t", span_id=str(number), name="decide", service="allocator", start_ns=0, end_ns=number * 10**6
            )
        )
    spool.write(SpanLine(trace_id="t", span_id="x", name="old", service="allocator", start_ns=0, end_ns=1))
    spool.close()
    (one,) = span_latencies(recent_spans(tmp_path, 10**6))
    assert (one.span, one.latency.jobs, one.latency.p50_ms, one.latency.p99_ms) == ("decide", 10, 5.0, 10.0)


def test_the_token_is_shown_where_it_is_asked_for(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPUGRID_PAGE_TOKEN_FILE", str(tmp_path / "token"))
    shown = rig.run("page", "--token").strip()
    assert shown == (tmp_path / "token").read_text().strip()
    assert json.dumps(shown)

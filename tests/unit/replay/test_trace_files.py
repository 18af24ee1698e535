"""Trace files: one's own CSV works like the bundled one; what can't be read says which line and why."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from services.replay.core.trace import filled
from services.replay.core.workload import build_day
from services.replay.extract import main
from services.replay.shell.bundled import TraceError, bundled_trace, day_of_seed, trace_of_file

HEADER = "submit_time,submit_s,num_gpus,span_s,run_s,vc\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_csv_of_ones_own(tmp_path: Path) -> None:
    rows = "".join(
        f"2020-02-01 {hour:02d}:00:00,0,{1 + hour % 9},9000,{'' if hour % 2 else 7000},\n" for hour in range(24)
    )
    trace = trace_of_file(write(tmp_path / "mine.csv", HEADER + rows))
    assert list(trace.days) == ["2020-02-01"]
    day = build_day(trace, day_of_seed(trace, 7), 7, gpus=16)
    assert 0 < len(day.jobs) <= 24
    assert {job.spec.team for job in day.jobs} == {"unknown"}


def test_gzip_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv.gz"
    path.write_bytes(gzip.compress((HEADER + "2020-02-01 00:00:00,0,1,60,60,a\n").encode()))
    assert trace_of_file(path).jobs[0].team == "a"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "lacks submit_time, num_gpus"),
        ("submit_time,num_gpus\n2020-01-01,1\n", "lacks run_s or span_s"),
        (HEADER + "yesterday,0,1,60,60,a\n", "line 2"),
        (HEADER + "2020-02-01 00:00:00,0,0,60,60,a\n", "line 2"),
        (HEADER + "2020-02-01 00:00:00,0,1,60,60,a\n2020-02-01 00:00:00,0,1,,,a\n", "line 3"),
        (HEADER + "2020-02-01 00:00:00,0,1,60,inf,a\n", "line 2"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        trace_of_file(write(tmp_path / "bad.csv", text))


def test_a_missing_or_binary_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="can't read the trace"):
        trace_of_file(tmp_path / "nowhere.csv")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="neither CSV"):
        trace_of_file(tmp_path / "x.csv")


def test_missing_windows_lie_on_the_line_between() -> None:
    assert filled((None, 1.0, None, None, 4.0, None)) == (1.0, 1.0, 2.0, 3.0, 4.0, 4.0)
    assert filled((2.0,)) == (2.0,)
    with pytest.raises(ValueError, match="without any data"):
        filled((None,))


def test_bundled_series_have_gaps_marked_not_zeroed() -> None:
    series = {entry.app_id: entry for entry in bundled_trace().series}
    assert sorted(series) == ["assistant", "chat", "documents"]
    assert series["chat"].loads[1032] is None


def test_extract_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--target", str(tmp_path)]) == 1
    assert "philly_jobs.csv.gz" in capsys.readouterr().err

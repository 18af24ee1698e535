"""Evaluation of a trace: only what was over counts, every row gets a forecast in file order, broken cells are named."""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from services.forecaster.core.demand_scores import OURS, RULES, DayAhead, Rates, forecast_days, rule_days, score_days
from services.forecaster.core.duration_scores import coverage_by, short_jobs, simple_rules
from services.forecaster.core.rehearsal import calibrated
from services.forecaster.core.rolling import PastRuns, replay
from services.forecaster.shell.evaluation import (
    DurationChoices,
    DurationReport,
    evaluate_demand,
    evaluate_durations,
    write_demand,
    write_durations,
)
from services.forecaster.shell.trace_files import joined, read_jobs, read_rates
from services.forecaster.shell.training import PHILLY, TraceError

DAY_S = 86_400
HEADER = "submit_time,submit_s,num_gpus,span_s,run_s,vc\n"


def silent(what: str, share: float) -> None:
    assert 0.0 <= share <= 1.0


def runs(*rows: tuple[int, float], waits: tuple[float, ...] | None = None) -> PastRuns:
    """(submit, duration) of one team on one GPU."""
    return PastRuns(
        submit_s=np.array([submit for submit, _ in rows], np.int64),
        duration_s=np.array([duration for _, duration in rows]),
        ended=np.ones(len(rows), np.bool_),
        gpus=np.ones(len(rows), np.int64),
        team=("red",) * len(rows),
        wait_s=None if waits is None else np.array(waits),
    )


def philly_slice(path: Path, first: int, count: int) -> Path:
    """Rows of the bundled trace under the public trace's columns."""
    with gzip.open(PHILLY, "rt") as source:
        rows = list(csv.DictReader(source))[first : first + count]
    lines = [f",{row['submit_s']},{row['num_gpus']},{row['span_s']},{row['run_s']},{row['vc']}" for row in rows]
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return path


def rates_file(path: Path, days: range, *, shift_s: int = 0) -> Path:
    """Two clients in hourly windows, one daily and one constant."""
    lines = ["window_start_s,c0,c1"]
    for second in range(days.start * DAY_S, days.stop * DAY_S, 3_600):
        wave = 10 - 8 * math.cos(2 * math.pi * second / DAY_S)
        lines.append(f"{second - shift_s},{wave:.3f},4")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_future_changes_no_forecast(tmp_path: Path) -> None:
    """Rows after the last submit that is compared, and how long a run went on after it, must not matter."""
    short = read_jobs(philly_slice(tmp_path / "short.csv", 0, 1_200), "philly")
    long = read_jobs(philly_slice(tmp_path / "long.csv", 0, 1_500), "philly")
    for place, (submit_s, duration_s) in enumerate(zip(short.submit_s, short.duration_s, strict=True)):
        if submit_s + duration_s > short.submit_s[-1]:
            short.duration_s[place] = short.submit_s[-1] - submit_s + 5_000_000.0
    first, second = (evaluate_durations(one, None, DurationChoices(), silent).predictions for one in (short, long))
    assert first == second[:1_200]


def test_a_run_that_waits_counts_from_its_start_and_not_from_its_submit() -> None:
    told = runs((0, 100.0), (500, 100.0), (2_000, 100.0), waits=(1_000.0, 0.0, 0.0))
    rules = simple_rules(told)["one global history"][0]
    assert np.exp(rules[1]) == pytest.approx(1_200.0), "the first run has not even started"
    assert np.exp(rules[2]) == pytest.approx(100.0)
    assert len(replay(told, (700,)).running_at[700][0]) == 0, "one has ended, one has not started"
    assert list(replay(told, (1_050,)).running_at[1_050][0]) == [0]


def test_calibration_hears_of_a_miss_only_when_the_run_has_outlived_its_p90() -> None:
    told = runs((0, 5_000.0), (150, 1.0), (90_000, 1.0))
    p90 = calibrated(told, np.log(np.full(3, 50.0)), np.log(np.full(3, 200.0)))
    assert p90[0] == p90[1] < p90[2], "200 s × margin are not over at second 150"


def test_groups_are_named_counted_and_judged() -> None:
    told = runs(*((second * 10, 60.0) for second in range(100)))
    log_p90 = np.log(np.where(np.arange(100) < 50, 100.0, 10.0))
    groups = ["a" if row < 50 else "b" for row in range(100)]
    good, bad = coverage_by(told, log_p90, np.ones(100, np.bool_), groups)
    assert (good.name, good.runs, good.coverage, good.right) == ("a", 50, 1.0, True)
    assert (bad.name, bad.coverage, bad.right) == ("b", 0.0, False)


def test_short_jobs_are_below_ten_minutes() -> None:
    told = runs((0, 10.0), (1, 599.0), (2, 601.0), (3, 9_000.0))
    found = short_jobs(told, np.log([10.0, 700.0, 10.0, 9_000.0]), np.ones(4, np.bool_))
    assert (found.runs, found.recall, found.precision) == (2, 0.5, 0.5)


def test_every_row_gets_a_forecast_in_file_order_and_beats_what_knows_no_team(tmp_path: Path) -> None:
    before = read_jobs(philly_slice(tmp_path / "before.csv", 0, 4_000), "philly")
    path = philly_slice(tmp_path / "trace.csv", 4_000, 600)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    trace = read_jobs(path, "philly")
    report = evaluate_durations(trace, before, DurationChoices(), silent)
    assert report.rows == report.methods[OURS].runs == 600
    assert report.methods[OURS].pinball < report.methods["one global history"].pinball
    write_durations(report, tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [int(row["row"]) for row in rows] == list(range(600))
    assert all(1.0 <= float(row["p50_s"]) <= float(row["p90_s"]) for row in rows)
    assert {one.name for one in report.by_size} <= {"1", "2–4", "5–8", "more than 8"}


def test_a_trace_that_counts_from_its_own_second_0_is_put_after_its_history(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + "2017-10-01 00:00:00,0,1,60,60,red\n")
    (tmp_path / "b.csv").write_text(HEADER + "2017-10-02 00:00:00,0,1,60,60,red\n")
    together, row_of = joined(read_jobs(tmp_path / "a.csv", "philly"), read_jobs(tmp_path / "b.csv", "philly"))
    assert list(together.submit_s) == [0, DAY_S]
    assert list(row_of) == [-1, 0]


def test_an_hpc_log_is_keyed_by_user_and_program_and_capped_by_the_users_limit(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{row},{row * 1000},50,400,4,300,u1,cc" for row in range(200)]
    path.write_text("job_id,submit_s,wait_s,run_s,procs,req_time_s,user,app\n" + "\n".join(rows) + "\n")
    report = evaluate_durations(read_jobs(path, "hpc"), None, DurationChoices(from_row=100), silent)
    assert all(p90_s <= 300.001 for _, _, p90_s in report.predictions)
    assert [one.name for one in report.by_month] == ["days 0–29"]


@pytest.mark.parametrize(
    ("layout", "text", "words"),
    [
        ("philly", HEADER + ",1,1,60,60,red\n,x,1,60,60,red\n", "line 3, column submit_s: 'x'"),
        ("philly", HEADER + ",1,1,-5,,red\n", "line 2, column span_s: '-5'"),
        ("philly", HEADER + ",1,1,nan,,red\n", "line 2, column span_s: 'nan'"),
        ("philly", "submit_s,num_gpus\n1,1\n", "column span_s: it is missing"),
        ("philly", HEADER, "has no rows"),
        ("hpc", "submit_s,procs,user\n1,1,u\n", "line 2, column run_s: it is missing"),
        ("rates", "window_start_s,c0\n0,1\n600,-2\n", "line 3, column c0: '-2'"),
        ("rates", "window_start_s,c0\n0,1\n0,2\n", "line 3, column window_start_s: window 0 is there twice"),
        ("rates", "window_start_s,c0\n0,1\n700,2\n", "must be a minute or more and divide a day"),
        ("rates", "window_start_s\n0\n", "no column of a client"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_column(tmp_path: Path, layout: str, text: str, words: str) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as raised:
        read_rates(path, None) if layout == "rates" else read_jobs(path, layout)
    assert words in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_broken_row_is_forecast_and_counted_but_neither_scored_nor_learnt_from(tmp_path: Path) -> None:
    """What stood in its broken cells must not matter to any forecast."""
    path = philly_slice(tmp_path / "trace.csv", 0, 400)
    lines = path.read_text().splitlines()

    def report(durations: tuple[str, str, str, str]) -> DurationReport:
        broken = list(lines)
        for place, text in zip((10, 60, 110, 399), durations, strict=True):
            submit_s, gpus, vc = (broken[place + 1].split(",")[column] for column in (1, 2, 5))
            broken[place + 1] = f",{submit_s},{gpus},{text},,{vc}"
        submit_s, span_s, vc = (broken[201].split(",")[column] for column in (1, 3, 5))
        broken[201] = f",{submit_s},many,{span_s},,{vc}"
        broken[301] = ",?" + broken[301][broken[301].index(",", 1) :]
        path.write_text("\n".join(broken) + "\n")
        return evaluate_durations(read_jobs(path, "philly"), None, DurationChoices(), silent)

    found, other = report(("", "-5", "nan", "inf")), report(("x", "1e99", "", "-1"))
    assert (found.rows, found.dirty_rows, found.methods[OURS].runs) == (400, 6, 394)
    assert "line 12, column span_s: ''" in found.dirty_first
    assert [row for row, _, _ in found.predictions] == list(range(400))
    assert all(1.0 <= p50_s <= p90_s < math.inf for _, p50_s, p90_s in found.predictions)
    assert (found.predictions, found.methods) == (other.predictions, other.methods)


def test_a_truncated_gz_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(gzip.compress((HEADER + ",1,1,60,60,red\n" * 1000).encode())[:60])
    with pytest.raises(TraceError, match="can't be read"):
        read_jobs(path, "philly")


def test_demand_is_forecast_daily_from_what_lies_before(tmp_path: Path) -> None:
    rates = read_rates(rates_file(tmp_path / "rates.csv", range(9)), None)
    report = evaluate_demand(rates, 6, silent)
    assert report.total[OURS].windows == 2 * 3 * 24
    assert set(report.total) == {OURS, *RULES}
    assert report.total[OURS].loss < 0.05 < report.total["last value"].loss
    rates.load[:, 7 * 24 :] *= 50
    changed = evaluate_demand(rates, 6, silent)
    for before, after in zip(report.days, changed.days, strict=True):
        if before.origin <= 7 * 24:
            np.testing.assert_array_equal(before.p50, after.p50)


def test_demand_predictions_are_rows_and_history_may_count_on_or_overlap(tmp_path: Path) -> None:
    history = rates_file(tmp_path / "history.csv", range(7))
    follows = read_rates(rates_file(tmp_path / "follows.csv", range(7, 9)), history)
    restarts = read_rates(rates_file(tmp_path / "restarts.csv", range(7, 9), shift_s=7 * DAY_S), history)
    overlaps = read_rates(rates_file(tmp_path / "overlaps.csv", range(5, 9)), history)
    np.testing.assert_array_equal(follows.load, restarts.load)
    assert (follows.first, overlaps.first) == (7 * 24, 5 * 24)
    report = evaluate_demand(restarts, 1, silent)
    write_demand(report, restarts, tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert len(rows) == 2 * 2 * 24
    assert rows[0] == {
        "client": "c0",
        "origin_s": "0",
        "window_start_s": "0",
        "p50": rows[0]["p50"],
        "p90": rows[0]["p90"],
    }
    assert {row["origin_s"] for row in rows} == {"0", str(DAY_S)}


def test_a_byte_order_mark_is_no_part_of_a_column(tmp_path: Path) -> None:
    path = tmp_path / "marked.csv"
    path.write_text("window_start_s,c0\n0,1\n3600,2\n", encoding="utf-8-sig")
    assert read_rates(path, None).load.tolist() == [[1.0, 2.0]]


def test_windows_without_any_load_are_gaps(tmp_path: Path) -> None:
    path = tmp_path / "gaps.csv"
    path.write_text("window_start_s,c0,c1\n0,1,0\n3600,0,0\n7200,,2\n14400,1,1\n")
    load = read_rates(path, None).load
    assert load.shape == (2, 5)
    np.testing.assert_array_equal(np.isnan(load[0]), [False, True, True, True, False])
    np.testing.assert_array_equal(np.isnan(load[1]), [False, True, False, True, False])


def test_too_short_a_record_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="--history"):
        evaluate_demand(read_rates(rates_file(tmp_path / "day.csv", range(1)), None), 6, silent)


def test_simple_rules_and_loss_by_hand() -> None:
    load = np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    rates = Rates(43_200, 0, ("c0",), load, 0)
    last, naive, median = (
        rule_days(rates, 0, [4], rule)[0].p50.tolist() for rule in ("last value", "seasonal naive", RULES[0])
    )
    assert (last, naive, median) == ([4.0, 4.0], [3.0, 4.0], [2.0, 3.0])
    scored = score_days(rates, [DayAhead(0, 4, np.array([4.0, 6.0]), np.array([5.0, 5.0]))])
    assert scored.loss == pytest.approx((0.5 + 0.9) / 11, abs=1e-5)
    assert scored.coverage == 0.5


def test_a_client_that_appears_late_gets_a_forecast_too() -> None:
    load = np.full((1, 24 * 4), np.nan)
    load[0, 60:] = 3.0
    days = forecast_days(Rates(3_600, 0, ("c0",), load, 0), 0, [24, 48, 72], lambda: None)
    assert days[0].p90.max() == 0.0
    assert days[2].p50 == pytest.approx(np.full(24, 3.0))

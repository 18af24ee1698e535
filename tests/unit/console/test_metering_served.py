"""What applications say they served: amounts, failures, latency, and GPU-hours for it."""

from __future__ import annotations

import pytest

from schemas.demand import DemandObserved
from services.console.metering.account import Window, rows_of
from services.console.metering.ledger import Hold, Ledger
from services.console.metering.report import By, Report, report_of
from services.console.metering.report_output import report_csv, report_html, report_rows, report_table
from services.console.metering.served import weighted_quantile
from tests import build

T0 = build.START_MS
HOUR = 3_600_000
WINDOW = Window(T0, T0 + 10 * HOUR)


def told(app_id: str, hour: int, **changed) -> DemandObserved:
    fields = {"window_s": 3600.0, "load": 2.0, "per_gpu": 10.0} | changed
    return DemandObserved(app_id=app_id, cluster="c0", time_ms=T0 + hour * HOUR, **fields)


def report(*events: DemandObserved, gpus: int = 2) -> Report:
    """Each application held `gpus` for ten hours."""
    ledger = Ledger()
    for name in sorted({event.app_id for event in events}):
        ledger.fold(build.application(name))
        ledger.holds[name] = [Hold(T0, tuple(("n00", gpu) for gpu in range(gpus)))]
    for event in events:
        ledger.fold(event)
    return report_of(rows_of(ledger, WINDOW), By.JOB, WINDOW)


def test_gpu_hours_per_thousand_requests_and_million_tokens():
    total = report(
        told("chat", 1, requests=4_000, tokens=500_000), told("chat", 2, requests=1_000, tokens=1_500_000)
    ).total
    assert total.requests == 5_000
    assert total.hours_per_unit == {"1,000 requests": 20 / 5, "million tokens": 20 / 2}
    assert total.requests_ok is None, "nobody told failures"
    assert total.latency_p50_s is None


def test_who_tells_only_its_mean_load_is_counted_by_it():
    assert report(told("chat", 1)).total.hours_per_unit == {"1,000 requests": pytest.approx(20 / 7.2)}
    assert report(told("chat", 1, load=1000.0, unit="tokens/s")).total.hours_per_unit == {
        "million tokens": pytest.approx(20 / 3.6)
    }


def test_success_counts_only_windows_that_tell_failures_and_no_more_than_there_were_requests():
    total = report(
        told("chat", 1, requests=900, requests_failed=100),
        told("chat", 2, requests=5_000),
        told("chat", 3, requests=100, requests_failed=300),
    ).total
    assert total.requests == 6_000
    assert total.requests_ok == 0.8


def test_latency_over_windows_weighs_requests():
    quiet = [told("chat", hour, requests=1, latency_p50_s=9.0, latency_p99_s=90.0) for hour in (1, 2, 3)]
    busy = told("chat", 4, requests=1_000, latency_p50_s=0.1, latency_p99_s=0.7)
    unseen = told("chat", 5, requests=0, latency_p50_s=50.0)
    total = report(*quiet, busy, unseen).total
    assert (total.latency_p50_s, total.latency_p99_s) == (0.1, 0.7)
    slow = told("chat", 6, requests=20, latency_p50_s=0.2, latency_p99_s=3.0)
    assert report(*quiet, busy, slow).total.latency_p99_s == 3.0


def test_a_window_outside_of_the_report_and_a_window_told_twice_change_nothing():
    one = told("chat", 1, requests=100, requests_failed=1)
    assert report(one, one, told("chat", 11, requests=7), told("chat", 0, requests=7)).total.requests == 100


def test_groups_have_their_own_figures_and_the_total_has_all():
    found = report(
        told("chat", 1, requests=100, requests_failed=10, latency_p50_s=1.0, latency_p99_s=2.0),
        told("rank", 1, requests=300, requests_failed=0, latency_p50_s=0.01, latency_p99_s=0.02),
    )
    by_name = {group.name: group for group in found.groups}
    assert (by_name["chat"].requests_ok, by_name["rank"].requests_ok) == (0.9, 1.0)
    assert (by_name["chat"].latency_p99_s, by_name["rank"].latency_p99_s) == (2.0, 0.02)
    assert (found.total.requests_ok, found.total.latency_p50_s, found.total.latency_p99_s) == (0.975, 0.01, 2.0)


def test_every_form_of_a_report_shows_it_where_it_is_told():
    found = report(told("chat", 1, requests=1_000, requests_failed=1, latency_p50_s=0.08, latency_p99_s=12.0))
    row = report_rows(found)[-1]
    assert (row["requests"], row["requests_ok"]) == (1_000, 0.999)
    assert (row["latency_p50_s"], row["latency_p99_s"]) == (0.08, 12.0)
    assert "requests_ok" in report_csv(found).splitlines()[0]
    assert "99.900%" in report_html(found, T0)
    shown = {str(column.header): list(column.cells)[-1] for column in report_table(found).columns}
    assert (shown["REQUESTS OK"], shown["LATENCY P50"], shown["P99"]) == ("99.900%", "80 ms", "12 s")
    assert "REQUESTS OK" not in {
        str(column.header) for column in report_table(report(told("t", 1, requests=7))).columns
    }


def test_a_quantile_is_one_of_the_values():
    assert weighted_quantile([], 50) is None
    assert weighted_quantile([(3.0, 1), (1.0, 1), (2.0, 1)], 50) == 2.0
    assert weighted_quantile([(1.0, 99), (9.0, 1)], 99) == 1.0
    assert weighted_quantile([(1.0, 98), (9.0, 2)], 99) == 9.0

"""Expected batch work: the same time on other days, blended with the last day."""

from __future__ import annotations

import pytest

from services.forecaster.core.arrivals import ArrivalHistory

HOUR_MS = 3_600_000


def test_steady_arrivals_are_expected_to_go_on():
    history = ArrivalHistory(3_600)
    for hour in range(72):
        history.arrived(hour * HOUR_MS, 500.0)
        history.arrived(hour * HOUR_MS + 1, 500.0)
    start_ms, work = history.forecast(72 * HOUR_MS, 24)
    assert start_ms == 72 * HOUR_MS
    assert work == [1_000.0] * 24


def test_busy_hours_are_expected_again_and_quiet_ones_count_as_zero():
    history = ArrivalHistory(3_600)
    for day in range(4):
        history.arrived((day * 24 + 10) * HOUR_MS, 24_000.0)
    history.arrived(95 * HOUR_MS, 1.0)
    _, work = history.forecast(96 * HOUR_MS, 24)
    assert work[10] == pytest.approx(12_500, rel=0.05)
    assert work[3] == pytest.approx(500, rel=0.05)


def test_the_first_hour_answers_with_what_it_has():
    history = ArrivalHistory(900)
    history.arrived(5, 300.0)
    assert history.forecast(10, 4)[1] == [300.0] * 4


def test_old_days_make_room():
    history = ArrivalHistory(900)
    for day in range(40):
        history.arrived(day * 24 * HOUR_MS, 100.0)
    history.arrived(0, 1e9)
    assert max(history.forecast(40 * 24 * HOUR_MS, 96)[1]) <= 100.0

"""What past runs teach, what may be known at a cut, and when forecasts count as drifting."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.models import Watch
from services.forecaster.core.drift import OUTCOMES_MIN, Outcomes
from services.forecaster.core.features import GIVEN, NAMES
from services.forecaster.core.lessons import Lessons
from services.forecaster.core.retraining import judged_from_ms
from services.forecaster.shell.fitting import known_at


def known_row(log_p50: float, log_p90: float) -> np.ndarray:
    """Features of a job of which history knows the quantiles and nothing else."""
    row = np.full(len(NAMES), np.nan)
    row[GIVEN], row[GIVEN + 1], row[NAMES.index("burst")] = log_p50, log_p90, 0.0
    return row


def test_lessons_are_bounded_and_come_out_oldest_first():
    lessons = Lessons(lessons_max=700)
    for number in range(1_000):
        lessons.started(f"j{number}", np.full(len(NAMES), float(number)), number)
        lessons.ended(f"j{number}", number + 10, 1.0)
    lessons.started("going", np.zeros(len(NAMES)), 1_000)
    lessons.started("stopped", np.zeros(len(NAMES)), 1_000)
    lessons.forget("stopped")
    lessons.ended("never started", 5, 1.0)
    taught = lessons.taught(now_ms=61_000)
    assert len(taught) == 701
    assert taught.start_ms[:700].tolist() == list(range(300, 1_000)) == taught.rows[:700, 0].astype(int).tolist()
    assert taught.ended.tolist() == [True] * 700 + [False]
    assert taught.log_s[-1] == pytest.approx(np.log(60.0))
    assert lessons.ended_since(909) == 100


def test_a_running_job_teaches_that_it_takes_longer_than_so_far():
    lessons = Lessons()
    row = known_row(np.log(60.0), np.log(600.0))
    lessons.started("going", row, 0)
    rows, targets, weights = known_at(lessons.taught(3_600_000), 3_600_000, 0)
    assert len(rows) == 3
    assert (np.diff(targets) > 0).all()
    assert weights.sum() == pytest.approx(1.0)
    assert (targets + np.log(60.0) >= np.log(3_600.0)).all()


def test_what_ended_after_the_cut_is_not_known_before_it():
    lessons = Lessons()
    row = known_row(np.log(60.0), np.log(600.0))
    for number, end_ms in enumerate((100_000, 900_000)):
        lessons.started(f"j{number}", row, 50_000)
        lessons.ended(f"j{number}", end_ms, np.log((end_ms - 50_000) / 1000))
    _, targets, weights = known_at(lessons.taught(2_000_000), 500_000, 0)
    assert targets[0] == pytest.approx(np.log(50.0) - np.log(60.0))
    assert len(targets) == 4
    assert weights.sum() == pytest.approx(2.0)
    taught = lessons.taught(2_000_000)
    assert judged_from_ms(taught, 400_000) == 400_000
    assert judged_from_ms(taught, -1) == 100_000


def test_drift_is_seen_when_forecasts_stop_coming_true():
    chance = np.random.default_rng(3)
    outcomes = Outcomes()
    for log_s in chance.normal(5.0, 1.0, OUTCOMES_MIN - 1):
        outcomes.add(log_s, (5.0, 6.28), (5.0, 6.28))
    assert outcomes.verdict("m", None).watch is Watch.UNKNOWN
    for log_s in chance.normal(5.0, 1.0, 500):
        outcomes.add(log_s, (5.0, 6.28), (5.0, 6.28))
    assert outcomes.verdict("m", None).watch is Watch.STEADY
    for log_s in chance.normal(6.0, 1.0, 500):
        outcomes.add(log_s, (5.0, 6.28), (5.0, 6.28))
    found = outcomes.verdict("m", None)
    assert (found.watch, "covers" in found.reason) == (Watch.DRIFTING, True)
    outcomes.start_over()
    for log_s in chance.normal(5.0, 1.0, 500):
        outcomes.add(log_s, (3.9, 6.28), (5.0, 6.28))
    assert "history alone is better" in outcomes.verdict("m", None).reason

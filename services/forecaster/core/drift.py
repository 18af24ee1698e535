"""Whether forecasts still come true: the last outcomes of what was said at start, beside what history alone would have said.

Owns: the ring of outcomes and the verdict. A run counts when it ended by itself. Refuses: doing anything about it, which is
`retraining.py`'s. Read next: `retraining.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.models import ModelScore, Watch
from services.forecaster.core.rolling import Score

OUTCOMES_KEPT = 500
OUTCOMES_MIN = 200
"""Fewer outcomes tell nothing: a share of 90 % is only known to 5 points."""
COVERAGE_MIN, COVERAGE_MAX = 0.85, 0.97
"""What P90 may cover over the last outcomes. Below: plans overrun; above: capacity is kept for nothing."""
WORSE_THAN_HISTORY = 1.05
WORSE_THAN_JUDGED = 1.3
"""Loss beyond that of history alone, or of the day the model was chosen: streams differ by a tenth from day to day anyway."""
HISTORY = "history"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it goes, in words and figures."""

    watch: Watch
    reason: str
    score: ModelScore
    history: ModelScore


def scored(version: str, actual: np.ndarray, log_p50: np.ndarray, log_p90: np.ndarray) -> ModelScore:
    """The score of forecasts whose outcome is known; of none: zeros."""
    if not len(actual):
        return ModelScore(version=version, runs=0, pinball=0.0, factor=0.0, coverage=0.0)
    found = Score.of(actual, log_p50, np.maximum(log_p50, log_p90))
    return ModelScore(
        version=version,
        runs=found.runs,
        pinball=min(found.pinball, 1000.0),
        factor=min(found.factor, 1e9),
        coverage=found.coverage,
    )


class Outcomes:
    """The last `OUTCOMES_KEPT` outcomes of one cluster."""

    def __init__(self) -> None:
        self._seen = np.zeros((OUTCOMES_KEPT, 5))
        self.count = 0
        self._judged: tuple[str, float | None, Verdict] | None = (
            None  # of what is in the ring now: most looks bring nothing new
        )

    def add(self, log_s: float, said: tuple[float, float], history: tuple[float, float]) -> None:
        """What came, and log P50 and P90 as said and of history alone."""
        self._seen[self.count % OUTCOMES_KEPT] = log_s, *said, *history
        self.count += 1
        self._judged = None

    def start_over(self) -> None:
        """Another model answers: what the last one said is no evidence."""
        self.count = 0
        self._judged = None

    def verdict(self, version: str, judged_pinball: float | None) -> Verdict:
        """`judged_pinball`: the loss with which the model was chosen, None if it never was."""
        if self._judged is not None and self._judged[:2] == (version, judged_pinball):
            return self._judged[2]
        seen = self._seen[: min(self.count, OUTCOMES_KEPT)]
        score = scored(version, seen[:, 0], seen[:, 1], seen[:, 2])
        history = scored(HISTORY, seen[:, 0], seen[:, 3], seen[:, 4])
        watch, reason = _watched(score, history, judged_pinball)
        found = Verdict(watch, reason, score, history)
        self._judged = (version, judged_pinball, found)
        return found


def _watched(score: ModelScore, history: ModelScore, judged_pinball: float | None) -> tuple[Watch, str]:
    if score.runs < OUTCOMES_MIN:
        return Watch.UNKNOWN, f"only {score.runs} outcomes so far"
    if not COVERAGE_MIN <= score.coverage <= COVERAGE_MAX:
        return Watch.DRIFTING, f"P90 covers {score.coverage:.1%} of the last {score.runs} runs"
    if score.pinball > WORSE_THAN_HISTORY * history.pinball:
        return Watch.DRIFTING, f"history alone is better: loss {history.pinball:.3f} against {score.pinball:.3f}"
    if judged_pinball is not None and score.pinball > WORSE_THAN_JUDGED * judged_pinball:
        return Watch.DRIFTING, f"loss {score.pinball:.3f}, {judged_pinball:.3f} when the model was chosen"
    return Watch.STEADY, f"P90 covers {score.coverage:.1%} of the last {score.runs} runs"

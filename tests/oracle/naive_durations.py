"""The duration history the slow, obvious way: all runs in a list, hazards counted anew for every question."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from services.forecaster.core.history import LEVELS, Subject
from services.forecaster.core.survival import BIN_WIDTH, BINS, HALF_LIVES, LOG_S_MAX, SHRINKAGE_WEIGHT


@dataclass
class NaiveRun:
    """`log_s` None: still running. `numbers`: of this start among those of its key, per level."""

    subject: Subject
    start_ms: int
    numbers: dict[tuple, int]
    log_s: float | None = None
    observed: bool = False


class NaiveHistory:
    """Same calls as DurationHistory, no bounds."""

    def __init__(self) -> None:
        self.runs: list[NaiveRun] = []
        self.starts: dict[tuple, int] = {}

    def start(self, subject: Subject, start_ms: int) -> int:
        numbers = {}
        for key in subject.key_per_level():
            if key is not None:
                self.starts[key] = self.starts.get(key, 0) + 1
                numbers[key] = self.starts[key]
        self.runs.append(NaiveRun(subject, start_ms, numbers))
        return len(self.runs) - 1

    def finish(self, run: int, duration_s: float, *, observed: bool) -> None:
        self.runs[run].log_s = min(max(log(max(duration_s, 1.0)), 0.0), LOG_S_MAX)
        self.runs[run].observed = observed

    def hazards(self, subject: Subject, now_ms: int, prior: list[float]) -> list[list[list[float]]]:
        """(level, memory, bin)."""
        chained: list[list[list[float]]] = []
        for level in range(len(LEVELS)):
            key = subject.key_per_level()[level]
            above = chained[-1] if chained else [prior] * len(HALF_LIVES)
            chained.append([self._level(key, scale, above[scale], now_ms) for scale in range(len(HALF_LIVES))])
        return chained

    def _level(self, key: tuple | None, scale: int, above: list[float], now_ms: int) -> list[float]:
        if key is None or key not in self.starts:
            return list(above)
        ends, reached = [0.0] * BINS, [0.0] * BINS
        for run in self.runs:
            if key not in run.numbers:
                continue
            weight = 0.5 ** ((self.starts[key] - run.numbers[key]) / HALF_LIVES[scale])
            log_s = run.log_s if run.log_s is not None else log(max(1.0, (now_ms - run.start_ms) / 1000.0))
            place = min(log_s, LOG_S_MAX) / BIN_WIDTH
            last = min(int(place), BINS - 1)
            for index in range(last):
                reached[index] += weight
            reached[last] += weight if run.observed else weight * min(place - last, 1.0)
            if run.observed:
                ends[last] += weight
        return [
            (ends[index] + SHRINKAGE_WEIGHT * above[index]) / (reached[index] + SHRINKAGE_WEIGHT)
            for index in range(BINS)
        ]


def naive_quantile(hazard: list[float], share: float, survived_log_s: float = 0.0) -> float:
    """By walking in a thousand small steps per bin."""
    steps = 1_000
    survival, place = 1.0, survived_log_s
    while place < LOG_S_MAX:
        index = min(int(place / BIN_WIDTH), BINS - 1)
        survival *= (1.0 - min(hazard[index], 0.999_999)) ** (1.0 / steps)
        place += BIN_WIDTH / steps
        if 1.0 - survival >= share:
            return place
    return LOG_S_MAX

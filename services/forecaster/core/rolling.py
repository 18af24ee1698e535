"""Past runs replayed in time order, as the forecaster would have met them: training rows, scores, and the history they leave.

Owns honesty: at each submit only what had *ended* by then is known, and what was still running counts as a lower bound.
Refuses: models (an argument), files. Read next: `history.py`, `features.py`; `shell/training.py` uses it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import log

import numpy as np
from numpy.typing import NDArray

from services.forecaster.core.features import GIVEN, NAMES, batch_weights, feature_row, unknown_features
from services.forecaster.core.history import DurationHistory, Subject
from services.forecaster.core.prior import unknown_hazard
from services.forecaster.core.recent import BATCH_GAP_S

Array = NDArray[np.float64]

TELL_EVERY = 3_000
"""Moments between two words about progress: a few times a second."""
UNKNOWN_LOG_S = (log(1_200.0), log(20_000.0))
"""P50 and P90 of the simple rules before anything has ended."""
CENSORED_SHARES = (1 / 6, 1 / 2, 5 / 6)
"""A run still going on is trained on three times with a third of the weight: at these points of what may still come."""


@dataclass(frozen=True, slots=True)
class PastRuns:
    """Runs ordered by submit. `ended` False: `duration_s` is how long it had run when the record was cut.

    `wait_s`: between submit and start, `kind` and `what` of run, and the user's own `limit_s`, where the record tells.
    """

    submit_s: NDArray[np.int64]
    duration_s: Array
    ended: NDArray[np.bool_]
    gpus: NDArray[np.int64]
    team: tuple[str, ...]
    wait_s: Array | None = None
    what: tuple[str, ...] | None = None
    limit_s: Array | None = None
    kind: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.submit_s)

    def subject(self, row: int) -> Subject:
        team, gpus = self.team[row], int(self.gpus[row])
        if self.what is None:
            return Subject(team=team, gpus=gpus)
        kind = "run" if self.kind is None else self.kind[row]
        return Subject(team=team, gpus=gpus, kind=kind, user=team, what=self.what[row])

    def start_s(self) -> Array:
        submit_s = self.submit_s.astype(np.float64)
        return submit_s if self.wait_s is None else submit_s + self.wait_s

    def end_s(self) -> Array:
        return self.start_s() + self.duration_s

    def log_s(self) -> Array:
        return np.log(np.maximum(self.duration_s, 1.0))

    def limit_of(self, row: int) -> float | None:
        """None where the record has none."""
        if self.limit_s is None or not np.isfinite(self.limit_s[row]):
            return None
        return float(self.limit_s[row])

    def places(self) -> Array:
        """Per run how many of its batch (same key, submitted within ten minutes of the one before) came first."""
        last: dict[Subject, tuple[int, int]] = {}
        result = np.zeros(len(self))
        for row in range(len(self)):
            subject, submit_s = self.subject(row), int(self.submit_s[row])
            before_s, place = last.get(subject, (submit_s, -1))
            place = place + 1 if submit_s - before_s <= BATCH_GAP_S else 0
            last[subject] = (submit_s, place)
            result[row] = place
        return result


@dataclass(slots=True)
class Replayed:
    """`rows`: (runs, 22) features at submit. `places`: of the runs in their batches. `running_at`: per cut (rows still running,
    their conditional log seconds)."""

    rows: Array
    history: DurationHistory
    places: Array
    running_at: dict[int, tuple[NDArray[np.int64], Array]] = field(default_factory=dict)

    def base(self, column: int) -> Array:
        """log P50 (0) or log P90 (1) by history alone."""
        return self.rows[:, GIVEN + column]


def replay(
    runs: PastRuns, cuts_s: tuple[int, ...] = (), tell: Callable[[float], None] = lambda share: None
) -> Replayed:
    """Replay all runs; at each of the ordered `cuts_s` note what was running and how long it might still last.

    `tell` hears now and then which share is done.
    """
    history = DurationHistory()
    prior = unknown_hazard()
    rows = np.full((len(runs), len(NAMES)), np.nan)
    result = Replayed(rows, history, runs.places())
    going: dict[int, int] = {}
    waiting_cuts = list(reversed(cuts_s))
    moments = in_order(runs)
    for number, (time_s, moment, row) in enumerate(moments):
        if number % TELL_EVERY == 0:
            tell(number / len(moments))
        while waiting_cuts and waiting_cuts[-1] <= time_s:
            cut_s = waiting_cuts.pop()
            result.running_at[cut_s] = _running(runs, history, going, prior, cut_s)
        now_ms = int(time_s) * 1000
        subject = runs.subject(row)
        if moment is Moment.SUBMIT:
            view = history.view(subject, now_ms, prior)
            rows[row] = feature_row(unknown_features(subject.gpus, runs.limit_of(row)), view)
        elif moment is Moment.START:
            going[row] = history.start(subject, now_ms)
        else:
            history.finish(going.pop(row), float(runs.duration_s[row]), observed=bool(runs.ended[row]))
    for cut_s in reversed(waiting_cuts):
        result.running_at[cut_s] = _running(runs, history, going, prior, cut_s)
    return result


def training_rows(runs: PastRuns, replayed: Replayed, cut_s: int, column: int) -> tuple[Array, Array, Array]:
    """(features, log seconds above history's quantile, weights) of what was known at a cut of the replay."""
    known = (runs.end_s() <= cut_s) & runs.ended
    done = np.flatnonzero(known)
    running, guesses = replayed.running_at[cut_s]
    rows = np.concatenate([done] + [running] * len(CENSORED_SHARES))
    targets = np.concatenate([runs.log_s()[done], *guesses.T])
    weights = np.concatenate([np.ones(len(done)), np.full(guesses.size, 1.0 / len(CENSORED_SHARES))])
    weights *= batch_weights(replayed.places[rows])
    return replayed.rows[rows], targets - replayed.base(column)[rows], weights


class Moment(IntEnum):
    """What happens to a run; of one second, ends come first: what had ended was known."""

    END = 0
    SUBMIT = 1
    START = 2


def in_order(runs: PastRuns) -> list[tuple[float, Moment, int]]:
    """All moments of all runs in time order; a run that starts at once starts before the next is submitted."""
    start_s, end_s = runs.start_s(), runs.end_s()
    moments: list[tuple[float, bool, int, Moment]] = []
    for row in range(len(runs)):
        moments.append((float(end_s[row]), False, row, Moment.END))
        moments.append((float(runs.submit_s[row]), True, row, Moment.SUBMIT))
        moments.append((float(start_s[row]), True, row, Moment.START))
    moments.sort()
    return [(time_s, moment, row) for time_s, _, row, moment in moments]


def _running(
    runs: PastRuns, history: DurationHistory, going: dict[int, int], prior: Array, cut_s: int
) -> tuple[NDArray[np.int64], Array]:
    rows = np.array(sorted(going), np.int64)
    start_s = runs.start_s()
    guesses = np.zeros((len(rows), len(CENSORED_SHARES)))
    for place, row in enumerate(rows):
        elapsed_s = float(cut_s - start_s[row])
        view = history.view(runs.subject(int(row)), cut_s * 1000, prior, skipped=going[int(row)])
        for column, share in enumerate(CENSORED_SHARES):
            guesses[place, column] = max(view.log_quantile(share, survived_s=elapsed_s), log(max(elapsed_s, 1.0)))
    return rows, guesses


@dataclass(frozen=True, slots=True)
class Score:
    """Of log-duration forecasts: pinball = P50 + P90, factor = median of max(actual ÷ P50, P50 ÷ actual)."""

    runs: int
    pinball: float
    factor: float
    coverage: float

    @classmethod
    def of(cls, actual: Array, log_p50: Array, log_p90: Array) -> Score:
        return cls(
            runs=len(actual),
            pinball=round(float(_pinball(0.5, actual - log_p50) + _pinball(0.9, actual - log_p90)), 4),
            factor=round(float(np.exp(np.median(np.abs(actual - log_p50)))), 3),
            coverage=round(float((actual <= log_p90).mean()), 4),
        )


def _pinball(share: float, miss: Array) -> float:
    return float(np.maximum(share * miss, (share - 1.0) * miss).mean())


def keyed_history(
    runs: PastRuns, keys: Sequence[Hashable] | None = None, *, runs_of_key_min: int = 5
) -> tuple[Array, Array]:
    """The rule to beat: P50 and P90 of all ended runs of the same key (the finest one), of all runs below `runs_of_key_min`."""
    by_key: dict[Hashable, list[float]] = {}
    everything: list[float] = []
    log_s = runs.log_s()
    p50, p90 = np.zeros(len(runs)), np.zeros(len(runs))
    for _, moment, row in in_order(runs):
        key = runs.subject(row) if keys is None else keys[row]
        if moment is Moment.END and runs.ended[row]:
            insort(by_key.setdefault(key, []), float(log_s[row]))
            insort(everything, float(log_s[row]))
        if moment is not Moment.SUBMIT:
            continue
        own = by_key.get(key, [])
        sample = own if len(own) >= runs_of_key_min else everything
        p50[row], p90[row] = (quantile_of(sample, 0.5), quantile_of(sample, 0.9)) if sample else UNKNOWN_LOG_S
    return p50, p90


def quantile_of(ordered: list[float], share: float) -> float:
    """Of a sorted list that is not empty, between its neighbours."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

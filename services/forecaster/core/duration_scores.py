"""How good forecasts of durations were, beside the simple rules: overall, per month, per size, and for short jobs.

Owns: the rules to beat, and the groups that P90 must be right in. Pure: arrays in, numbers out. Refuses: files, models. Read next:
`rolling.py` (what was known when), `demand_scores.py` (the same for demand).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from services.forecaster.core.history import Subject
from services.forecaster.core.rolling import (
    UNKNOWN_LOG_S,
    Array,
    Moment,
    PastRuns,
    Score,
    in_order,
    keyed_history,
    quantile_of,
)
from services.forecaster.core.survival import DURATION_S_MAX

LAST_RUNS = 20
"""The short memory of the rule "same key, last 20"."""
RUNS_OF_KEY_MIN = 5
SHORT_S = 600.0
"""A job below ten minutes is short: what debuggers wait for. Predicted short: P50 below it."""
COVERAGE_RANGE = (0.88, 0.92)
LARGE_GROUP = 1_000
"""Runs from which chance alone hardly moves coverage out of `COVERAGE_RANGE`; smaller groups get a 99 % interval."""
NORMAL_99 = 2.576
GLOBAL = "one global history"

Forecasts = tuple[Array, Array]
Chosen = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Covered:
    """P90 coverage of one group. `right`: inside the range expected of an honest P90 for so many runs."""

    name: str
    runs: int
    coverage: float
    right: bool


@dataclass(frozen=True, slots=True)
class ShortJobs:
    """Recognition of jobs below ten minutes. None where there was nothing to recognise or nothing was predicted."""

    runs: int
    recall: float | None
    precision: float | None


Key = tuple[str | int | float, ...] | Subject


def simple_rules(runs: PastRuns) -> dict[str, Forecasts]:
    """log P50 and log P90 of the rules to beat, by name: with the finest key, and with coarser ones where these differ."""
    rules = _rules_of(runs, "same key", [runs.subject(row) for row in range(len(runs))])
    if runs.what is not None:
        who_and_size = list(zip(runs.team, runs.gpus.tolist(), strict=True))
        coarser: list[tuple[str, list[Key]]] = [("same user and size", list(who_and_size))]
        if runs.limit_s is not None and np.isfinite(runs.limit_s).any():
            of_limit = list(zip(runs.team, runs.gpus.tolist(), runs.limit_s.tolist(), strict=True))
            coarser.append(("same user, size and limit", list(of_limit)))
            limit = np.log(np.clip(runs.limit_s, 1.0, DURATION_S_MAX))
            rules["the user's limit"] = (limit, limit)
        for name, keys in coarser:
            found = _rules_of(runs, name, keys)
            del found[GLOBAL]
            rules |= found
    return rules


def _rules_of(runs: PastRuns, name: str, keys: Sequence[Key]) -> dict[str, Forecasts]:
    everything: list[float] = []
    newest: dict[Key, deque[float]] = {}
    log_s = runs.log_s()
    all_runs, last_runs = np.tile(UNKNOWN_LOG_S, (len(runs), 1)), np.tile(UNKNOWN_LOG_S, (len(runs), 1))
    for _, moment, row in in_order(runs):
        key = keys[row]
        if moment is Moment.END and runs.ended[row]:
            insort(everything, float(log_s[row]))
            newest.setdefault(key, deque(maxlen=LAST_RUNS)).append(float(log_s[row]))
        if moment is not Moment.SUBMIT or not everything:
            continue
        all_runs[row] = quantile_of(everything, 0.5), quantile_of(everything, 0.9)
        own = sorted(newest.get(key, ()))
        enough = len(own) >= RUNS_OF_KEY_MIN
        last_runs[row] = (quantile_of(own, 0.5), quantile_of(own, 0.9)) if enough else all_runs[row]
    return {
        GLOBAL: (all_runs[:, 0], all_runs[:, 1]),
        f"{name}, all history": keyed_history(runs, keys, runs_of_key_min=RUNS_OF_KEY_MIN),
        f"{name}, last 20": (last_runs[:, 0], last_runs[:, 1]),
    }


def capped(runs: PastRuns, log_p50: Array, log_p90: Array) -> Forecasts:
    """Between a second and the user's own limit, where there is one."""
    ceiling = np.inf if runs.limit_s is None else np.log(np.maximum(runs.limit_s, 1.0))
    p50 = np.minimum(np.maximum(log_p50, 0.0), ceiling)
    return p50, np.minimum(np.maximum(log_p90, p50), ceiling)


def score(runs: PastRuns, forecasts: Forecasts, chosen: Chosen) -> Score:
    """Of the chosen runs."""
    return Score.of(runs.log_s()[chosen], forecasts[0][chosen], forecasts[1][chosen])


def coverage_by(runs: PastRuns, log_p90: Array, chosen: Chosen, groups: Sequence[str]) -> list[Covered]:
    """P90 coverage per group of the chosen runs; `groups` names the group of every run."""
    covered = runs.log_s() <= log_p90
    members: dict[str, list[int]] = {}
    for row in np.flatnonzero(chosen):
        members.setdefault(groups[int(row)], []).append(int(row))
    return [_covered(name, covered[rows]) for name, rows in members.items()]


def short_jobs(runs: PastRuns, log_p50: Array, chosen: Chosen) -> ShortJobs:
    """How well jobs below ten minutes are told from the others."""
    short = (runs.duration_s < SHORT_S) & chosen
    said = (log_p50 < log(SHORT_S)) & chosen
    right = float((short & said).sum())
    return ShortJobs(
        runs=int(short.sum()),
        recall=round(right / float(short.sum()), 4) if short.any() else None,
        precision=round(right / float(said.sum()), 4) if said.any() else None,
    )


def _covered(name: str, covered: NDArray[np.bool_]) -> Covered:
    share, count = float(covered.mean()), len(covered)
    low, high = COVERAGE_RANGE
    if count < LARGE_GROUP:
        reach = NORMAL_99 * sqrt(0.09 / count)
        low, high = 0.9 - reach, 0.9 + reach
    return Covered(name, count, round(share, 4), low <= share <= high)

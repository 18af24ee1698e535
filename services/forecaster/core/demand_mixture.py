"""Which rules to believe about one load: each is tried at moments of the last three days, and the lately better ones count more.

A combination of experts whose record fades: a rule's loss at past moments, the newer the heavier, is compared with the other
rules' and with what it was on other loads (that weighs like one trial, so a new application starts with what holds for others; where
a level has just shifted, with what held after other shifts). P50 is the weighted median of the rules: one absurd rule moves it little.
P90 is the weighted mean of four spreads above it, weighed by their own record at the 90 % quantile; one of them is what P50's own
misses would have needed. Separate for the next 2, 6, 12 and 24 hours. Everything follows from the observed load alone.
Owns: weights and their priors. Refuses: the rules themselves (`demand_rules.py`), clocks, state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from services.forecaster.core.demand_rules import P90, Grid, Said, Series, quantiles

Steps = NDArray[np.int64]

DISTANCES_S = (0, 7_200, 21_600, 43_200, 86_400)
"""Rules are weighed separately between these: the level helps near, the days far."""
TRIAL_PERIOD_S = 21_600
TRIALS = 12
"""A moment every six hours of the last three days; a fourth day changed losses by less than a percent, and costs time."""
RECORD_HALF_LIFE_S = 129_600
"""A day and a half; with three, sums were up to 3 % worse."""
PRIOR_TRIALS = 1.0
"""What is known of other loads weighs like this many fresh trials."""
SHARPNESS_P50, SHARPNESS_P90 = 4.0, 3.0
"""Weight = loss to the power of minus this: a fifth less loss is 2.4 times (2 times) the weight."""
LOSS_FLOOR = 0.02
"""Added to relative losses, so that a rule that was right to the last digit doesn't silence the others."""
PRIOR_P50 = np.array(
    [
        [0.97, 0.90, 0.87, 0.87],
        [0.96, 0.88, 0.86, 0.89],
        [1.16, 1.10, 1.08, 1.21],
        [0.95, 0.86, 0.86, 0.89],
        [1.20, 1.68, 1.88, 1.37],
        [1.26, 1.18, 1.05, 1.17],
        [0.72, 0.79, 0.85, 0.89],
        [0.79, 0.81, 0.82, 0.84],
        [0.79, 0.84, 0.85, 0.89],
        [1.00, 0.91, 0.86, 0.94],
        [0.86, 0.98, 1.07, 1.06],
        [0.84, 0.79, 0.80, 0.92],
        [0.81, 0.82, 0.82, 0.89],
    ]
)
"""Loss of each rule (rows) by distance, relative to the mean of many rules: on days 2–5 of three ServeGen models and on the first half of
hourly spot demand."""
PRIOR_DEEP = np.array(
    [
        [1.28, 1.13, 1.01, 0.99],
        [1.26, 1.09, 0.98, 0.97],
        [1.18, 1.04, 0.93, 0.92],
        [1.32, 1.16, 1.04, 1.02],
        [0.81, 1.05, 1.41, 1.23],
        [1.13, 1.11, 1.03, 1.11],
        [0.69, 0.95, 1.01, 1.02],
        [0.83, 0.87, 0.93, 0.94],
        [0.80, 0.95, 0.97, 0.97],
        [1.09, 1.02, 0.94, 0.97],
        [0.84, 0.90, 1.01, 1.03],
        [0.96, 0.90, 0.86, 0.92],
        [0.81, 0.83, 0.86, 0.90],
        [0.65, 0.75, 0.82, 0.90],
        [0.65, 0.74, 0.81, 0.87],
        [0.65, 0.74, 0.81, 0.86],
        [0.79, 0.79, 0.80, 0.86],
        [0.97, 0.89, 0.84, 0.88],
    ]
)
"""The same where two weeks are known, the deep rules (`demand_deep.py`) last: on the first half of hourly spot demand."""
PRIOR_TRIALS_DEEP = 3.0
PRIOR_DOWN = np.array(
    [
        [2.02, 1.67, 1.20, 1.58],
        [1.67, 1.19, 1.04, 0.69],
        [1.99, 1.51, 1.15, 1.38],
        [1.82, 1.61, 1.19, 1.47],
        [0.32, 0.69, 1.25, 0.63],
        [0.76, 0.77, 1.00, 0.79],
        [0.51, 1.00, 1.12, 1.46],
        [0.41, 0.66, 0.78, 0.97],
        [0.57, 0.83, 0.97, 0.68],
        [1.22, 1.09, 1.04, 1.01],
        [0.27, 0.57, 0.71, 0.57],
        [1.00, 0.85, 0.85, 0.97],
        [0.42, 0.56, 0.70, 0.78],
    ]
)
PRIOR_UP = np.array(
    [
        [1.13, 0.83, 0.82, 0.91],
        [1.00, 0.93, 0.95, 0.85],
        [1.09, 0.85, 0.83, 0.82],
        [1.20, 0.88, 0.87, 1.04],
        [0.55, 1.07, 1.22, 0.80],
        [0.88, 0.92, 1.00, 0.90],
        [0.90, 0.86, 0.86, 1.04],
        [0.98, 1.04, 0.84, 0.97],
        [0.92, 0.95, 0.97, 0.85],
        [0.89, 0.79, 0.85, 0.91],
        [1.28, 1.88, 1.94, 2.01],
        [1.12, 0.94, 0.88, 0.94],
        [1.06, 1.05, 0.98, 0.96],
    ]
)
"""The same where the level had just fallen or risen; for the deep rules what holds otherwise."""
SHIFT_TRIALS = 4.0
"""After a shift, what held after other shifts weighs like this many fresh trials: the record is of another level."""
PRIOR_P90 = np.array(
    [[0.79, 0.76, 0.73, 0.76], [0.94, 0.92, 0.93, 0.94], [1.01, 0.96, 0.95, 0.97], [0.77, 0.79, 0.80, 0.83]]
)
MISS_DAYS = 3
"""Days of misses that P90 rests on."""
COLD_SHARE = 0.5
"""Of P50, while nothing is known of its misses."""


@dataclass(frozen=True, slots=True)
class Record:
    """At n moments: `relative` (n, rules, distances) losses, their mean over the rules is 1, or all 0; `trials` (n, 1, distances)."""

    relative: Series
    trials: Series

    @property
    def of_deep(self) -> bool:
        """Whether the deep rules are among them."""
        return self.relative.shape[1] == len(PRIOR_DEEP)


@dataclass(frozen=True, slots=True)
class Belief:
    """`rules`: their record; `spreads`: (spreads, distances) weights for P90; `own`: 90 % of P50's misses were below this, or NaN."""

    rules: Record
    spreads: Series
    own: float


@dataclass(frozen=True, slots=True)
class Trials:
    """What the rules said at past moments. `age`: steps from each to now; `came`: (n, day), NaN where it isn't known yet, or a gap."""

    age: Steps
    said: Said
    came: Series


def believe(grid: Grid, trials: Trials) -> Belief:
    """Weights from a record of trials. P50 of each trial is made as it would have been then, from the trials before it."""
    since = trials.age.reshape(1, -1) - trials.age.reshape(-1, 1)
    loss = _by_distance(grid, 0.5 * np.abs(trials.said.p50 - trials.came[:, np.newaxis]))
    p50 = middle(grid, _rule_weights(_record(grid, since, loss), trials.said.shift), trials.said.p50)
    misses = trials.came - p50
    high = p50[:, np.newaxis] + spreads(trials.said.above, _own(grid, since, misses), p50)
    miss = trials.came[:, np.newaxis] - high
    loss90 = _by_distance(grid, np.maximum(P90 * miss, (P90 - 1.0) * miss))
    now = trials.age.reshape(1, -1)
    return Belief(
        rules=_record(grid, now, loss),
        spreads=_weights(_record(grid, now, loss90), PRIOR_P90, PRIOR_TRIALS, SHARPNESS_P90)[0],
        own=float(_own(grid, now, misses)[0]),
    )


def first_belief() -> Belief:
    """Before any trial: what holds for other loads."""
    rules, spreads = (
        Record(np.zeros((1, *prior.shape)), np.zeros((1, 1, prior.shape[1]))) for prior in (PRIOR_P50, PRIOR_P90)
    )
    return Belief(rules, _weights(spreads, PRIOR_P90, PRIOR_TRIALS, SHARPNESS_P90)[0], float("nan"))


def foretold(grid: Grid, belief: Belief, said: Said) -> tuple[Series, Series]:
    """P50 and P90 of one moment (`said` of n = 1) by these weights."""
    p50 = middle(grid, _rule_weights(belief.rules, said.shift), said.p50)
    above = spreads(said.above, np.array([belief.own]), p50)[0]
    wide = (belief.spreads[:, _distance(grid)] * above).sum(axis=0)
    return p50[0], p50[0] + wide


def middle(grid: Grid, weights: Series, said: Series) -> Series:
    """Weighted median over the rules: `weights` (n, rules, distances), `said` (n, rules, day)."""
    result = np.empty((said.shape[0], said.shape[2]))
    _middle(np.ascontiguousarray(weights), np.ascontiguousarray(said), _distance(grid), result)
    return result


@njit(cache=True)
def _middle(weights: Series, said: Series, distance: Steps, result: Series) -> None:
    """Each rule's place is the middle of its weight; between two places the value is a straight line."""
    rules = said.shape[1]
    values, places = np.empty(rules), np.empty(rules)
    order = np.empty(rules, np.int64)
    for moment in range(said.shape[0]):
        for step in range(said.shape[2]):
            for rule in range(rules):  # a dozen: sorted as they are put in, equal ones in their order
                value, at = said[moment, rule, step], rule
                while at > 0 and values[at - 1] > value:
                    values[at], order[at] = values[at - 1], order[at - 1]
                    at -= 1
                values[at], order[at] = value, rule
            passed, high = 0.0, 0
            for at in range(rules):
                share = weights[moment, order[at], distance[step]]
                passed += share
                places[at] = passed - 0.5 * share
                high += places[at] < 0.5
            high = min(high, rules - 1)
            low = max(high - 1, 0)
            part = (0.5 - places[low]) / max(places[high] - places[low], 1e-12)
            part = min(max(part, 0.0), 1.0)
            result[moment, step] = values[low] + (values[high] - values[low]) * part


def spreads(above: Series, own: Series, p50: Series) -> Series:
    """(n, spreads, day) above P50. Where no miss is known yet, half of P50 or what about the same time had above its middle."""
    unknown = np.fmax(COLD_SHARE * p50, above[:, -1])
    first = np.where(np.isnan(own).reshape(-1, 1), unknown, np.maximum(own, 0.0).reshape(-1, 1))
    together = np.concatenate([first[:, np.newaxis], above], axis=1)
    return np.where(np.isnan(together), first[:, np.newaxis], together)


def _own(grid: Grid, since: Steps, misses: Series) -> Series:
    """(moments,): P90 of the misses known at each moment. `since`: (moments, trials) steps from each trial to each moment."""
    ahead = np.arange(grid.day).reshape(1, 1, -1)
    known = (ahead < since[:, :, np.newaxis]) & (since <= MISS_DAYS * grid.day)[:, :, np.newaxis]
    heard = np.where(known, misses[np.newaxis], np.nan).reshape(len(since), -1)
    return quantiles(heard, (P90,))[0]


def _record(grid: Grid, since: Steps, loss: Series) -> Record:
    """At each moment, from losses (trials, rules, distances) whose outcome was known by then."""
    ends = np.array([max(1, end_s // grid.step_s) for end_s in DISTANCES_S[1:]])
    late = since[:, :, np.newaxis] - ends
    known = (late >= 0) & ~np.isnan(loss[:, 0])[np.newaxis]
    fresh = np.where(known, 0.5 ** (np.maximum(late, 0) * grid.step_s / RECORD_HALF_LIFE_S), 0.0)
    total = np.einsum("mtd,trd->mrd", fresh, np.where(np.isnan(loss), 0.0, loss))
    return Record(total / np.maximum(total.mean(axis=1, keepdims=True), 1e-9), fresh.sum(axis=1)[:, np.newaxis])


def _rule_weights(record: Record, shift: Steps) -> Series:
    """(moments, rules, distances): after a shift of level other rules hold than before, and the record says less."""
    prior, trials = (PRIOR_DEEP, PRIOR_TRIALS_DEEP) if record.of_deep else (PRIOR_P50, PRIOR_TRIALS)
    ordinary = _weights(record, prior, trials, SHARPNESS_P50)
    if not shift.any():
        return ordinary
    shifted = [np.concatenate([one, prior[len(one) :]]) for one in (PRIOR_DOWN, PRIOR_UP)]
    down, up = (_weights(record, one, SHIFT_TRIALS, SHARPNESS_P50) for one in shifted)
    turn = shift.reshape(-1, 1, 1)
    return np.where(turn < 0, down, np.where(turn > 0, up, ordinary))


def _weights(record: Record, prior: Series, prior_trials: float, sharpness: float) -> Series:
    together = (record.relative * record.trials + prior_trials * prior) / (record.trials + prior_trials)
    weights = (together + LOSS_FLOOR) ** -sharpness
    return weights / weights.sum(axis=1, keepdims=True)


def _by_distance(grid: Grid, loss: Series) -> Series:
    """(n, rules, day) → mean over the known steps of each distance, NaN where none is known."""
    distance, known = _distance(grid), ~np.isnan(loss)
    member = (distance.reshape(-1, 1) == np.arange(len(DISTANCES_S) - 1)).astype(np.float64)
    count = known.astype(np.float64) @ member
    return np.where(count > 0, (np.where(known, loss, 0.0) @ member) / np.maximum(count, 1.0), np.nan)


@lru_cache(maxsize=16)
def _distance(grid: Grid) -> Steps:
    """Which distance each step of a day ahead belongs to."""
    return np.searchsorted(np.array(DISTANCES_S[1:-1]), np.arange(grid.day) * grid.step_s, side="right")

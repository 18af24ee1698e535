"""Demand forecasts with a rolling origin, 24 h ahead, beside the simple rules: who is closer, and how often P90 covers.

Owns: the rules to beat, the days at whose beginning a forecast is made, and the loss (quantile loss of P50 and P90 ÷ load).
A window in which nobody had any load is a gap of the record, neither learnt from nor scored. Pure. Refuses: files.
Read next: `demand.py`, `duration_scores.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.forecaster.core.demand import DemandHistory
from services.forecaster.core.demand_rules import DAY_S

Series = NDArray[np.float64]

RULES = ("same time, median of 5 days", "seasonal naive", "last value")
OURS = "ours"
DAYS_BACK = 5
TYPICAL_GPUS = 10.0
"""Load is measured in units that make a client's past mean this many GPUs, because rates of unknown cost have no size."""
GPUS_MAX = 1e9
"""No cluster is known here, so nothing caps."""
ERROR_DAYS = 5
"""Days back over which a simple rule's own errors make its P90."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Load per client and window, NaN where the record has a gap. `first`: index of the first window that is to be forecast."""

    window_s: int
    start_s: int
    clients: tuple[str, ...]
    load: Series
    first: int

    @property
    def day(self) -> int:
        return DAY_S // self.window_s

    def origins(self, warm_up_days: int) -> list[int]:
        """Daily, from the first window to be forecast or the end of the warm-up, whichever is later."""
        begin = max(self.first, warm_up_days * self.day)
        return list(range(begin, self.load.shape[1], self.day))


@dataclass(frozen=True, slots=True)
class DayAhead:
    """One forecast: P50 and P90 of the windows from `origin` on."""

    client: int
    origin: int
    p50: Series
    p90: Series


@dataclass(frozen=True, slots=True)
class DemandScore:
    """`loss`: (quantile loss of P50 + of P90) ÷ load. `windows`: how many were scored."""

    windows: int
    load: float
    loss: float
    coverage: float


def forecast_days(rates: Rates, client: int, origins: Sequence[int], done: Callable[[], None]) -> list[DayAhead]:
    """Our forecasts for one client; each knows only the windows before its origin."""
    load = rates.load[client]
    past = load[: origins[0]]
    mean = float(np.nanmean(past)) if (~np.isnan(past)).any() else 0.0
    unit = mean / TYPICAL_GPUS if mean > 0 else 1.0
    history = DemandHistory(rates.window_s)
    window_ms, seen, days = rates.window_s * 1000, max(0, origins[0] - 10 * rates.day), []
    for origin in origins:
        for index in range(seen, origin):
            if load[index] == load[index]:
                history.observe((index + 1) * window_ms, float(rates.window_s), float(load[index]), unit)
        seen = origin
        steps = min(rates.day, len(load) - origin)
        if history.empty:
            p50 = p90 = np.zeros(steps)
        else:
            said = history.forecast(origin * window_ms, steps, GPUS_MAX)
            p50, p90 = np.array(said.p50) * unit, np.array(said.p90) * unit
        days.append(DayAhead(client, origin, p50, p90))
        done()
    return days


def rule_days(rates: Rates, client: int, origins: Sequence[int], rule: str) -> list[DayAhead]:
    """What a simple rule says. Its P90 is its P50 plus the P90 of the errors it made on the days before."""
    load, days = rates.load[client], []
    for origin in origins:
        steps = min(rates.day, len(load) - origin)
        p50 = _rule(rates, load, origin, steps, rule)
        errors = []
        for back in range(1, ERROR_DAYS + 1):
            then = origin - back * rates.day
            if then >= rates.day:
                errors.append(load[then : then + rates.day] - _rule(rates, load, then, rates.day, rule))
        known = np.concatenate(errors) if errors else np.zeros(0)
        known = known[~np.isnan(known)]
        wide = max(0.0, float(np.quantile(known, 0.9))) if len(known) else 0.0
        days.append(DayAhead(client, origin, p50, p50 + wide))
    return days


def score_days(rates: Rates, days: Sequence[DayAhead]) -> DemandScore:
    """Over all windows of these forecasts that have an observation."""
    loss = load = covered = 0.0
    windows = 0
    for day in days:
        actual = rates.load[day.client, day.origin : day.origin + len(day.p50)]
        known = ~np.isnan(actual)
        came, p50, p90 = actual[known], day.p50[known], day.p90[known]
        windows += len(came)
        load += float(came.sum())
        loss += float(_quantile_loss(0.5, came - p50) + _quantile_loss(0.9, came - p90))
        covered += float((came <= p90 + 1e-9).sum())
    return DemandScore(
        windows=windows,
        load=round(load, 3),
        loss=round(loss / load, 5) if load > 0 else 0.0,
        coverage=round(covered / windows, 4) if windows else 0.0,
    )


def _quantile_loss(share: float, miss: Series) -> float:
    return float(np.maximum(share * miss, (share - 1.0) * miss).sum())


def _rule(rates: Rates, load: Series, origin: int, steps: int, rule: str) -> Series:
    """P50 of a rule at an origin; where it has nothing to say, the last known value."""
    before = load[:origin]
    known = before[~np.isnan(before)]
    last = np.full(steps, float(known[-1]) if len(known) else 0.0)
    if rule == "last value":
        return last
    days_back = 1 if rule == "seasonal naive" else DAYS_BACK
    starts = [origin - back * rates.day for back in range(1, days_back + 1) if back * rates.day <= origin]
    if not starts:
        return last
    same_time = np.stack([load[start : start + steps] for start in starts])
    ordered = np.sort(same_time, axis=0)  # NaN last
    count = (~np.isnan(same_time)).sum(axis=0)
    place = np.maximum(count - 1, 0)
    columns = np.arange(steps)
    median = (ordered[place // 2, columns] + ordered[(place + 1) // 2, columns]) / 2
    return np.where(count > 0, median, last)

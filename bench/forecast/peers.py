"""What AutoETS, MSTL and Theta of statsforecast say a day ahead, at the same origins, knowing the same past.

Owns: filling gaps (these methods take none) and the amount of past they get. Their P90 is the upper end of the 80 % interval.
A development dependency of the bench alone. Read next: `__main__.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from services.forecaster.core.demand_scores import DayAhead, Rates, Series

PAST_DAYS = 28
"""Bounds the time; the ten-minute traces are shorter anyway."""
HOURS_DAY = 24
PEERS = ("AutoETS", "MSTL", "Theta")


def peer_days(
    rates: Rates, clients: Sequence[int], origins: Sequence[int], peer: str, tell: Callable[[str], None]
) -> list[DayAhead]:
    """Forecasts of one method for these clients."""
    days = []
    for number, client in enumerate(clients):
        tell(f"{peer}: client {number + 1} of {len(clients)}")
        for origin in origins:
            steps = min(rates.day, rates.load.shape[1] - origin)
            past = filled(rates.load[client, max(0, origin - PAST_DAYS * rates.day) : origin], rates.day)
            p50, p90 = _said(peer, past, rates.day, steps)
            days.append(DayAhead(client, origin, p50, p90))
    return days


def filled(load: Series, day: int) -> Series:
    """Without gaps: the same time a day before, else the value before, else zero."""
    result = load.copy()
    for index in np.flatnonzero(np.isnan(load)):
        before = result[index - day] if index >= day else np.nan
        result[index] = before if before == before else (result[index - 1] if index else 0.0)
    return result


def _said(peer: str, past: Series, day: int, steps: int) -> tuple[Series, Series]:
    if not len(past) or past.max() == past.min():
        level = np.full(steps, past[-1] if len(past) else 0.0)
        return level, level
    from statsforecast.models import MSTL, AutoETS, Theta

    # AutoETS has no season longer than a day of hours.
    models: dict[str, Callable[[], Any]] = {
        "AutoETS": lambda: AutoETS(season_length=day if day <= HOURS_DAY else 1),
        "MSTL": lambda: MSTL(season_length=day),
        "Theta": lambda: Theta(season_length=day),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = models[peer]().forecast(y=past, h=steps, level=[80])
    p50 = np.maximum(said["mean"], 0.0)
    return p50, np.maximum(said["hi-80"], p50)

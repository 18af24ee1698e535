"""What AutoETS, MSTL and Theta of statsforecast say a day ahead, at the same origins, knowing the same past.

Owns: filling gaps (these methods take none), the amount of past they get, and the cache: they never change, so each is run once
per client and its score kept beside the results, for as long as the load it was computed from is the same. Their P90 is the upper
end of the 80 % interval. A development dependency of the bench alone. Read next: `__main__.py`.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from services.forecaster.core.demand_scores import DayAhead, DemandScore, Rates, Series, score_days

PAST_DAYS = {"AutoETS": 14, "MSTL": 28, "Theta": 28}
"""Bounds the time; the ten-minute traces are shorter anyway, and exponential smoothing has forgotten what is older."""
HOURS_DAY = 24
PEERS = ("AutoETS", "MSTL", "Theta")


def peer_scores(
    name: str,
    rates: Rates,
    clients: Sequence[int],
    origins: Sequence[int],
    peers: Sequence[str],
    cached: PeerCache,
    budget_s: float,
    tell: Callable[[str], None],
) -> dict[str, dict[str, DemandScore]]:
    """Per client, the scores of the peers that are in the cache or that could be run within the budget, largest client first."""
    until_s = time.monotonic() + budget_s
    found: dict[str, dict[str, DemandScore]] = {}
    for place, client in enumerate(clients):
        for peer in peers:
            key = peer_key(name, peer, rates, client, origins)
            score = cached.get(key)
            if score is None and time.monotonic() < until_s:
                tell(f"{peer}: client {place + 1} of {len(clients)}")
                score = score_days(rates, peer_days(rates, client, origins, peer))
                cached.put(key, score)
            if score is not None:
                found.setdefault(rates.clients[client], {})[peer] = score
    return found


def peer_key(name: str, peer: str, rates: Rates, client: int, origins: Sequence[int]) -> str:
    """Trace, method, client, and a digest of what the score depends on."""
    whole = hashlib.sha256(np.ascontiguousarray(rates.load[client]).tobytes())
    whole.update(np.array([rates.window_s, *origins], np.int64).tobytes())
    return f"{name}/{peer}/{rates.clients[client]}/{whole.hexdigest()[:12]}"


class PeerCache:
    """Scores in a file, written after every client so that nothing is computed twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._scores: dict[str, DemandScore] = (
            msgspec.json.decode(path.read_bytes(), type=dict[str, DemandScore]) if path.exists() else {}
        )

    def get(self, key: str) -> DemandScore | None:
        return self._scores.get(key)

    def put(self, key: str, score: DemandScore) -> None:
        self._scores[key] = score
        lines = (
            f"{msgspec.json.encode(k).decode()}: {msgspec.json.encode(self._scores[k]).decode()}"
            for k in sorted(self._scores)
        )
        self._path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def peer_days(rates: Rates, client: int, origins: Sequence[int], peer: str) -> list[DayAhead]:
    """Forecasts of one method for one client."""
    days = []
    for origin in origins:
        steps = min(rates.day, rates.load.shape[1] - origin)
        past = filled(rates.load[client, max(0, origin - PAST_DAYS[peer] * rates.day) : origin], rates.day)
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
    if peer == "AutoETS" and day > HOURS_DAY:
        # It has no season longer than a day of hours: it gets means of hours, and what it says of an hour holds in it.
        windows = day // HOURS_DAY
        hours = past[len(past) % windows :].reshape(-1, windows).mean(axis=1)
        p50, p90 = _said(peer, hours, HOURS_DAY, -(-steps // windows))
        return p50.repeat(windows)[:steps], p90.repeat(windows)[:steps]
    from statsforecast.models import MSTL, AutoETS, Theta

    models: dict[str, Callable[[], Any]] = {
        "AutoETS": lambda: AutoETS(season_length=day),
        "MSTL": lambda: MSTL(season_length=day),
        "Theta": lambda: Theta(season_length=day),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = models[peer]().forecast(y=past, h=steps, level=[80])
    p50 = np.maximum(said["mean"], 0.0)
    return p50, np.maximum(said["hi-80"], p50)

"""What applications say they served: amounts per unit, how many requests failed, latency. Pure, and the same in any order.

Owns: one window as it was told, and sums over windows and applications. Counts are whole numbers and fractions are added exactly
(`fsum`), so no order of events or rows changes a figure. Percentiles can't be added: a P50 over windows is the median of the told
P50s, each counted once per request, and a P99 the value that the P99s of windows with 99 % of the requests kept to.
Refuses to guess: what was not told is in no figure. Read next: `account.py`, `report.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum

from schemas.demand import DemandObserved

REQUESTS_PER_S = "requests/s"
TOKENS_PER_S = "tokens/s"


@dataclass(frozen=True, slots=True)
class ServedWindow:
    """One window. `amounts`: per unit; `requests`: answered in all; `failed` None: not told, at most `requests` otherwise."""

    amounts: tuple[tuple[str, float], ...]
    requests: int = 0
    failed: int | None = None
    p50_s: float | None = None
    p99_s: float | None = None

    @property
    def order(self) -> tuple[tuple[tuple[str, float], ...], int, int, float, float]:
        """Of two that tell about the same window the larger one counts."""
        missing = -1
        told = [missing if one is None else one for one in (self.p50_s, self.p99_s)]
        return self.amounts, self.requests, missing if self.failed is None else self.failed, told[0], told[1]


@dataclass(frozen=True, slots=True)
class Served:
    """Over windows. `judged`: requests of windows that told failures; `p50s`, `p99s`: (seconds, requests) as they were told."""

    amounts: tuple[tuple[str, float], ...] = ()
    requests: int = 0
    judged: int = 0
    failed: int = 0
    p50s: tuple[tuple[float, int], ...] = ()
    p99s: tuple[tuple[float, int], ...] = ()

    @property
    def success(self) -> float | None:
        return (self.judged - self.failed) / self.judged if self.judged else None

    @property
    def p50_s(self) -> float | None:
        return weighted_quantile(self.p50s, 50)

    @property
    def p99_s(self) -> float | None:
        return weighted_quantile(self.p99s, 99)


NOTHING = Served()


def window_of(event: DemandObserved) -> ServedWindow:
    """Counts win over the mean load, which is all that many applications tell."""
    amounts = {event.unit: event.load * event.window_s}
    if event.requests is not None:
        amounts[REQUESTS_PER_S] = float(event.requests)
    if event.tokens is not None:
        amounts[TOKENS_PER_S] = float(event.tokens)
    requests = round(amounts.get(REQUESTS_PER_S, 0.0))
    return ServedWindow(
        tuple(sorted(amounts.items())),
        requests,
        None if event.requests_failed is None else min(event.requests_failed, requests),
        event.latency_p50_s,
        event.latency_p99_s,
    )


def sum_of_windows(windows: Iterable[ServedWindow]) -> Served:
    """One application over its windows."""
    return sum_of(
        Served(
            one.amounts,
            one.requests,
            0 if one.failed is None else one.requests,
            one.failed or 0,
            () if one.p50_s is None or not one.requests else ((one.p50_s, one.requests),),
            () if one.p99_s is None or not one.requests else ((one.p99_s, one.requests),),
        )
        for one in windows
    )


def sum_of(parts: Iterable[Served]) -> Served:
    """Several together; in any order the same."""
    parts = list(parts)
    amounts: dict[str, list[float]] = {}
    for part in parts:
        for unit, amount in part.amounts:
            amounts.setdefault(unit, []).append(amount)
    return Served(
        tuple(sorted((unit, fsum(each)) for unit, each in amounts.items())),
        sum(part.requests for part in parts),
        sum(part.judged for part in parts),
        sum(part.failed for part in parts),
        tuple(sorted(one for part in parts for one in part.p50s)),
        tuple(sorted(one for part in parts for one in part.p99s)),
    )


def weighted_quantile(values: Iterable[tuple[float, int]], percent: int) -> float | None:
    """The smallest value up to which lie `percent` of the weight; None of nothing."""
    ordered = sorted(values)
    whole = sum(weight for _, weight in ordered)
    below = 0
    for value, weight in ordered:
        below += weight
        if below * 100 >= whole * percent:
            return value
    return None

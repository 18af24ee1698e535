"""What is reported of many durations: the whole distribution, never a mean alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

SHARES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)


class Distribution(Struct, frozen=True, kw_only=True):
    """Milliseconds over `count` observations. `percentiles`: share → ms."""

    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    percentiles: dict[str, float]


def distribution(durations_ms: Sequence[float]) -> Distribution | None:
    """None if there is nothing to tell."""
    if not durations_ms:
        return None
    found = {f"{share:g}": round(float(np.percentile(durations_ms, share)), 3) for share in SHARES}
    return Distribution(
        count=len(durations_ms),
        p50_ms=found["50"],
        p90_ms=found["90"],
        p99_ms=found["99"],
        max_ms=round(max(durations_ms), 3),
        percentiles=found,
    )

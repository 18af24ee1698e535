"""Debug and notebook jobs: short, or left open. No fact tells which, so this is a survival curve, not a cost.

Owns: the day-one mixture. Seven in ten try something for minutes; the rest is kept for hours. As a hazard it falls with age and then rises:
a session that has outlived the short ones is expected to last for hours, not minutes. History of the same user takes over after
three runs, and re-forecasts of running ones are conditional on their age like all others. The numbers are ours, no trace tells which
jobs were notebooks.
"""

from __future__ import annotations

import numpy as np

from schemas.jobs import JobSpec
from services.forecaster.core.cards import Card
from services.forecaster.core.survival import BINS, Floats, lognormal_hazard

SPREAD = 1.5
SHORT_SHARE = 0.7
SHORT_MEDIAN_S, SHORT_SPREAD = 300.0, 1.2
LONG_MEDIAN_S, LONG_SPREAD = 4 * 3_600.0, 1.0


def parts_s(spec: JobSpec, gpus: int, card: Card) -> dict[str, float] | None:
    return None


def short_or_long_hazard() -> Floats:
    """Hazard per bin of the mixture: each part's hazard, weighted by how much of it is left."""
    short, long = lognormal_hazard(SHORT_MEDIAN_S, SHORT_SPREAD), lognormal_hazard(LONG_MEDIAN_S, LONG_SPREAD)
    hazard = np.empty(BINS)
    left_short, left_long = SHORT_SHARE, 1.0 - SHORT_SHARE
    for index in range(BINS):
        left = left_short + left_long
        hazard[index] = (left_short * short[index] + left_long * long[index]) / left if left > 0 else short[index]
        left_short *= 1.0 - short[index]
        left_long *= 1.0 - long[index]
    return np.clip(hazard, 1e-9, 0.9)

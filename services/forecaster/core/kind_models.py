"""One small model per kind of job, all of one protocol: what the work should take by what the submitter tells of it.

Owns the protocol and the choice by kind. An *expectation* is a median and a spread of log seconds before anything was seen; what
runs of the same kind, team and thing then took relative to it corrects it (`expectations.py`). None: the facts don't say, and
history answers alone. Refuses: history, events. Read next: `training_cost.py`, `inference_volume.py`, `quantization_cost.py`,
`debug_runs.py`, and for memory `job_memory.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite, log
from typing import Protocol

from schemas.jobs import JobSpec, Kind
from services.forecaster.core import debug_runs, inference_volume, quantization_cost, training_cost
from services.forecaster.core.cards import Card
from services.forecaster.core.prior import MEDIAN_S, SPREAD
from services.forecaster.core.survival import DURATION_S_MAX, Floats, lognormal_hazard


class KindModel(Protocol):
    """A module of this shape per kind. `parts` names what the seconds are made of, for explanations."""

    SPREAD: float
    """Standard deviation of log seconds that remains when the facts are known."""

    def parts_s(self, spec: JobSpec, gpus: int, card: Card) -> dict[str, float] | None:
        """Seconds by part of the work, or None if the facts don't say."""
        ...


MODELS: dict[Kind, KindModel] = {
    Kind.TRAINING: training_cost,
    Kind.BATCH_INFERENCE: inference_volume,
    Kind.QUANTIZATION: quantization_cost,
    Kind.DEBUG: debug_runs,
}
UNKNOWN_CARD_SPREAD = 0.7
"""Added (in quadrature) where the card isn't known: speeds differ by a factor of 8 between the oldest and the newest."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Median `log_s` and `spread` of log seconds by the facts alone; `parts`: share of each part of the work."""

    log_s: float
    spread: float
    parts: tuple[tuple[str, float], ...]


def expected(spec: JobSpec, gpus: int, card: Card) -> Expected | None:
    """What the facts say, finite and within 1 s and 60 days whatever they are."""
    model = MODELS[spec.kind]
    parts = model.parts_s(spec, gpus, card)
    if parts is None:
        return None
    total = sum(parts.values())
    seconds = min(max(total, 1.0), DURATION_S_MAX) if isfinite(total) else DURATION_S_MAX
    spread = model.SPREAD if card.known else (model.SPREAD**2 + UNKNOWN_CARD_SPREAD**2) ** 0.5
    shares = ((name, part / total if isfinite(total) and total > 0 else 0.0) for name, part in parts.items())
    return Expected(log(seconds), spread, tuple(shares))


def day_one_hazard(kind: Kind, found: Expected | None = None) -> Floats:
    """The belief about a duration before anything was seen, as a hazard per bin."""
    if found is not None:
        return lognormal_hazard(exp(found.log_s), found.spread)
    if kind is Kind.DEBUG:
        return debug_runs.short_or_long_hazard()
    return lognormal_hazard(MEDIAN_S[kind], SPREAD)

"""From what is known of a job to P50 and P90 per offered size: history as base, the model's correction, calibration, limits.

Owns the combination and its guarantees: 1 s ≤ P50 ≤ P90 ≤ time limit, always finite, whatever history or model say; a job
that has outlived its P90 gets a new, longer one. The model is an argument (`Model`): without one, history answers alone.
Refuses: events, clocks, files. Read next: `history.py`, `features.py`, `prior.py`, `calibration.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, isfinite, log
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.forecasts import SizeForecast
from schemas.jobs import JobAccepted, JobSpec, Kind
from services.forecaster.core.calibration import Calibration
from services.forecaster.core.features import GIVEN, Row, feature_row, given_features
from services.forecaster.core.history import EVIDENCE_WEIGHT_MIN, TEAM_LEVEL, DurationHistory, Subject, View
from services.forecaster.core.kind_models import day_one_hazard
from services.forecaster.core.prior import scale_log_s
from services.forecaster.core.promises import Promises
from services.forecaster.core.survival import DURATION_S_MAX, Floats

CORRECTION_MAX = 4.0
"""The model may move history by a factor of 55 at most, so that a strange row can't produce an absurd answer. Where history knows little
of a thing it is that wrong (measured: 7.4 at most costs 3 % of loss on MetaCentrum, nothing elsewhere)."""
OVERTIME_SHARE = 0.1
OVERTIME_S_MIN = 60.0
"""A running job's forecast lies at least a tenth of its age, and a minute, ahead: never "any moment now"."""
ENDED_KNOWN_MIN = 20
"""Runs that ended here from which the cluster itself counts as history for a team never seen before."""
OWN_SIZE_PRIOR_WEIGHT = 10.0
"""Runs of the same thing on another size that weigh as much as the scaling law."""


class Model(Protocol):
    """Corrections to history in log seconds. `version` goes into every forecast, `trust` (0..1) scales the corrections."""

    @property
    def version(self) -> str: ...

    @property
    def trust(self) -> float: ...

    def corrections(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """(rows, 22) → (rows, 2): what to add to log P50 and log P90 of history."""
        ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What the forecaster keeps of an accepted job. `gpus`: the size its forecast is anchored at."""

    job_id: str
    cluster: str
    subject: Subject
    sizes: tuple[int, ...]
    limit_s: float
    given: Row
    prior: Floats
    traceparent: str = ""

    @property
    def gpus(self) -> int:
        return self.subject.gpus


@dataclass(frozen=True, slots=True)
class Estimate:
    """Log P50 and P90 at the anchor size. `known`: some history of this team, or of this cluster, stands behind it."""

    log_p50: float
    log_p90: float
    known: bool
    row: Row


@lru_cache(maxsize=len(Kind))
def _kind_hazard(kind: Kind) -> Floats:
    return day_one_hazard(kind)


def subject_of(spec: JobSpec, gpus: int) -> Subject:
    """Who runs what. `what` is the template, or the command without its changing arguments: its first two words."""
    what = spec.template if spec.template is not None else " ".join(word[:128] for word in (spec.command or [])[:2])
    return Subject(team=spec.team, gpus=gpus, kind=spec.kind.value, user=spec.user, what=what)


def facts_of(accepted: JobAccepted, traceparent: str) -> Facts:
    """The forecaster's part of an accepted job, anchored at the size it asks for, else at its largest."""
    spec = accepted.spec
    gpus = spec.requested_gpus if spec.requested_gpus is not None else max(spec.sizes)
    return Facts(
        job_id=accepted.job_id,
        cluster=accepted.cluster,
        subject=subject_of(spec, gpus),
        sizes=tuple(spec.sizes),
        limit_s=spec.time_limit_s,
        given=given_features(spec, gpus),
        prior=_kind_hazard(spec.kind),
        traceparent=traceparent,
    )


class DurationForecaster:
    """Answers for one cluster. `model` may be replaced between two calls."""

    def __init__(self, history: DurationHistory, calibration: Calibration, model: Model | None) -> None:
        self.history = history
        self.calibration = calibration
        self.promises = Promises(calibration)
        self.model = model

    @property
    def version(self) -> str:
        return "history" if self.model is None else self.model.version

    def estimate(self, subject: Subject, given: Row, prior: Floats, now_ms: int, *, skipped: int = -1) -> Estimate:
        """P50 and P90 of a job that has not started (or starts now, as run `skipped`)."""
        view = self.history.view(subject, now_ms, prior, skipped=skipped)
        row = feature_row(given, view)
        log_p50, log_p90 = view.log_quantile(0.5), view.log_quantile(0.9)
        if self.model is not None and view.known >= 0:
            log_p50, log_p90 = row[GIVEN], row[GIVEN + 1]
            fixes = self.model.corrections(row.reshape(1, -1))[0]
            log_p50 += self.model.trust * _bounded(fixes[0])
            log_p90 += self.model.trust * _bounded(fixes[1])
        log_p90 += self.calibration.offset(subject.team, subject.gpus)
        return Estimate(float(log_p50), float(max(log_p50, log_p90)), self._is_known(view), row)

    def at_sizes(self, facts: Facts, estimate: Estimate, now_ms: int) -> list[SizeForecast]:
        """One forecast per offered size: scaled from the anchor, and pulled to history of the same thing on that size."""
        return [self._at_size(facts, estimate, gpus, now_ms) for gpus in facts.sizes]

    def survived(
        self, facts: Facts, gpus: int, run: int, elapsed_s: float, p90_s_before: float, now_ms: int
    ) -> SizeForecast:
        """Total run time of a job that has been running for `elapsed_s` on `gpus` GPUs, given that it still runs."""
        subject = replace(facts.subject, gpus=gpus)
        view = self.history.view(subject, now_ms, facts.prior, skipped=run)
        ahead_s = elapsed_s + max(OVERTIME_S_MIN, OVERTIME_SHARE * elapsed_s)
        p50_s = max(exp(view.log_quantile(0.5, survived_s=elapsed_s)), ahead_s)
        p90_s = max(exp(view.log_quantile(0.9, survived_s=elapsed_s)), p90_s_before, 2 * ahead_s - elapsed_s)
        ceiling_s = max(facts.limit_s, elapsed_s + 1.0)
        return _size_forecast(gpus, log(p50_s), log(max(p50_s, p90_s)), ceiling_s)

    def _at_size(self, facts: Facts, estimate: Estimate, gpus: int, now_ms: int) -> SizeForecast:
        log_p50, log_p90 = estimate.log_p50, estimate.log_p90
        if gpus != facts.gpus:
            move = scale_log_s(facts.gpus, gpus)
            log_p50, log_p90 = log_p50 + move, log_p90 + move
            subject = replace(facts.subject, gpus=gpus)
            if facts.subject.what and self.history.knows(subject):
                view = self.history.view(subject, now_ms, facts.prior)
                trust = view.weights[-1] / (view.weights[-1] + OWN_SIZE_PRIOR_WEIGHT)
                log_p50 += trust * (view.log_quantile(0.5) - log_p50)
                log_p90 += trust * (view.log_quantile(0.9) - log_p90)
        return _size_forecast(gpus, log_p50, log_p90, facts.limit_s)

    def _is_known(self, view: View) -> bool:
        of_team = bool(view.weights[TEAM_LEVEL:].max() >= EVIDENCE_WEIGHT_MIN)
        return of_team or (view.known >= 0 and self.history.ended >= ENDED_KNOWN_MIN)


def _bounded(correction: float) -> float:
    if not isfinite(correction):
        return 0.0
    return min(max(float(correction), -CORRECTION_MAX), CORRECTION_MAX)


def _size_forecast(gpus: int, log_p50: float, log_p90: float, ceiling_s: float) -> SizeForecast:
    """Clamped to 1 s … the limit and monotone; rounded to seconds, because nothing finer is known."""
    ceiling_s = min(max(ceiling_s, 1.0), DURATION_S_MAX)
    p50_s = min(max(float(round(exp(min(log_p50, 50.0)))), 1.0), ceiling_s)
    p90_s = min(max(float(round(exp(min(log_p90, 50.0)))), p50_s), ceiling_s)
    assert 1.0 <= p50_s <= p90_s <= DURATION_S_MAX, "forecasts are finite and monotone"
    return SizeForecast(gpus=gpus, p50_s=p50_s, p90_s=p90_s)

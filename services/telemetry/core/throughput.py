"""How fast jobs of a model usually are, from their own progress reports, and which are much slower.

Owns: one rate per job (the median of its last reports), and the usual rate per model, GPU count and part of a card that each is: the
median over other jobs, or the job's own beginning where there are too few. Refuses: comparing different models or sizes. Read next:
`findings.py`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from schemas.jobs import JobSpec

SLOW_SHARE = 0.6
"""Below this share of the usual rate a job is slow."""
REPORTS_MIN = 3
"""Slow or usual, so many reports must say it: steps with evaluation or a checkpoint are slow, too."""
REPORTS_KEPT = 9
OTHERS_MIN = 2
"""Other jobs of the same model and size before their median counts as usual."""
JOBS_PER_MODEL_MAX = 64
MODELS_MAX = 2_000
JOBS_MAX = 20_000
SAMPLES_PER_S_MAX = 1e12


@dataclass
class Rate:
    """One job's reports. `first`: the median of its beginning, its own yardstick."""

    model: str
    gpus: int
    per_card: int = 1
    last: deque[float] = field(default_factory=lambda: deque(maxlen=REPORTS_KEPT))
    first: float | None = None

    @property
    def now(self) -> float | None:
        return median(self.last) if len(self.last) >= REPORTS_MIN else None


class Throughput:
    """Feed it `named` and `reported`; ask `usual` and `slow`."""

    def __init__(self) -> None:
        self._models: dict[str, str] = {}
        self._rates: dict[str, Rate] = {}
        self._usual: dict[tuple[str, int, int], dict[str, float]] = {}

    def named(self, job_id: str, spec: JobSpec) -> None:
        """What a job trains, if it said so."""
        model = model_of(spec)
        if model:
            self._models[job_id] = model
            while len(self._models) > JOBS_MAX:
                del self._models[next(iter(self._models))]

    def model(self, job_id: str) -> str:
        return self._models.get(job_id, "")

    def reported(self, job_id: str, gpus: int, samples_per_s: float | None, per_card: int = 1) -> None:
        """`gpus` slots of which `per_card` are one card. A report without a rate, or with one that can't be, changes nothing."""
        if samples_per_s is None or not math.isfinite(samples_per_s) or not 0 < samples_per_s <= SAMPLES_PER_S_MAX:
            return
        rate = self._rates.get(job_id)
        if rate is None or (rate.gpus, rate.per_card) != (gpus, per_card):
            rate = self._rates[job_id] = Rate(self.model(job_id), gpus, per_card)
            while len(self._rates) > JOBS_MAX:
                del self._rates[next(iter(self._rates))]
        rate.last.append(samples_per_s)
        now = rate.now
        if now is None:
            return
        if rate.first is None:
            rate.first = now
        if rate.model and now >= SLOW_SHARE * (self.usual(job_id) or 0.0):
            self._remember(rate, job_id, now)

    def restored(self, job_id: str, model: str, gpus: int, samples_per_s: float, per_card: int = 1) -> None:
        """A rate as published before a restart."""
        self._models.setdefault(job_id, model) if model else None
        rate = self._rates[job_id] = Rate(model, gpus, per_card, first=samples_per_s)
        rate.last.extend([samples_per_s] * REPORTS_MIN)
        if model:
            self._remember(rate, job_id, samples_per_s)

    def rate(self, job_id: str) -> tuple[float | None, int, int]:
        """The job's present rate, on how many GPUs, and how many of them are one card."""
        known = self._rates.get(job_id)
        return (None, 0, 1) if known is None else (known.now, known.gpus, known.per_card)

    def usual(self, job_id: str) -> float | None:
        """What others of its model do on as many GPUs, or what it did itself at first."""
        rate = self._rates.get(job_id)
        if rate is None:
            return None
        of_model = self._usual.get(_kind(rate), {}) if rate.model else {}
        others = [value for other, value in of_model.items() if other != job_id]
        return median(others) if len(others) >= OTHERS_MIN else rate.first

    def slow(self, job_id: str) -> bool:
        rate = self._rates.get(job_id)
        usual = self.usual(job_id)
        return rate is not None and rate.now is not None and usual is not None and rate.now < SLOW_SHARE * usual

    def _remember(self, rate: Rate, job_id: str, now: float) -> None:
        of_model = self._usual.setdefault(_kind(rate), {})
        of_model.pop(job_id, None)
        of_model[job_id] = now
        while len(of_model) > JOBS_PER_MODEL_MAX:
            del of_model[next(iter(of_model))]
        while len(self._usual) > MODELS_MAX:
            del self._usual[next(iter(self._usual))]


def _kind(rate: Rate) -> tuple[str, int, int]:
    """Jobs of one kind are compared."""
    return rate.model, rate.gpus, rate.per_card


def model_of(spec: JobSpec) -> str:
    """Jobs with equal names are compared; "" if the job names no model."""
    facts = spec.model
    if facts is None or not facts.base_model:
        return ""
    parts = (
        facts.base_model,
        facts.tuning.value if facts.tuning else "",
        facts.technique.value if facts.technique else "",
        str(facts.sequence_length or ""),
    )
    return "|".join(parts)[:256]

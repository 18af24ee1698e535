"""Why a job gets the forecast it gets: per offered size, the history it rests on, the features that moved it, what its facts say.

Owns: the offline answer for one job, from a model file and the history in it; nothing of a running service. Refuses: files of
jobs, printing. Read next: `core/duration.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isnan
from pathlib import Path

import numpy as np

from schemas.catalog import Pool
from schemas.forecasts import SizeForecast
from schemas.jobs import JobAccepted, JobSubmitted
from services.forecaster.core.calibration import Calibration
from services.forecaster.core.cards import card_of
from services.forecaster.core.duration import CORRECTION_MAX, DurationForecaster, facts_of
from services.forecaster.core.expectations import Expectations, Opinion
from services.forecaster.core.features import FEATURES, GIVEN
from services.forecaster.core.first_belief import FirstBelief, first_belief, with_day_one
from services.forecaster.core.history import EVIDENCE_WEIGHT_MIN, LEVELS, DurationHistory, Seed
from services.forecaster.core.job_memory import MIB
from services.forecaster.core.kind_models import Expected
from services.forecaster.core.survival import BASE_SCALE
from services.forecaster.shell.app import BUNDLED, NO_MODEL
from services.forecaster.shell.model import MODEL_FILE, BoosterModel, load_model


@dataclass(frozen=True, slots=True)
class Level:
    """One key of the job, coarse to fine. `starts`: runs ever seen; `weight`: ended ones, older ones counting less;
    P50 and P90 as this level says, leaning on the one before."""

    level: str
    key: str
    starts: int
    weight: float
    p50_s: float
    p90_s: float


@dataclass(frozen=True, slots=True)
class Moved:
    """What a feature did to P50 and P90, as factors. `value` is None where the job or the history doesn't say."""

    feature: str
    meaning: str
    value: float | None
    p50_factor: float
    p90_factor: float


@dataclass(frozen=True, slots=True)
class FactsSay:
    """The cost model's answer on the size asked for. `share`: how much of it counts beside history; `parts`: of the seconds;
    `memory`: parts of one GPU's P50 in MiB; `card_mib`: what the card has, 0 if nobody told."""

    p50_s: float
    p90_s: float
    share: float
    parts: dict[str, float]
    memory: dict[str, int]
    card_mib: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """`nearest`: index in `levels` of the finest with evidence, or -1: then the day-one prior answers. `facts`: None if the
    job tells too little of its model."""

    job_id: str
    model: str
    trained_on: str
    asked_gpus: int
    limit_s: float
    sizes: list[SizeForecast]
    prior: bool
    levels: list[Level]
    nearest: int
    history_p50_s: float
    history_p90_s: float
    usual_p50_factor: float
    usual_p90_factor: float
    moved: list[Moved]
    margin_factor: float
    facts: FactsSay | None


def explain(job: JobSubmitted, model: str = BUNDLED, *, pools: Sequence[Pool] = ()) -> Explanation:
    """The forecast a fresh forecaster would give at the moment of submission, taken apart. Raises ModelError.

    `pools`: those it could run in; without them an A100's figures stand for the card, and nothing is said of its memory.
    """
    booster, seed = (None, None) if model == NO_MODEL else load_model(MODEL_FILE if model == BUNDLED else Path(model))
    accepted = JobAccepted(
        job_id=job.job_id,
        cluster="c0",
        pools=[],
        submitted_ms=job.submitted_ms,
        accepted_ms=job.submitted_ms,
        digest="",
        spec=job.spec,
    )
    facts = facts_of(accepted, "")
    belief = first_belief(job.spec, facts, list(pools))
    facts = with_day_one(job.spec, facts, belief)
    history, calibration = DurationHistory(seed), Calibration()
    forecaster = DurationForecaster(history, calibration, booster)
    now_ms = job.submitted_ms
    estimate = forecaster.estimate(facts.subject, facts.given, facts.prior, now_ms)
    said = None
    if belief is not None and belief.expected is not None:
        seen = history.knows(facts.subject)
        opinion = Expectations().opinion(belief.expected, belief.keys, known=seen)
        estimate, _ = Expectations().mixed(estimate, belief.expected, belief.keys, known=seen)
        said = _facts_say(belief, belief.expected, opinion, facts.gpus)
    view = history.view(facts.subject, now_ms, facts.prior)
    sizes = forecaster.at_sizes(facts, estimate, now_ms)
    starts = _starts(seed)
    levels = [
        Level(
            level=LEVELS[place],
            key=" ".join(str(part) for part in key[1:]) or "all",
            starts=starts.get(key, 0),
            weight=round(float(view.weights[place]), 2),
            p50_s=round(exp(view.log_quantile(0.5, scale=BASE_SCALE, level=place)), 1),
            p90_s=round(exp(view.log_quantile(0.9, scale=BASE_SCALE, level=place)), 1),
        )
        for place, key in enumerate(facts.subject.key_per_level())
        if key is not None
    ]
    with_model = booster is not None and view.known >= 0
    corrected = estimate.row[GIVEN : GIVEN + 2] if with_model else (view.log_quantile(0.5), view.log_quantile(0.9))
    known = [place for place, level in enumerate(levels) if level.weight >= EVIDENCE_WEIGHT_MIN]
    usual, moved = _moved(booster if view.known >= 0 else None, estimate.row)
    return Explanation(
        job_id=job.job_id,
        model=forecaster.version,
        trained_on="" if booster is None else booster.trained_on,
        asked_gpus=facts.gpus,
        limit_s=facts.limit_s,
        sizes=sizes if belief is None else belief.with_memory(sizes),
        prior=not estimate.known,
        levels=levels,
        nearest=known[-1] if known else -1,
        history_p50_s=round(exp(corrected[0]), 1),
        history_p90_s=round(exp(corrected[1]), 1),
        usual_p50_factor=usual[0],
        usual_p90_factor=usual[1],
        moved=moved,
        margin_factor=round(exp(calibration.offset(facts.subject.team, facts.gpus)), 4),
        facts=said,
    )


def pool_of(card: str) -> Pool:
    """A pool of one such card, for somebody who only knows its name."""
    found = card_of(card)
    return Pool(gpus=1, node_gpus=1, gpu_model=card, memory_mib=round(found.memory_bytes / MIB))


def _facts_say(belief: FirstBelief, expected: Expected, opinion: Opinion, gpus: int) -> FactsSay:
    memory = dict(belief.memory).get(gpus)
    return FactsSay(
        p50_s=round(exp(opinion.log_p50), 1),
        p90_s=round(exp(opinion.log_p90), 1),
        share=round(opinion.share, 3),
        parts={name: round(share, 4) for name, share in expected.parts},
        memory={} if memory is None else {name: round(part / MIB) for name, part in memory.parts},
        card_mib=round(belief.card_bytes / MIB),
    )


def _starts(seed: Seed | None) -> dict[tuple[str | int, ...], int]:
    return {} if seed is None else {key: int(count) for key, count in zip(seed.keys, seed.starts, strict=True)}


def _moved(model: BoosterModel | None, row: np.ndarray) -> tuple[tuple[float, float], list[Moved]]:
    """The factors of a usual job, and those of every feature, strongest first. Together they are the model's correction,
    unless that is cut at its limit: then all are scaled down to it."""
    if model is None:
        return (1.0, 1.0), []
    parts = model.contributions(row)
    total = parts.sum(axis=1, keepdims=True)
    cut = np.minimum(1.0, CORRECTION_MAX / np.maximum(np.abs(total), 1e-12))
    factors = np.exp(model.trust * parts * cut)
    strength = np.abs(np.log(factors[:, :-1])).max(axis=0)
    moved = [
        Moved(
            feature=FEATURES[place][0],
            meaning=FEATURES[place][1],
            value=None if isnan(row[place]) else round(float(row[place]), 4),
            p50_factor=round(float(factors[0, place]), 4),
            p90_factor=round(float(factors[1, place]), 4),
        )
        for place in np.argsort(-strength, kind="stable")
        if strength[place] > 0
    ]
    return (round(float(factors[0, -1]), 4), round(float(factors[1, -1]), 4)), moved

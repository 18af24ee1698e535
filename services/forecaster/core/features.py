"""The 22 features of a duration: 12 the submitter gives, 10 that history gives. One list, used for training and for answers.

Owns: their order, meaning and encoding. Missing facts are NaN, which the trees treat as a branch of its own: where the
submitter gives nothing, history carries the forecast. Refuses: any model. Read next: `duration.py`.
"""

from __future__ import annotations

from math import log, log2, nan

import numpy as np
from numpy.typing import NDArray

from schemas.jobs import JobSpec, Kind, Technique, Tuning
from services.forecaster.core.history import TEAM_LEVEL, View
from services.forecaster.core.prior import tokens_of
from services.forecaster.core.survival import BASE_SCALE

Row = NDArray[np.float64]

FEATURES: tuple[tuple[str, str], ...] = (
    ("gpus_log2", "block size; large gangs run longer"),
    ("kind", "categorical: training, batch inference, quantization, debug"),
    ("hour", "hour of the day (UTC) of the forecast; people try things by day and leave long runs for the night"),
    ("variant", "categorical of ten: full or parameter-efficient tuning by SFT, DPO, RLHF, RLVR, CPT"),
    ("parameters_log", "log of the base model's parameters"),
    ("trainable_log", "log of the parameters that are updated"),
    ("tokens_log", "log of the dataset's tokens (or items times sequence length)"),
    ("sequence_log", "log of the sequence length"),
    ("batch_log", "log of the global batch"),
    ("epochs", "passes over the dataset"),
    ("bits", "bits per weight: of the precision, or quantized to"),
    ("checkpointing", "1 if activations are recomputed to save memory, about a third slower"),
    ("own_p50", "log P50 of the finest key, long memory: the base the model corrects"),
    ("own_p90", "log P90 of the same: the base of the P90"),
    ("own_p25", "log P25 of the same: how many are very short"),
    ("today_p50", "log P50 of the same key, middle memory"),
    ("sweep_p50", "log P50 of the same key, short memory: what the present sweep does"),
    ("team_p50", "log P50 of the team over all sizes: own key unlike its team?"),
    ("evidence_log", "log of 1 + ended runs behind the finest known key: how far to trust it"),
    ("last_log", "log duration of the newest ended run of the finest known key: the last one says more than a leaf"),
    ("gap_log", "log of 1 + seconds since a run of that key started"),
    ("burst", "runs of that key started in about ten minutes: sweeps are alike"),
)
NAMES: tuple[str, ...] = tuple(name for name, _ in FEATURES)
CATEGORICAL: tuple[int, ...] = (NAMES.index("kind"), NAMES.index("variant"))
GIVEN = NAMES.index("own_p50")
"""Features before this one come from the job itself."""
KINDS = tuple(Kind)
VARIANTS = tuple((tuning, technique) for tuning in Tuning for technique in Technique)
GAP_S_MAX = 2_592_000.0
"""30 days: older starts are all "long ago"."""
BITS = {"fp64": 64, "fp32": 32, "tf32": 19, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "nf4": 4, "int4": 4}


def _log(value: float | None) -> float:
    return nan if value is None or value <= 0 else log(value)


def given_features(spec: JobSpec, gpus: int) -> Row:
    """The submitter's part of the row; `hour` is filled in when the forecast is made."""
    row = np.full(len(NAMES), nan)
    row[0] = log2(gpus)
    row[1] = KINDS.index(spec.kind)
    facts = spec.model
    if facts is None:
        return row
    if facts.tuning is not None and facts.technique is not None:
        row[3] = VARIANTS.index((facts.tuning, facts.technique))
    row[4] = _log(facts.parameters)
    row[5] = _log(facts.trainable_parameters)
    row[6] = _log(tokens_of(facts))
    row[7] = _log(facts.sequence_length)
    row[8] = _log(facts.global_batch)
    row[9] = nan if facts.epochs is None else facts.epochs
    bits = facts.quantization_bits or BITS.get((facts.precision or "").lower())
    row[10] = nan if bits is None else bits
    row[11] = nan if facts.gradient_checkpointing is None else float(facts.gradient_checkpointing)
    return row


def unknown_features(gpus: int) -> Row:
    """The row of a job of which only the size is known (bundled history)."""
    row = np.full(len(NAMES), nan)
    row[0] = log2(gpus)
    return row


def feature_row(given: Row, view: View, now_ms: int) -> Row:
    """The whole row. `own_p50` and `own_p90` are what the model's answers are added to."""
    row = given.copy()
    row[2] = now_ms // 3_600_000 % 24
    row[GIVEN] = view.log_quantile(0.5)
    row[GIVEN + 1] = view.log_quantile(0.9)
    row[GIVEN + 2] = view.log_quantile(0.25)
    row[GIVEN + 3] = view.log_quantile(0.5, scale=BASE_SCALE - 1)
    row[GIVEN + 4] = view.log_quantile(0.5, scale=BASE_SCALE - 2)
    row[GIVEN + 5] = view.log_quantile(0.5, level=TEAM_LEVEL)
    row[GIVEN + 6] = log(1.0 + (view.weights[view.known] if view.known >= 0 else 0.0))
    row[GIVEN + 7] = view.last_log_s
    row[GIVEN + 8] = log(1.0 + min(view.gap_s, GAP_S_MAX)) if view.gap_s == view.gap_s else nan
    row[GIVEN + 9] = view.burst
    return row

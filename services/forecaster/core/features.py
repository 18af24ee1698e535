"""The 22 features of a duration: 12 the submitter gives, 10 that history gives. One list, used for training and for answers.

Owns: their order, meaning and encoding. All durations that history tells beside `own_p50` and `own_p90`, and the limit, are given
relative to `own_p50`: what a model learns of one team's minutes then holds for another's days. Half of the model reads
them as they are (`absolute`): better where jobs of many users share limits and queues. Missing facts are NaN, which the trees
treat as a branch of its own: where the submitter gives nothing, history carries the forecast. Refuses: any model. Read next:
`duration.py`.
"""

from __future__ import annotations

from math import log, log2, nan

import numpy as np
from numpy.typing import NDArray

from schemas.jobs import JobSpec, Kind, Technique, Tuning
from services.forecaster.core.history import View
from services.forecaster.core.prior import tokens_of
from services.forecaster.core.survival import BASE_SCALE

Row = NDArray[np.float64]

FEATURES: tuple[tuple[str, str], ...] = (
    ("gpus_log2", "block size; large gangs run longer"),
    ("kind", "categorical: training, batch inference, quantization, debug"),
    ("limit_log", "the declared time limit over own_p50: people choose it knowing more than history does"),
    ("variant", "categorical of ten: full or parameter-efficient tuning by SFT, DPO, RLHF, RLVR, CPT"),
    ("parameters_log", "log of the base model's parameters"),
    ("trainable_log", "log of the parameters that are updated"),
    ("tokens_log", "log of the dataset's tokens (or items times sequence length)"),
    ("sequence_log", "log of the sequence length"),
    ("batch_log", "log of the global batch"),
    ("epochs", "passes over the dataset"),
    ("bits", "bits per weight: of the precision, or quantized to"),
    ("checkpointing", "1 if activations are recomputed to save memory, about a third slower"),
    (
        "own_p50",
        "log P50 that the model corrects: mean of fading memory, last five runs and batches of the finest known key",
    ),
    ("own_p90", "log P90 that the model corrects: of the same, fading memory counted twice, and the last twenty runs"),
    (
        "quiet_log",
        "log seconds since the newest end of the same thing: much in a row that never ends is unlike a row that does",
    ),
    ("going_p50", "log of the middle age of runs of the same thing that go on: what is short would have ended"),
    ("sweep_p50", "log P50 of the same key, short memory: what the present sweep does"),
    ("going_oldest", "log age of the oldest of them"),
    ("five_p50", "middle of the last five ended runs of the finest known key"),
    ("last_log", "log duration of the newest ended run of that key: the last one says more than a leaf"),
    ("batch_p50", "middle over the key's last batches, each with one vote: a crashed sweep of hundreds counts once"),
    ("burst", "runs of that key started in about ten minutes: sweeps are alike"),
)
NAMES: tuple[str, ...] = tuple(name for name, _ in FEATURES)
CATEGORICAL: tuple[int, ...] = (NAMES.index("kind"), NAMES.index("variant"))
LIMIT = NAMES.index("limit_log")
BURST = NAMES.index("burst")
GIVEN = NAMES.index("own_p50")
"""Features before this one come from the job itself."""
RELATIVE = (
    LIMIT,
    *(NAMES.index(name) for name in ("going_p50", "sweep_p50", "going_oldest", "five_p50", "last_log", "batch_p50")),
)
"""Durations told in terms of `own_p50`."""
KINDS = tuple(Kind)
VARIANTS = tuple((tuning, technique) for tuning in Tuning for technique in Technique)
BITS = {"fp64": 64, "fp32": 32, "tf32": 19, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "nf4": 4, "int4": 4}


def _log(value: float | None) -> float:
    return nan if value is None or value <= 0 else log(value)


def given_features(spec: JobSpec, gpus: int) -> Row:
    """The submitter's part of the row; `limit_log` is related to history when the forecast is made."""
    row = np.full(len(NAMES), nan)
    row[0] = log2(gpus)
    row[1] = KINDS.index(spec.kind)
    row[LIMIT] = _log(spec.time_limit_s)
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


def unknown_features(gpus: int, limit_s: float | None = None) -> Row:
    """The row of a job of which only the size, and perhaps the limit, is known (bundled history)."""
    row = np.full(len(NAMES), nan)
    row[0] = log2(gpus)
    row[LIMIT] = _log(limit_s)
    return row


def batch_weights(place: Row) -> Row:
    """Weight in training of runs by how many of their batch came before: all together a batch of n counts like 2 √n runs, because
    its runs are alike (measured: 1 % less loss on Philly, 2 to 5 % on MetaCentrum, 0.3 % more on NASA, and P90 covers 1 to 7 points
    more)."""
    return np.asarray(1.0 / np.sqrt(1.0 + place))


def feature_row(given: Row, view: View) -> Row:
    """The whole row. `own_p50` and `own_p90` are what the model's answers are added to."""
    five, twenty, batch, batch_high = view.recent
    fading = view.log_quantile(0.5)
    p50 = _mean((fading, 1.0), (batch, 1.0), (five, 1.0))
    p90 = max(p50, _mean((view.log_quantile(0.9), 2.0), (batch_high, 1.0), (twenty, 1.0)))
    row = given.copy()
    row[LIMIT] -= p50
    row[GIVEN] = p50
    row[GIVEN + 1] = p90
    row[GIVEN + 2] = log(max(view.quiet_s, 1.0)) if view.quiet_s == view.quiet_s else nan
    row[GIVEN + 3] = view.going[0] - p50
    row[GIVEN + 4] = view.log_quantile(0.5, scale=BASE_SCALE - 2) - p50
    row[GIVEN + 5] = view.going[1] - p50
    row[GIVEN + 6] = five - p50
    row[GIVEN + 7] = view.last_log_s - p50
    row[GIVEN + 8] = batch - p50
    row[BURST] = view.burst
    return row


def absolute(rows: Row) -> Row:
    """(rows, 22) as they are → with every duration in plain log seconds."""
    plain = rows.copy()
    plain[:, RELATIVE] += rows[:, [GIVEN]]
    return plain


def _mean(*parts: tuple[float, float]) -> float:
    """Weighted mean of (value, weight) without what is not known."""
    known = [(value, weight) for value, weight in parts if value == value]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known)

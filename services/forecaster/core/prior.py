"""What is assumed of durations before anything was seen: medians per kind, and the law that carries one to another block size.

Owns these assumptions; none is measured, and history overrules them after about three ended runs. What the submitter's facts say is
`kind_models.py`'s. Read next: `duration.py`.
"""

from __future__ import annotations

from math import log

from schemas.jobs import Kind, ModelFacts
from services.forecaster.core.survival import Floats, lognormal_hazard

MEDIAN_S = {Kind.TRAINING: 3_600.0, Kind.BATCH_INFERENCE: 1_800.0, Kind.QUANTIZATION: 1_800.0}
"""Debug jobs have a mixture of their own (`debug_runs.py`)."""
SPREAD = 2.3
"""Standard deviation of log seconds without facts: P90 is 19 times P50, as wide as a whole cluster's durations."""
PARALLEL_EXPONENT_NODE = 0.9
PARALLEL_EXPONENT_BEYOND = 0.8
NODE_GPUS = 8
"""Twice the GPUs is 1.87 times the speed inside a node of eight, 1.74 times beyond it (links between nodes are slower)."""


def speedup(gpus: int) -> float:
    """Speed on `gpus` GPUs relative to one, of work that can use them all."""
    inside = min(gpus, NODE_GPUS)
    return float(inside**PARALLEL_EXPONENT_NODE * (gpus / inside) ** PARALLEL_EXPONENT_BEYOND)


def scale_log_s(from_gpus: int, to_gpus: int) -> float:
    """What to add to log seconds to carry a duration from one block size to another."""
    return log(speedup(from_gpus) / speedup(to_gpus))


def tokens_of(facts: ModelFacts) -> float | None:
    """Tokens of one pass: as given, or items times sequence length."""
    if facts.dataset_tokens is not None:
        return facts.dataset_tokens
    if facts.dataset_items is not None and facts.sequence_length is not None:
        return facts.dataset_items * facts.sequence_length
    return None


def unknown_hazard() -> Floats:
    """Belief about a run of which nothing is known, not even its kind: what the bundled history starts from."""
    return lognormal_hazard(1_200.0, SPREAD)

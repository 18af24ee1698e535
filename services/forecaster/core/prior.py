"""What to believe about a duration before anything was seen: a cost model where the submitter gives facts, else the kind.

Owns: the day-one median and spread, and the law that carries a duration to another number of GPUs. Everything here is
assumption or literature, not measurement; history overrules it after about three ended runs. Read next: `duration.py`.

Sources. 6 FLOP per parameter and token of training (2 forward, 4 backward): Kaplan et al., "Scaling Laws for Neural Language
Models", arXiv 2001.08361. Low-rank adapters leave out the weight gradients of the frozen part (4 instead of 6): Hu et al.,
"LoRA", arXiv 2106.09685. Preference optimisation reads pairs and adds a forward pass of the reference: Rafailov et al.,
"DPO", arXiv 2305.18290. One forward pass more with gradient checkpointing: Chen et al., arXiv 1604.06174. The factors of RLHF
and RLVR (sampling dominates) and the achieved FLOP/s are round numbers of ours.
"""

from __future__ import annotations

from math import isfinite, log

from schemas.jobs import JobSpec, Kind, ModelFacts, Technique, Tuning
from services.forecaster.core.survival import DURATION_S_MAX, Floats, lognormal_hazard

MEDIAN_S = {Kind.TRAINING: 3_600.0, Kind.BATCH_INFERENCE: 1_800.0, Kind.QUANTIZATION: 1_800.0, Kind.DEBUG: 600.0}
SPREAD = 2.3
"""Standard deviation of log seconds without facts: P90 is 19 times P50, as wide as a whole cluster's durations."""
SPREAD_WITH_FACTS = 1.2
"""With facts: P90 is 4.7 times P50. Achieved speed alone varies by 3."""
FLOPS_PER_GPU = 3.0e14
"""Achieved, not peak: about 30 % of an H100's dense bf16 rate."""
STARTUP_S = 120.0
"""Loading weights and data before the first step."""
PASSES = {Technique.SFT: 1.0, Technique.CPT: 1.0, Technique.DPO: 2.7, Technique.RLHF: 6.0, Technique.RLVR: 4.0}
"""Compute of a technique relative to one supervised pass over the same tokens."""
FLOP_FULL, FLOP_PARAMETER_EFFICIENT, FLOP_FORWARD = 6.0, 4.0, 2.0
CHECKPOINTING_FACTOR = 4.0 / 3.0
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


def cost_s(kind: Kind, facts: ModelFacts, gpus: int) -> float | None:
    """Seconds the work should take on `gpus` GPUs, or None if the facts don't say."""
    tokens = tokens_of(facts)
    if facts.parameters is None or tokens is None or kind in (Kind.DEBUG, Kind.QUANTIZATION):
        return None
    if kind is Kind.BATCH_INFERENCE:
        flop = FLOP_FORWARD * facts.parameters * tokens
    else:
        per_token = FLOP_PARAMETER_EFFICIENT if facts.tuning is Tuning.PARAMETER_EFFICIENT else FLOP_FULL
        passes = PASSES[facts.technique] if facts.technique is not None else 1.0
        epochs = 1.0 if facts.epochs is None else facts.epochs
        flop = per_token * facts.parameters * tokens * passes * epochs
        if facts.gradient_checkpointing:
            flop *= CHECKPOINTING_FACTOR
    seconds = STARTUP_S + flop / (FLOPS_PER_GPU * speedup(gpus))
    return min(seconds, DURATION_S_MAX) if isfinite(seconds) else DURATION_S_MAX


def prior_hazard(spec: JobSpec, gpus: int) -> Floats:
    """Hazard per bin of the day-one belief."""
    seconds = None if spec.model is None else cost_s(spec.kind, spec.model, gpus)
    if seconds is None:
        return lognormal_hazard(MEDIAN_S[spec.kind], SPREAD)
    return lognormal_hazard(seconds, SPREAD_WITH_FACTS)


def unknown_hazard() -> Floats:
    """Belief about a run of which nothing is known, not even its kind: what the bundled history starts from."""
    return lognormal_hazard(1_200.0, SPREAD)

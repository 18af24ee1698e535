"""Quantization after training: layer by layer on a few calibration samples, so linear in parameters, and one card does the work.

Owns: 90 ns per parameter on an A100 with 128 samples of 2,048 tokens, read off the GPTQ paper's times (Frantar et al.,
2210.17323: 13 B in 20.9 min, 30 B in 44.9 min, 175 B in 4.2 h; these three agree within 12 %). Half of it is taken to grow with the
samples' tokens, half (the solving) not. Rounding to 8 bits needs no samples: a tenth. Refuses: training with quantized weights
(`training_cost.py`).
"""

from __future__ import annotations

from schemas.jobs import JobSpec
from services.forecaster.core.cards import Card
from services.forecaster.core.training_cost import LOAD_BYTES_S

SPREAD = 0.7
STARTUP_S = 60.0
PARAMETER_S = 9.0e-8
REFERENCE_FLOPS = 3.12e14
CALIBRATION_TOKENS = 128 * 2_048.0
SAMPLES_SHARE = 0.5
ROUNDING_BITS = 8
ROUNDING_SHARE = 0.1


def parts_s(spec: JobSpec, gpus: int, card: Card) -> dict[str, float] | None:
    facts = spec.model
    if facts is None or facts.parameters is None:
        return None
    solving_s = facts.parameters * PARAMETER_S * (REFERENCE_FLOPS / card.flops) ** 0.5
    if (facts.quantization_bits or 4) >= ROUNDING_BITS and facts.dataset_items is None:
        solving_s *= ROUNDING_SHARE
    tokens = CALIBRATION_TOKENS
    if facts.dataset_items is not None:
        tokens = facts.dataset_items * (facts.sequence_length or 2_048)
    elif facts.dataset_tokens is not None:
        tokens = facts.dataset_tokens
    load_s = 2.0 * facts.parameters / LOAD_BYTES_S
    return {
        "startup": STARTUP_S + load_s,
        "solving": (1.0 - SAMPLES_SHARE) * solving_s,
        "samples": SAMPLES_SHARE * solving_s * tokens / CALIBRATION_TOKENS,
    }

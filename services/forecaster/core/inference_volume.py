"""Batch inference: volume × time per item. What an item takes is computed where the model is known, and learnt where it isn't.

Owns: prefill bound by compute (2 FLOP per parameter and token), answers bound by memory bandwidth (all weights are read once per step
for a whole batch of answers: Pope et al., "Efficiently Scaling Transformer Inference", 2211.05102). Without parameters an item counts
one second, with a spread so wide that the first few runs of the same thing decide. Refuses: request logs. Read next: `expectations.py`.
"""

from __future__ import annotations

from math import inf

from schemas.jobs import JobSpec, ModelFacts
from services.forecaster.core.cards import Card
from services.forecaster.core.prior import speedup, tokens_of
from services.forecaster.core.training_cost import LOAD_BYTES_S, bits_of

SPREAD = 1.2
STARTUP_S = 90.0
PREFILL_ACHIEVED = 0.5
BANDWIDTH_ACHIEVED = 0.6
ANSWER_SHARE = 0.15
"""Share of an item's tokens that are answers, where nobody tells: 15 % in Azure's chat log, 1 % in its code log, 3 % in Mooncake's."""
BATCH = 64.0
"""Answers decoded together, if no batch is told: a usual limit of serving engines."""
ITEM_S = 1.0


def parts_s(spec: JobSpec, gpus: int, card: Card) -> dict[str, float] | None:
    facts = spec.model
    if facts is None:
        return None
    tokens = tokens_of(facts)
    if facts.parameters is not None and tokens is not None:
        return _computed_s(facts, tokens, facts.parameters, gpus, card)
    volume = facts.dataset_items if facts.dataset_items is not None else None
    if volume is None and tokens is not None:
        volume = tokens / 1_000.0
    if volume is None or volume <= 0:
        return None
    # No startup here: what corrects this is a ratio, and only time per item is the same for small and large volumes.
    return {"items": volume * ITEM_S / speedup(gpus)}


def _computed_s(facts: ModelFacts, tokens: float, parameters: float, gpus: int, card: Card) -> dict[str, float]:
    epochs = 1.0 if facts.epochs is None else facts.epochs
    weight_bytes = parameters * (facts.quantization_bits or bits_of(facts)) / 8.0
    together = speedup(gpus)
    answers = ANSWER_SHARE * tokens * epochs
    batch = float(facts.global_batch) if facts.global_batch is not None else BATCH
    step_s = weight_bytes / (card.bytes_s * BANDWIDTH_ACHIEVED * together)
    prefill_s = 2.0 * parameters * (tokens * epochs - answers) / (card.flops * PREFILL_ACHIEVED * together)
    decode_s = answers / batch * step_s if batch > 0 else inf
    return {"startup": STARTUP_S + weight_bytes / LOAD_BYTES_S, "prefill": prefill_s, "answers": decode_s}

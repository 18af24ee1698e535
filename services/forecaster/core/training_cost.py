"""The cost of a training run: compute from parameters × tokens, divided by what the cards achieve together.

Owns the constants and their sources:
- 6 FLOP per parameter and token, 2 forward and 4 backward: Kaplan et al., "Scaling Laws for Neural Language Models" (2001.08361),
  Hoffmann et al., "Training Compute-Optimal LLMs" (2203.15556). Attention adds 6 × layers × width × sequence per token with a
  causal mask: appendix B of PaLM (2204.02311).
- Low-rank adapters leave out the weight gradients of the frozen part, 4 instead of 6: Hu et al., "LoRA" (2106.09685). Weights
  kept in 4 bits cost unpacking: Dettmers et al., "QLoRA" (2305.14314), here a third more.
- DPO reads a pair for each example and adds the reference's forward pass: Rafailov et al. (2305.18290): 2 × (6 + 2) ÷ 6 = 2.7.
- RLHF with PPO: Ouyang et al. (2203.02155): policy and critic trained, reward and reference read, answers sampled. RLVR without a critic:
  Shao et al., "DeepSeekMath" (2402.03300), group of answers per prompt. That sampling is bound by memory bandwidth and dominates:
  6 and 4 passes are round numbers of ours.
- Recomputing activations costs a forward pass: Chen et al. (1604.06174), 4 ÷ 3 (of adapters: 6 ÷ 4).
- Achieved share of the peak: 0.38–0.43 for Llama 3 on H100 (2407.21783), 0.46 for PaLM, 0.3–0.5 for Megatron on A100 (2104.04473);
  jobs that nobody tuned do worse: 0.3.
- Half the speed without 16 bits, at most half more with 8 (data sheets' factors, halved for what isn't matrix work).
Everything is capped and finite. Not measured on any real trace: none tells these facts. Read next: `job_memory.py`.
"""

from __future__ import annotations

from schemas.jobs import JobSpec, ModelFacts, Technique, Tuning
from services.forecaster.core.cards import Card
from services.forecaster.core.prior import speedup, tokens_of

SPREAD = 0.9
"""Achieved speed alone varies by 3 between jobs: P90 is 3.2 times P50."""
ACHIEVED = 0.3
STARTUP_S = 120.0
"""Containers, weights and data before the first step; grows with what has to be loaded."""
LOAD_BYTES_S = 1.0e9
PASSES = {Technique.SFT: 1.0, Technique.CPT: 1.0, Technique.DPO: 2.7, Technique.RLHF: 6.0, Technique.RLVR: 4.0}
"""Compute of a technique relative to one supervised pass over the same tokens."""
FLOP_FORWARD, FLOP_BACKWARD, FLOP_WEIGHTS = 2.0, 2.0, 2.0
"""Per parameter and token: forward, gradients of activations, gradients of weights."""
UNPACKING = 4.0 / 3.0
SPEED_BY_BITS = {64: 0.1, 32: 0.3, 19: 0.5, 16: 1.0, 8: 1.5, 4: 1.5}
STEP_TOKENS_HALF = 1_024.0
"""Tokens per card and step at which half the time goes to launching and waiting: small batches don't fill a card."""
CHECKPOINT_BYTES_S = 2.0e9
CHECKPOINT_BYTES = 14.0
"""Per trained parameter: weights and the optimizer's state."""
CHECKPOINT_SHARE_MAX = 0.5
HEAD_WIDTH = 128.0
"""Layers ≈ width ÷ 128 in published models, parameters ≈ 12 × layers × width²: gives the width from the size."""


def width_and_layers(parameters: float) -> tuple[float, float]:
    """Of a usual transformer of that size."""
    width = max((HEAD_WIDTH * parameters / 12.0) ** (1.0 / 3.0), HEAD_WIDTH)
    return width, width / HEAD_WIDTH


def trained_parameters(facts: ModelFacts, parameters: float) -> float:
    """As told, else all of them, or a hundredth for adapters."""
    if facts.trainable_parameters is not None:
        return min(facts.trainable_parameters, parameters)
    return 0.01 * parameters if facts.tuning is Tuning.PARAMETER_EFFICIENT else parameters


def flop_per_token(facts: ModelFacts, parameters: float) -> float:
    """One pass over one token, forward and backward."""
    trained = trained_parameters(facts, parameters) if facts.tuning is Tuning.PARAMETER_EFFICIENT else parameters
    forward = FLOP_FORWARD * parameters
    flop = forward + FLOP_BACKWARD * parameters + FLOP_WEIGHTS * trained
    if facts.sequence_length is not None:
        width, layers = width_and_layers(parameters)
        flop += 6.0 * layers * width * facts.sequence_length
    if facts.gradient_checkpointing:
        flop += forward
    return flop


def bits_of(facts: ModelFacts, otherwise: int = 16) -> int:
    """Bits per weight of the arithmetic."""
    bits = {"fp64": 64, "fp32": 32, "tf32": 19, "fp8": 8, "int8": 8, "fp4": 4, "nf4": 4, "int4": 4}
    return bits.get((facts.precision or "").lower(), otherwise)


def filled_share(facts: ModelFacts, gpus: int) -> float:
    """How much of a card a step keeps busy."""
    if facts.global_batch is None or facts.sequence_length is None:
        return 1.0
    tokens = facts.global_batch * facts.sequence_length / gpus
    return max(tokens / (tokens + STEP_TOKENS_HALF), 0.01)


def parts_s(spec: JobSpec, gpus: int, card: Card) -> dict[str, float] | None:
    facts = spec.model
    tokens = None if facts is None else tokens_of(facts)
    if facts is None or facts.parameters is None or tokens is None:
        return None
    passes = PASSES[facts.technique] if facts.technique is not None else 1.0
    flop = flop_per_token(facts, facts.parameters) * tokens * passes * (1.0 if facts.epochs is None else facts.epochs)
    quantized = facts.tuning is Tuning.PARAMETER_EFFICIENT and (facts.quantization_bits or bits_of(facts)) <= 8
    speed = card.flops * ACHIEVED * speedup(gpus) * filled_share(facts, gpus)
    speed *= 1.0 / UNPACKING if quantized else SPEED_BY_BITS.get(bits_of(facts), 1.0)
    compute_s = flop / speed
    parts = {"startup": STARTUP_S + 2.0 * facts.parameters / LOAD_BYTES_S, "compute": compute_s}
    if spec.checkpoint.interval_s > 0:
        save_s = CHECKPOINT_BYTES * trained_parameters(facts, facts.parameters) / (CHECKPOINT_BYTES_S * gpus)
        parts["checkpoints"] = compute_s * min(save_s / spec.checkpoint.interval_s, CHECKPOINT_SHARE_MAX)
    return parts

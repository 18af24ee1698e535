"""Memory of one GPU, P50 and P90, per block size: weights, gradients, optimizer, activations. And the chance that it doesn't fit.

Owns the arithmetic and its sources: 16 bytes per trained parameter with Adam and 16-bit weights (2 + 2 + 12), split over the block:
Rajbhandari et al., "ZeRO" (1910.02054). Activations 34 × sequence × batch × width bytes per layer without attention's matrices, 2 with
recomputation plus one layer's: Korthikanti et al. (2205.05198). Adapters train a fraction, frozen weights keep 2 bytes, or half a
byte in 4 bits: QLoRA (2305.14314). DPO keeps a reference (none with adapters: they are switched off) and reads pairs; PPO keeps a critic
in training, a reward model and a reference; RLVR a reference and what sampling needs. P90 is the P50 with the least that isn't told
assumed worse: micro batches of 4, weights not split, a quarter for fragments. Refuses: time. Not measured on any trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, log

from schemas.jobs import JobSpec, Kind, ModelFacts, Technique, Tuning
from services.forecaster.core.training_cost import bits_of, trained_parameters, width_and_layers

MIB = float(2**20)
MEMORY_MIB_MAX = 16_777_216
CONTEXT_BYTES = 1.0e9
"""Driver, libraries, communication buffers."""
TRAINED_BYTES = 16.0
ACTIVATION_BYTES, RECOMPUTED_BYTES = 34.0, 2.0
VOCABULARY = 128_000.0
LOGIT_BYTES = 6.0
"""Logits at 16 and their gradient at 32 bits."""
SEQUENCE = 2_048
MICRO_BATCH_MAX = 4
FRAGMENTS_P50, FRAGMENTS_P90 = 1.1, 1.25
KEY_VALUE_SHARE = 0.3
"""Of the weights, for answers in flight: engines take what is free, this is what they need."""
LAYERS_AT_ONCE = 0.1
"""Quantizing goes layer by layer; the rest waits in the host's memory."""
SIGMA_MIN = 0.05
Z90 = 1.2815515655446004


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU on a block; `parts` of the P50."""

    p50_bytes: float
    p90_bytes: float
    parts: tuple[tuple[str, float], ...]

    def p50_mib(self) -> int:
        return _mib(self.p50_bytes)

    def p90_mib(self) -> int:
        return _mib(self.p90_bytes)

    def too_much(self, memory_bytes: float) -> float:
        """The chance that it needs more than a card has, if log bytes are normal."""
        spread = max(log(self.p90_bytes / self.p50_bytes) / Z90, SIGMA_MIN)
        return round(0.5 * (1.0 - erf(log(memory_bytes / self.p50_bytes) / spread / 2**0.5)), 3)


def memory_of(spec: JobSpec, gpus: int) -> Memory | None:
    """What one GPU of a block of `gpus` needs, or None if the facts don't say."""
    facts = spec.model
    if facts is None or not facts.parameters or spec.kind is Kind.DEBUG:
        return None
    parameters = facts.parameters
    if spec.kind is Kind.TRAINING:
        split = _training(facts, parameters, gpus, micro=1)
        worse = _training(facts, parameters, gpus, micro=MICRO_BATCH_MAX)
    elif spec.kind is Kind.BATCH_INFERENCE:
        weights = parameters * (facts.quantization_bits or bits_of(facts)) / 8.0
        split = {"weights": weights / gpus, "answers": KEY_VALUE_SHARE * weights / gpus}
        worse = {"weights": weights / gpus, "answers": 2 * KEY_VALUE_SHARE * weights / gpus}
    else:
        split = {"layers": LAYERS_AT_ONCE * 2.0 * parameters + 4.0e9}
        worse = {"weights": 2.0 * parameters / gpus + 4.0e9}
    p50 = CONTEXT_BYTES + FRAGMENTS_P50 * sum(split.values())
    p90 = CONTEXT_BYTES + FRAGMENTS_P90 * max(sum(worse.values()), sum(split.values()))
    return Memory(p50, p90, (("context", CONTEXT_BYTES), *split.items()))


def _training(facts: ModelFacts, parameters: float, gpus: int, *, micro: int) -> dict[str, float]:
    adapters = facts.tuning is Tuning.PARAMETER_EFFICIENT
    trained = trained_parameters(facts, parameters)
    frozen_bytes = (facts.quantization_bits or bits_of(facts)) / 8.0
    whole = 1 if micro > 1 and adapters else gpus
    parts = {
        "weights": (parameters * frozen_bytes if adapters else 2.0 * trained) / whole,
        "gradients": 2.0 * trained / gpus,
        "optimizer": (TRAINED_BYTES - 4.0) * trained / gpus,
    }
    if adapters:
        parts["weights"] += 2.0 * trained / gpus
    beside = {Technique.DPO: 1.0, Technique.RLHF: 2.0, Technique.RLVR: 1.0}.get(facts.technique or Technique.SFT, 0.0)
    if beside and not (adapters and facts.technique is Technique.DPO):
        parts["reference"] = beside * 2.0 * parameters / gpus
    if facts.technique is Technique.RLHF:
        parts["critic"] = (TRAINED_BYTES * trained + (parameters * frozen_bytes if adapters else 0.0)) / gpus
    if facts.technique in (Technique.RLHF, Technique.RLVR):
        parts["sampling"] = (1.0 + KEY_VALUE_SHARE) * 2.0 * parameters / gpus
    parts["activations"] = _activations(facts, parameters, gpus, micro)
    return parts


def _activations(facts: ModelFacts, parameters: float, gpus: int, micro: int) -> float:
    width, layers = width_and_layers(parameters)
    sequence = facts.sequence_length or SEQUENCE
    batch = micro if facts.global_batch is None else max(1, min(micro, facts.global_batch // gpus))
    if facts.technique is Technique.DPO:
        batch *= 2
    tokens = float(sequence * batch)
    recomputed = RECOMPUTED_BYTES * layers + ACTIVATION_BYTES
    kept = recomputed if facts.gradient_checkpointing else ACTIVATION_BYTES * layers
    return tokens * width * kept + tokens * VOCABULARY * LOGIT_BYTES


def _mib(bytes_: float) -> int:
    return min(max(round(bytes_ / MIB), 1), MEMORY_MIB_MAX)

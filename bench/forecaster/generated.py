"""Generated history: jobs that tell of their models, with true durations from a law that the forecaster's cost model doesn't know.

There is no public trace of GPU jobs with parameters, tokens and techniques. So the truth here has the same *terms* as
`core/training_cost.py`, because physics has, but other constants, and what a submitter doesn't tell: how good a team's code is, slow data
loading, early stops, failures, noise; a third of the jobs tell nothing, others leave facts out, sweeps repeat themselves. Owns that
truth; imports nothing of the forecaster, on purpose. Seeded, so equal everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from schemas.jobs import JobSpec, Kind, ModelFacts, Technique, Tuning

PEAK, ACHIEVED = 9.89e14, 0.41
PASSES = {Technique.SFT: 1.0, Technique.CPT: 1.0, Technique.DPO: 2.3, Technique.RLHF: 8.0, Technique.RLVR: 5.5}
EXPONENT_NODE, EXPONENT_BEYOND = 0.93, 0.72
SIZES = (0.5e9, 1.5e9, 3e9, 7e9, 8e9, 13e9, 32e9, 70e9)
TEAMS, USERS_PER_TEAM = 12, 4
JOBS_PER_HOUR = 18.0
SILENT_SHARE, FORGETFUL_SHARE = 0.33, 0.25
SLOW_DATA_SHARE, SLOW_DATA_FACTOR = 0.12, 2.2
EARLY_SHARE = 0.15
NOISE = 0.15
DURATION_S_RANGE = (5.0, 400_000.0)


@dataclass(frozen=True, slots=True)
class GeneratedJob:
    """A submission and how long it will run on the block it asks for."""

    job_id: str
    at_s: float
    spec: JobSpec
    run_s: float


@dataclass(slots=True)
class _World:
    """Hidden factors: per team, and per thing that a user runs again and again."""

    chance: np.random.Generator
    team_log: np.ndarray
    code_log: dict[tuple[str, str, str], float]

    def slowness(self, team: int, user: str, what: str) -> float:
        key = (str(team), user, what)
        if key not in self.code_log:
            slow_data = self.chance.random() < SLOW_DATA_SHARE
            self.code_log[key] = self.chance.normal(0, 0.25) + (np.log(SLOW_DATA_FACTOR) if slow_data else 0.0)
        return float(np.exp(self.team_log[team] + self.code_log[key]))


def generated_jobs(count: int, seed: int = 1) -> list[GeneratedJob]:
    """In order of submission."""
    chance = np.random.default_rng(seed)
    world = _World(chance, chance.normal(0, 0.35, TEAMS), {})
    jobs: list[GeneratedJob] = []
    at_s = 0.0
    while len(jobs) < count:
        at_s += float(chance.exponential(3_600.0 / JOBS_PER_HOUR)) * 3
        team = int(chance.choice(TEAMS))
        user = f"u{team}-{int(chance.choice(USERS_PER_TEAM))}"
        kind = Kind(chance.choice(["training", "batch_inference", "quantization", "debug"], p=[0.6, 0.15, 0.08, 0.17]))
        silent = chance.random() < SILENT_SHARE
        first = _facts(chance, kind)
        what = f"{kind.value}-{first.base_model}"
        gpus = int(chance.choice([1, 2, 4, 8, 16], p=[0.35, 0.15, 0.15, 0.3, 0.05])) if kind is Kind.TRAINING else 1
        sweep = int(chance.geometric(0.35))
        for number in range(min(sweep, count - len(jobs))):
            facts = _varied(chance, first, number)
            true_s = _true_s(chance, kind, facts, gpus, world.slowness(team, user, what))
            told = None if silent or kind is Kind.DEBUG else _as_told(chance, facts)
            spec = JobSpec(
                kind=kind,
                team=f"t{team}",
                user=user,
                priority=3,
                sizes=[gpus],
                requested_gpus=gpus,
                template=what,
                model=told,
            )
            moment = at_s + number * float(chance.exponential(60.0))
            jobs.append(GeneratedJob(f"g{len(jobs)}", moment, spec, float(np.clip(true_s, *DURATION_S_RANGE))))
    return sorted(jobs, key=lambda job: job.at_s)


def _facts(chance: np.random.Generator, kind: Kind) -> ModelFacts:
    parameters = float(chance.choice(SIZES))
    name = f"m{parameters / 1e9:g}b"
    if kind is Kind.BATCH_INFERENCE:
        return ModelFacts(
            base_model=name,
            parameters=parameters,
            dataset_items=float(10 ** chance.uniform(2.5, 5)),
            sequence_length=int(chance.choice([512, 1_366, 2_076, 8_192])),
        )
    if kind is Kind.QUANTIZATION:
        bits, samples = int(chance.choice([3, 4, 8])), float(chance.choice([64, 128, 512]))
        return ModelFacts(base_model=name, parameters=parameters, quantization_bits=bits, dataset_items=samples)
    tuning = Tuning.PARAMETER_EFFICIENT if chance.random() < 0.6 else Tuning.FULL
    technique = Technique(chance.choice(["sft", "dpo", "rlhf", "rlvr", "cpt"], p=[0.5, 0.15, 0.05, 0.15, 0.15]))
    return ModelFacts(
        base_model=name,
        parameters=parameters,
        trainable_parameters=parameters * (float(10 ** chance.uniform(-3, -1.5)) if tuning is not Tuning.FULL else 1.0),
        tuning=tuning,
        technique=technique,
        dataset_tokens=float(10 ** chance.uniform(6, 8.7)),
        sequence_length=int(chance.choice([1_024, 2_048, 4_096, 16_384])),
        global_batch=int(chance.choice([8, 32, 64, 256])),
        epochs=float(chance.choice([1, 1, 2, 3, 5])),
        precision="bf16",
        gradient_checkpointing=bool(chance.random() < 0.5),
    )


def _varied(chance: np.random.Generator, first: ModelFacts, number: int) -> ModelFacts:
    """A sweep changes one thing at a time."""
    if number == 0 or first.epochs is None or chance.random() < 0.5:
        return first
    return replace(first, epochs=float(chance.choice([1, 2, 3])))


def _as_told(chance: np.random.Generator, facts: ModelFacts) -> ModelFacts:
    """Some submitters leave things out, or round them."""
    told = facts
    if chance.random() < FORGETFUL_SHARE:
        told = replace(told, sequence_length=None if told.dataset_tokens else told.sequence_length, global_batch=None)
    if chance.random() < FORGETFUL_SHARE:
        told = replace(told, gradient_checkpointing=None, epochs=None if told.epochs == 1 else told.epochs)
    if told.dataset_tokens is not None:
        told = replace(told, dataset_tokens=float(f"{told.dataset_tokens * chance.lognormal(0, 0.1):.2g}"))
    return told


def _true_s(chance: np.random.Generator, kind: Kind, facts: ModelFacts, gpus: int, slowness: float) -> float:
    noise = slowness * float(chance.lognormal(0, NOISE))
    if kind is Kind.DEBUG:
        long = chance.random() < 0.25
        return float(chance.lognormal(np.log(9_000 if long else 240), 0.8))
    assert facts.parameters is not None
    startup = float(chance.lognormal(np.log(100.0), 0.5)) + 2 * facts.parameters / 1.5e9
    if kind is Kind.QUANTIZATION:
        seconds = facts.parameters * 6.5e-8 * (0.6 + 0.4 * (facts.dataset_items or 128) / 128)
        return startup + seconds * (1.2 if facts.quantization_bits == 3 else 1.0) * noise
    if kind is Kind.BATCH_INFERENCE:
        tokens = (facts.dataset_items or 0) * (facts.sequence_length or 0)
        per_token = 2 * facts.parameters * 0.86 / (PEAK * 0.45) + 0.14 * 2 * facts.parameters / 3.35e12 / 0.55 / 48
        return startup + tokens * per_token * noise
    return startup + _training_s(facts, gpus) * noise * _stopped_early(chance)


def _training_s(facts: ModelFacts, gpus: int) -> float:
    assert facts.technique is not None
    assert facts.parameters is not None
    assert facts.trainable_parameters is not None
    assert facts.dataset_tokens is not None
    weights = 2 * (facts.trainable_parameters if facts.tuning is Tuning.PARAMETER_EFFICIENT else facts.parameters)
    per_token = 4 * facts.parameters + weights
    width = (128 * facts.parameters / 12) ** (1 / 3)
    per_token += 6 * width / 128 * width * (facts.sequence_length or 0)
    per_token += 2 * facts.parameters if facts.gradient_checkpointing else 0
    inside = min(gpus, 8)
    together = inside**EXPONENT_NODE * (gpus / inside) ** EXPONENT_BEYOND
    step_tokens = (facts.global_batch or 1) * (facts.sequence_length or 1) / gpus
    flop = per_token * facts.dataset_tokens * (facts.epochs or 1.0) * PASSES[facts.technique]
    return flop / (PEAK * ACHIEVED * together * step_tokens / (step_tokens + 700))


def _stopped_early(chance: np.random.Generator) -> float:
    """Failed, or good enough before its end."""
    return float(chance.uniform(0.05, 1.0)) if chance.random() < EARLY_SHARE else 1.0

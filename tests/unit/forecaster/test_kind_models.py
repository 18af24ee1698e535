"""What the facts of a job say of its time: per kind the directions that must hold, published figures met, and nothing absurd."""

from __future__ import annotations

from math import exp, isfinite, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.jobs import CheckpointMode, CheckpointPolicy, JobSpec, Kind, ModelFacts, Technique, Tuning
from services.forecaster.core.cards import CARDS, UNKNOWN, card_of
from services.forecaster.core.debug_runs import short_or_long_hazard
from services.forecaster.core.job_memory import MIB, memory_of
from services.forecaster.core.kind_models import MODELS, day_one_hazard, expected
from services.forecaster.core.survival import DURATION_S_MAX, quantile
from tests.build import spec

H100, A100 = card_of("NVIDIA H100 80GB HBM3"), card_of("A100-SXM4-80GB")
BASE = {"parameters": 7e9, "dataset_tokens": 1e9, "technique": Technique.SFT, "tuning": Tuning.FULL}


def seconds(gpus: int = 8, card=H100, kind: Kind = Kind.TRAINING, job: dict | None = None, **changed) -> float:
    facts = {name: value for name, value in (BASE | changed).items() if value is not None}
    found = expected(spec(gpus, kind=kind, model=ModelFacts(**facts), **(job or {})), gpus, card)
    assert found is not None
    assert sum(share for _, share in found.parts) == pytest.approx(1.0)
    return exp(found.log_s)


def memory(gpus: int, **changed):
    facts = {name: value for name, value in (BASE | changed).items() if value is not None}
    found = memory_of(spec(gpus, model=ModelFacts(**facts)), gpus)
    assert found is not None
    return found


# Cards


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"), ("H200", "H200"), ("Tesla V100-SXM2-32GB", "V100"), ("NVIDIA A10", "A10"),
        ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA L40S", "L40S"), ("NVIDIA L4", "L4"), ("T4", "T4"), ("mystery", "unknown"),
    ],
)  # fmt: skip
def test_cards_are_known_by_their_names(told, name):
    assert card_of(told).name == name
    assert card_of(told).known == (name != "unknown")


# Training


def test_the_cost_of_training_grows_with_what_makes_work():
    plain = seconds()
    assert seconds(tuning=Tuning.PARAMETER_EFFICIENT) < plain < seconds(technique=Technique.DPO)
    assert seconds(technique=Technique.DPO) < seconds(technique=Technique.RLVR) < seconds(technique=Technique.RLHF)
    assert seconds(technique=Technique.CPT) == plain
    assert plain < seconds(gradient_checkpointing=True)
    assert plain < seconds(sequence_length=32_768)
    assert plain < seconds(precision="fp32")
    assert seconds(precision="fp8") < plain
    assert plain < seconds(card=A100)
    assert seconds(gpus=16) < plain < seconds(gpus=4)
    assert seconds(gpus=16) > plain / 2
    assert seconds(global_batch=1, sequence_length=128) > 3 * seconds(global_batch=512, sequence_length=128)
    saving = {"checkpoint": CheckpointPolicy(mode=CheckpointMode.SIGNAL, interval_s=60.0)}
    assert plain < seconds(job=saving)


def test_a_known_run_is_in_the_right_range():
    """Llama 2 7B: 184,320 A100 hours for 2 T tokens (Touvron et al., 2307.09288), by teams that tuned it: 0.52 of the peak."""
    gpu_hours = seconds(gpus=1, card=A100, dataset_tokens=2e12, technique=Technique.CPT) / 3_600
    assert gpu_hours == pytest.approx(DURATION_S_MAX / 3_600), "beyond 60 days everything is 60 days"
    hours = 1_000 * seconds(gpus=1, card=A100, dataset_tokens=2e9, technique=Technique.CPT) / 3_600
    assert 184_320 / 2 < hours < 184_320 * 2


# Other kinds


def test_quantization_meets_the_published_times():
    """GPTQ on one A100: 13 B in 20.9 min, 30 B in 44.9 min, 175 B in 4.2 h."""
    for parameters, minutes in ((13e9, 20.9), (30e9, 44.9), (175e9, 252.0)):
        said = seconds(1, A100, Kind.QUANTIZATION, parameters=parameters, dataset_tokens=None, quantization_bits=4)
        assert said / 60 == pytest.approx(minutes, rel=0.4)
    bits8 = seconds(1, A100, Kind.QUANTIZATION, dataset_tokens=None, quantization_bits=8)
    assert bits8 < seconds(1, A100, Kind.QUANTIZATION, dataset_tokens=None, quantization_bits=4)
    few = seconds(1, A100, Kind.QUANTIZATION, dataset_tokens=None, dataset_items=16, quantization_bits=4)
    assert few < seconds(1, A100, Kind.QUANTIZATION, dataset_tokens=None, dataset_items=1_024, quantization_bits=4)


def test_batch_inference_is_volume_times_time_per_item():
    one, ten = (
        seconds(1, H100, Kind.BATCH_INFERENCE, dataset_tokens=None, dataset_items=items, sequence_length=1_000)
        for items in (1e5, 1e6)
    )
    assert 7 < ten / one < 10.01
    assert seconds(1, H100, Kind.BATCH_INFERENCE, global_batch=8) > seconds(
        1, H100, Kind.BATCH_INFERENCE, global_batch=64
    )
    volume = seconds(1, H100, Kind.BATCH_INFERENCE, parameters=None, dataset_tokens=None, dataset_items=10_000)
    assert volume == pytest.approx(10_000)
    nothing = spec(1, kind=Kind.BATCH_INFERENCE, model=ModelFacts(base_model="sdxl"))
    assert expected(nothing, 1, H100) is None


def test_a_debug_job_that_outlives_the_short_ones_is_expected_to_last():
    hazard = short_or_long_hazard()
    median, late = quantile(hazard, 0.5, 0.0), quantile(hazard, 0.9, 0.0)
    assert exp(median) < 1_200
    assert exp(late) > 4 * 3_600
    after_an_hour = exp(quantile(hazard, 0.5, log(3_600.0)))
    assert after_an_hour > 3 * 3_600
    np.testing.assert_array_equal(day_one_hazard(Kind.DEBUG), hazard)
    assert expected(spec(1, kind=Kind.DEBUG, model=ModelFacts(**BASE)), 1, H100) is None


# Memory


def test_memory_follows_the_sixteen_bytes_and_splits_over_the_block():
    parts = dict(memory(1).parts)
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == pytest.approx(16 * 7e9)
    assert dict(memory(8).parts)["optimizer"] == pytest.approx(12 * 7e9 / 8)
    assert memory(1).too_much(80e9) > 0.95
    assert memory(8, sequence_length=2_048, gradient_checkpointing=True).too_much(80e9) < 0.05
    assert memory(1, tuning=Tuning.PARAMETER_EFFICIENT).p50_bytes < memory(1).p50_bytes / 3
    assert memory(1, gradient_checkpointing=True).p50_bytes < memory(1).p50_bytes
    assert (
        memory(8, technique=Technique.RLHF).p50_bytes
        > memory(8, technique=Technique.DPO).p50_bytes
        > memory(8).p50_bytes
    )
    quantized = memory(
        1, tuning=Tuning.PARAMETER_EFFICIENT, precision="nf4", gradient_checkpointing=True, parameters=70e9
    )
    assert 35e9 < quantized.p50_bytes < 80e9, "QLoRA's promise: 65 B on one card of 48 GB, activations small"


def test_memory_of_other_kinds_and_of_jobs_that_tell_nothing():
    serving = memory_of(spec(2, kind=Kind.BATCH_INFERENCE, model=ModelFacts(parameters=70e9)), 2)
    assert serving is not None
    assert 70 * 1024 < serving.p50_mib() < serving.p90_mib()
    assert memory_of(spec(1), 1) is None
    assert memory_of(spec(1, model=ModelFacts(dataset_tokens=1e9)), 1) is None


# Whatever is told


facts_of_any_kind = st.builds(
    ModelFacts,
    parameters=st.none() | st.floats(0, 1e15),
    trainable_parameters=st.none() | st.floats(0, 1e15),
    tuning=st.none() | st.sampled_from(Tuning),
    technique=st.none() | st.sampled_from(Technique),
    dataset_tokens=st.none() | st.floats(0, 1e18),
    dataset_items=st.none() | st.floats(0, 1e15),
    sequence_length=st.none() | st.integers(1, 100_000_000),
    global_batch=st.none() | st.integers(1, 100_000_000),
    epochs=st.none() | st.floats(0, 1e6),
    precision=st.none() | st.sampled_from(["bf16", "fp8", "nf4", "fp64", "tf32", "?"]),
    quantization_bits=st.none() | st.integers(1, 64),
    gradient_checkpointing=st.none() | st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(facts_of_any_kind, st.sampled_from(Kind), st.sampled_from([1, 8, 65_536]), st.sampled_from([*CARDS, UNKNOWN]))
def test_whatever_is_told_the_answer_is_finite_and_in_order(facts, kind, gpus, card):
    job: JobSpec = spec(gpus, kind=kind, model=facts)
    found = expected(job, gpus, card)
    if found is not None:
        assert 0.0 <= found.log_s <= log(DURATION_S_MAX)
        assert all(isfinite(share) for _, share in found.parts)
        assert MODELS[kind].SPREAD <= found.spread < 3
        assert np.isfinite(day_one_hazard(kind, found)).all()
    needed = memory_of(job, gpus)
    if needed is not None:
        assert 0 < needed.p50_mib() <= needed.p90_mib() <= 16_777_216
        assert 0.0 <= needed.too_much(80_000 * MIB) <= 1.0

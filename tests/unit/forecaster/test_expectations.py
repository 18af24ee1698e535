"""Facts corrected by what came and weighed against history; forecasts of jobs that tell of their model, memory included."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from schemas.jobs import JobSubmitted, Kind, ModelFacts, Technique, Tuning
from services.forecaster.core.expectations import KEYS_MAX, Expectations, Told
from services.forecaster.core.kind_models import Expected
from services.forecaster.shell.explanation import explain
from tests.build import START_MS, accepted, catalog, spec
from tests.unit.forecaster.forecaster_builders import Stream, completed, events, handler, now, started

KEYS = (("training",), ("training", "blue"), ("training", "blue", "ann", "llama"))
EXPECTED = Expected(log_s=5.0, spread=1.0, parts=())
FACTS = ModelFacts(parameters=7e9, dataset_tokens=1e8, tuning=Tuning.FULL, technique=Technique.SFT)


def told(log_s: float = 5.0, known: bool = True, history: tuple[float, float] = (5.0, 6.0)) -> Told:
    return Told(Expected(log_s, 1.0, ()), known, (log_s, log_s + 1.28), history)


def test_the_first_opinion_is_the_cost_model_s():
    opinion = Expectations().opinion(EXPECTED, KEYS, known=False)
    assert (opinion.log_p50, opinion.log_p90) == (5.0, pytest.approx(6.28, abs=0.01))
    assert opinion.share == pytest.approx(0.9)
    assert Expectations().opinion(EXPECTED, KEYS, known=True).share == pytest.approx(0.3)


def test_runs_that_take_twice_as_long_correct_the_expectation_and_narrow_it():
    learnt = Expectations()
    chance = np.random.default_rng(1)
    for _ in range(60):
        learnt.ended(told(), KEYS, 5.0 + log(2) + chance.normal(0, 0.2))
    opinion = learnt.opinion(EXPECTED, KEYS, known=True)
    assert opinion.log_p50 == pytest.approx(5.0 + log(2), abs=0.08)
    assert 0.15 < opinion.log_p90 - opinion.log_p50 < 0.6
    others = learnt.opinion(EXPECTED, (KEYS[0], ("training", "red"), ("training", "red", "bob", "")), known=False)
    assert others.log_p50 == pytest.approx(5.0 + log(2), abs=0.1), "another team leans on the kind"
    new_kind = learnt.opinion(EXPECTED, (("quantization",),), known=False)
    assert new_kind.log_p50 == 5.0


def test_whoever_was_right_gets_the_say():
    good_facts, good_history = Expectations(), Expectations()
    chance = np.random.default_rng(2)
    for _ in range(50):
        log_s = chance.uniform(3, 9)
        good_facts.ended(told(log_s, history=(6.0, 9.0)), KEYS, log_s + chance.normal(0, 0.1))
        good_history.ended(told(log_s, history=(6.0, 6.4)), KEYS, 6.0 + chance.normal(0, 0.1))
    assert good_facts.opinion(EXPECTED, KEYS, known=True).share > 0.95
    assert good_history.opinion(EXPECTED, KEYS, known=True).share < 0.05
    assert good_facts.opinion(EXPECTED, KEYS, known=False).share == pytest.approx(0.9), "records are kept apart"


def test_keys_are_bounded():
    small = Expectations(keys_max=100)
    for number in range(1_000):
        small.ended(told(), (("training",), ("training", f"t{number}")), 5.0)
    assert small.key_count == 100
    assert KEYS_MAX == 100_000


# Through the handler


def test_a_new_team_s_job_with_facts_is_forecast_by_them_with_memory_per_size():
    forecaster, stream = handler(), Stream()
    for number in range(30):
        forecaster.handle(stream.add(accepted(f"p{number}", 1)), now())
        forecaster.handle(stream.add(started(f"p{number}", START_MS)), now())
        forecaster.handle(stream.add(completed(f"p{number}", START_MS + 60_000, 60.0)), now(START_MS + 60_000))
    job = accepted("big", 1, 8, team="red", user="eve", model=FACTS, requested_gpus=8)
    answer = events(forecaster.handle(stream.add(job), now(START_MS + 70_000)))[0]
    alone, together = answer.sizes
    assert alone.p50_s > 1_000, "an hour's work, whatever short jobs others ran"
    assert alone.out_of_memory > 0.9
    assert together.out_of_memory < 0.1
    assert alone.memory_mib > 100_000
    assert together.memory_mib < together.memory_p90_mib


def test_the_cluster_learns_how_its_jobs_relate_to_their_facts():
    forecaster, stream = handler(), Stream()
    chance = np.random.default_rng(3)
    at_ms = START_MS

    def facts(tokens: float) -> ModelFacts:
        return ModelFacts(parameters=1e9, dataset_tokens=tokens, tuning=Tuning.FULL, technique=Technique.SFT)

    for number in range(80):
        tokens = float(10 ** chance.uniform(8, 10))
        run_s = 3.0 * (122 + 6e9 * tokens / (9.89e14 * 0.3)) * float(chance.lognormal(0, 0.1))
        forecaster.handle(stream.add(accepted(f"r{number}", 1, at_ms=at_ms, model=facts(tokens))), now(at_ms))
        forecaster.handle(stream.add(started(f"r{number}", at_ms)), now(at_ms))
        at_ms += round(run_s * 1000)
        forecaster.handle(stream.add(completed(f"r{number}", at_ms, run_s)), now(at_ms))
    for tokens in (2e8, 5e9):
        job = accepted(f"next{tokens:g}", 1, at_ms=at_ms, model=facts(tokens))
        size = events(forecaster.handle(stream.add(job), now(at_ms)))[0].sizes[0]
        true_s = 3.0 * (122 + 6e9 * tokens / (9.89e14 * 0.3))
        assert size.p50_s == pytest.approx(true_s, rel=0.25)
        assert size.p90_s < 2.5 * true_s


def test_an_explanation_names_the_parts_of_the_cost_and_of_the_memory():
    job = JobSubmitted(
        job_id="big", submitted_ms=START_MS, spec=spec(1, 8, model=FACTS, requested_gpus=8, team="nobody")
    )
    found = explain(job, pools=list(catalog().clusters["c0"].pools.values()))
    assert found.facts is not None
    assert sum(found.facts.parts.values()) == pytest.approx(1.0, abs=0.001)
    assert {"startup", "compute"} <= set(found.facts.parts)
    assert {"weights", "gradients", "optimizer", "activations"} <= set(found.facts.memory)
    assert found.facts.share == pytest.approx(0.9)
    assert found.sizes[0].out_of_memory > 0.9
    asked = next(size for size in found.sizes if size.gpus == 8)
    assert 0.5 * found.facts.p50_s < asked.p50_s < 2 * found.facts.p50_s, "close to the facts"
    silent = explain(JobSubmitted(job_id="plain", submitted_ms=START_MS, spec=spec(1)))
    assert silent.facts is None
    assert silent.sizes[0].memory_mib is None


def test_debug_jobs_of_unknown_users_are_short_or_long():
    forecaster, stream = handler(), Stream()
    job = accepted("notebook", 1, kind=Kind.DEBUG)
    size = events(forecaster.handle(stream.add(job), now()))[0].sizes[0]
    assert size.p50_s < 1_200 < 14_400 < size.p90_s

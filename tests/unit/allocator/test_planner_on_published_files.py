"""The seven published problems: baselines reproduce the reference numbers, fast mode meets its goals."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from services.allocator.core.baselines import plan_backfill, plan_fifo
from services.allocator.core.heuristic import default_iterations, plan_fast
from services.allocator.core.problem import Problem
from services.allocator.core.scenario import Scenario, plan_document, problem_of, read_scenario
from services.allocator.core.value import completed, utilization, value_of
from services.allocator.core.verify import verify_plan

FILES = sorted((Path(__file__).parents[2] / "data" / "scenarios").glob("*.json"))
CONTENDED = {"training_heavy", "mixed_control", "inference_heavy", "priority_inversion", "batch_burst"}


def load(path: Path) -> tuple[Scenario, Problem]:
    scenario = read_scenario(path.read_bytes())
    return scenario, problem_of(scenario)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize(("name", "planner"), [("fifo", plan_fifo), ("priority_backfill", plan_backfill)])
def test_baselines_reproduce_the_reference(path: Path, name: str, planner) -> None:
    scenario, problem = load(path)
    plan, reference = planner(problem), scenario.reference[name]
    score = plan_document(problem, plan, 0.0).score
    assert score.value == pytest.approx(reference["value"], abs=1e-4)
    assert score.utilization == pytest.approx(reference["utilization"], abs=5e-5)
    assert (score.unmet, score.completed) == (reference["unmet"], reference["completed"])
    assert verify_plan(problem, plan) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_fast_mode_meets_its_goals_on_every_file(path: Path) -> None:
    scenario, problem = load(path)
    for iterations in (0, default_iterations(problem)):
        plan = plan_fast(problem, iterations)
        assert verify_plan(problem, plan) == []
        assert value_of(problem, plan) >= 0.96 * scenario.reference["best_known"]["value"]
    assert completed(problem, plan) >= scenario.reference["fifo"]["completed"]
    assert {"training_heavy": 0.93, "uniform_priority": 0.95}.get(scenario.name, 0.0) <= utilization(problem, plan)


def test_fast_mode_gains_more_than_the_published_allocator() -> None:
    gains = {}
    for path in FILES:
        scenario, problem = load(path)
        plan = plan_fast(problem, default_iterations(problem))
        gains[scenario.name] = value_of(problem, plan) / scenario.reference["fifo"]["value"] - 1
    assert mean(gain for name, gain in gains.items() if name in CONTENDED) >= 1.05
    assert min(gain for name, gain in gains.items() if name in CONTENDED) >= 0.34
    assert gains["scale_64"] >= 0.35

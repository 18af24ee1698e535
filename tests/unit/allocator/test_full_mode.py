"""Full mode agrees with brute force, never loses to fast mode, proves what it says, and repeats itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.allocator.core.heuristic import default_iterations, plan_fast
from services.allocator.core.model import candidates_of, counts_model
from services.allocator.core.model_bound import priced_bound
from services.allocator.core.model_cards import blocks_of, cards_model, plan_of, values_of
from services.allocator.core.problem import Application, Option, QueuedJob, build_problem
from services.allocator.core.scenario import problem_of, read_scenario
from services.allocator.core.verify import verify_plan
from services.allocator.shell.cp_sat import Limit, solve
from services.allocator.shell.solver import plan_full
from tests.oracle.boards import random_board, tiny_board
from tests.oracle.brute_force import brute_force

FILES = sorted((Path(__file__).parents[2] / "data" / "scenarios").glob("*.json"))
QUICK = Limit(2.0, deterministic=True)
pytestmark = pytest.mark.full_mode


@pytest.mark.parametrize("seed", range(16))
def test_tiny_boards_agree_with_brute_force(seed: int) -> None:
    problem = tiny_board(seed)
    full = plan_full(problem, QUICK, workers=1)
    assert full.optimal
    assert full.plan.value == brute_force(problem)
    assert full.bound is not None
    assert full.bound >= full.plan.value
    assert verify_plan(problem, full.plan) == []


@pytest.mark.parametrize("seed", range(8))
def test_any_board_verifies_and_is_between_fast_mode_and_the_bound(seed: int) -> None:
    problem = random_board(seed, steps=12, node_sizes=(4, 6, 1, 2))
    full = plan_full(problem, Limit(0.3), workers=1)
    assert verify_plan(problem, full.plan) == []
    assert full.plan.mode == "full"
    assert full.plan.value >= plan_fast(problem, default_iterations(problem)).value
    assert full.bound is None or full.bound >= full.plan.value


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_limit_already_spent_still_gives_a_plan_no_worse_than_fast_mode(deterministic: bool) -> None:
    problem = random_board(3, steps=12, node_sizes=(4, 6, 1, 2))
    full = plan_full(problem, Limit(1e-9, deterministic), workers=1)
    assert verify_plan(problem, full.plan) == []
    assert full.plan.value >= plan_fast(problem, default_iterations(problem)).value


@pytest.mark.parametrize("seed", range(12))
def test_every_plan_of_fast_mode_is_a_solution_of_both_models(seed: int) -> None:
    """The relaxation is one and the exact model forbids nothing legal: fixing its variables to the plan stays feasible."""
    problem = random_board(seed, steps=12, node_sizes=(8, 4, 6))
    plan = plan_fast(problem, 20)
    floors = np.zeros((problem.apps, problem.steps), np.int64)
    cards = cards_model(problem, floors, blocks_of(problem), np.ones((problem.apps, problem.gpus), np.bool_))
    values = np.array(values_of(problem, cards, plan), dtype=np.int64)
    for row in cards.model.rows:
        assert row.low <= int(values[row.variables] @ row.coefficients) <= row.high
    assert all(int(values[group].sum()) <= 1 for group in cards.model.exclusive)
    assert plan_of(problem, cards, values).value == plan.value
    relaxed = counts_model(problem, floors)
    prices = np.zeros(len(relaxed.model.rows))
    assert relaxed.model.bound_of(priced_bound(relaxed.model, prices).bound) >= plan.value
    outcome = solve(relaxed.model, Limit(1.0, deterministic=True), 1)
    assert outcome.bound is not None
    assert relaxed.model.bound_of(outcome.bound) >= plan.value


def test_one_more_gpu_never_lowers_the_proven_optimum() -> None:
    jobs = [
        QueuedJob("a", 3000, (Option(1, 3), Option(2, 2))),
        QueuedJob("b", 2000, (Option(2, 2),)),
        QueuedJob("c", 5000, (Option(1, 4),)),
    ]
    app = Application("app", 2000, (1, 2, 2, 1), switch_max=1)
    values = []
    for size in range(1, 6):
        problem = build_problem(steps=4, node_sizes=(size,), queued=jobs, applications=(app,))
        full = plan_full(problem, QUICK, workers=1)
        assert full.optimal
        values.append(full.plan.value / problem.value_one)
    assert values == sorted(values)


def test_the_same_limit_gives_the_same_bytes() -> None:
    problem = problem_of(read_scenario(next(path for path in FILES if path.stem == "mixed_control").read_bytes()))
    first, second = (plan_full(problem, Limit(0.1, deterministic=True)) for _ in range(2))
    assert first.plan.start.tobytes() == second.plan.start.tobytes()
    assert first.plan.first_gpu.tobytes() == second.plan.first_gpu.tobytes()
    assert first.plan.segments.tobytes() == second.plan.segments.tobytes()
    assert (first.bound, first.rounds) == (second.bound, second.rounds)


def test_prices_bound_every_solution_whatever_they_are() -> None:
    rng = np.random.default_rng(0)
    for seed in range(20):
        problem = tiny_board(seed)
        model = counts_model(problem, np.zeros((problem.apps, problem.steps), np.int64)).model
        scale = problem.value_one >> model.shift
        prices = rng.integers(0, 9 * max(1, scale), len(model.rows)).astype(np.float64)
        assert model.bound_of(priced_bound(model, prices).bound) >= brute_force(problem)


def test_an_application_keeps_the_floor_that_fast_mode_keeps() -> None:
    """Batch work worth more than the penalty doesn't take the floor."""
    app = Application("app", 1000, (2, 2, 2, 2), floor=1)
    jobs = [QueuedJob(f"j{i}", 900_000, (Option(1, 4),), arrival=i) for i in range(4)]
    problem = build_problem(steps=4, node_sizes=(2,), queued=jobs, applications=(app,))
    full = plan_full(problem, QUICK, workers=1)
    assert full.plan.app_counts(problem).min() >= 1


def test_a_solver_stopped_at_once_proves_nothing_false() -> None:
    problem = problem_of(read_scenario(next(path for path in FILES if path.stem == "scale_64").read_bytes()))
    plan = plan_fast(problem, 0)
    model = counts_model(problem, np.zeros((problem.apps, problem.steps), np.int64)).model
    for seconds in (1e-6, 1e-3, 1e-2, 0.05):
        outcome = solve(model, Limit(seconds, deterministic=True), 1)
        assert outcome.bound is None or model.bound_of(outcome.bound) >= plan.value


def test_an_empty_problem_is_proven_at_once() -> None:
    full = plan_full(build_problem(steps=24, node_sizes=()), QUICK)
    assert (full.plan.value, full.bound, full.optimal) == (0, 0, True)
    assert len(candidates_of(build_problem(steps=24, node_sizes=(8,))).job) == 0

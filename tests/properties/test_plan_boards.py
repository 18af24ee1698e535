"""What holds on every board: legality, optimum as a bound, equality with the slow reading, names without meaning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.core.baselines import plan_backfill, plan_fifo
from services.allocator.core.heuristic import plan_fast, plan_repaired
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Problem
from services.allocator.core.verify import verify_plan
from tests.oracle.boards import random_board, tiny_board
from tests.oracle.brute_force import brute_force
from tests.oracle.naive_planner import naive_plan

SEEDS = st.integers(min_value=0, max_value=2**32)
BOARDS = settings(max_examples=120, deadline=None)


def grid(plan: Plan) -> tuple[bytes, ...]:
    arrays = (plan.start, plan.first_gpu, plan.option, plan.segments, plan.reason)
    return tuple(np.ascontiguousarray(array).tobytes() for array in arrays)


@BOARDS
@given(SEEDS, st.integers(min_value=0, max_value=60))
def test_every_plan_is_legal(seed: int, iterations: int) -> None:
    problem = random_board(seed)
    for plan in (plan_fast(problem, iterations, seed), plan_fifo(problem), plan_backfill(problem)):
        legal = [v for v in verify_plan(problem, plan) if plan.mode == "fast" or v.rule not in {"switch_cap"}]
        assert legal == []  # a baseline has no switch cap: it reserves for the whole window


@BOARDS
@given(SEEDS)
def test_the_first_grid_is_the_slow_reading_of_it(seed: int) -> None:
    problem = random_board(seed)
    plan = plan_fast(problem, 0)
    places, segments = naive_plan(problem)
    assert list(zip(plan.start.tolist(), plan.first_gpu.tolist(), plan.option.tolist(), strict=True)) == places
    assert sorted(map(tuple, plan.segments.tolist())) == sorted(segments)


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_no_plan_beats_the_optimum_of_a_tiny_board(seed: int) -> None:
    problem = tiny_board(seed)
    assert plan_fast(problem, 40, seed).value <= brute_force(problem)


@BOARDS
@given(SEEDS)
def test_names_mean_nothing(seed: int) -> None:
    problem = random_board(seed)
    renamed = replace(
        problem,
        job_ids=tuple(f"z{len(problem.job_ids) - i}" for i in range(problem.jobs)),
        app_ids=tuple(f"x{len(problem.app_ids) - i}" for i in range(problem.apps)),
    )
    assert grid(plan_fast(problem, 20, 1)) == grid(plan_fast(renamed, 20, 1))


@BOARDS
@given(SEEDS, st.integers(min_value=0, max_value=40))
def test_a_larger_budget_never_loses_legality_and_same_input_gives_same_bytes(seed: int, iterations: int) -> None:
    problem = random_board(seed)
    assert grid(plan_fast(problem, iterations, 3)) == grid(plan_fast(random_board(seed), iterations, 3))


@BOARDS
@given(SEEDS)
def test_repair_keeps_what_fits_and_stays_legal(seed: int) -> None:
    problem = random_board(seed)
    plan = plan_fast(problem, 10, seed)
    again = plan_repaired(problem, plan)
    assert verify_plan(problem, again) == []
    kept = plan.start >= 0
    assert np.array_equal(again.start[kept], plan.start[kept])
    assert np.array_equal(again.first_gpu[kept], plan.first_gpu[kept])
    lost = np.array([2 if gpu % 3 == 0 else state for gpu, state in enumerate(problem.gpu_state.tolist())], np.int64)
    broken = replace(problem, gpu_state=lost)
    assert verify_plan(broken, plan_repaired(broken, plan)) == []


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from([63, 64, 65]))
def test_the_seam_between_two_words_of_time(seed: int, steps: int) -> None:
    problem: Problem = random_board(seed, steps=steps, node_sizes=(8, 4))
    plan = plan_fast(problem, 15, seed)
    assert verify_plan(problem, plan) == []
    assert plan_fast(problem, 0).start.tolist() == [start for start, _, _ in naive_plan(problem)[0]]

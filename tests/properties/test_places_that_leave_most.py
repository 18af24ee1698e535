"""Of equally good places the one that leaves most: never at the price of value or of a start, and where it decides it decides rightly."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.core.fragmentation import block_counts
from services.allocator.core.heuristic import FINISH_SHARE, facts_of, plan_fast
from services.allocator.core.kernels.search import solve
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Option, Problem, QueuedJob, RunningBlock, build_problem
from services.allocator.core.verify import verify_plan
from tests.oracle.boards import random_board

MIXED = (8, 8, 2, 4, 6)


def first_gpu(*offered: int, **board) -> int:
    queued = [QueuedJob("q", 1000, tuple(Option(gpus, 2) for gpus in offered))]
    plan = plan_fast(build_problem(**{"steps": 4, "node_sizes": MIXED, "queued": queued} | board), 0)
    assert plan.start[0] == 0
    return int(plan.first_gpu[0])


def free_blocks(problem: Problem, plan: Plan) -> list[int]:
    """Blocks by size class that are free in the first step."""
    taken: set[int] = set()
    for first, size in zip(problem.running_first.tolist(), problem.running_gpus.tolist(), strict=True):
        taken.update(range(first, first + size))
    for job in range(problem.jobs):
        if plan.start[job] == 0:
            first = int(plan.first_gpu[job])
            taken.update(range(first, first + int(problem.option_gpus[plan.option[job]])))
    borders = problem.topology.node_first.tolist()
    return block_counts([[gpu not in taken for gpu in range(*pair)] for pair in pairwise(borders)])


def test_small_jobs_go_where_no_large_block_breaks() -> None:
    assert first_gpu(2) == 16, "the node of two, not one of eight"
    assert first_gpu(4) == 18, "the node of four"
    assert first_gpu(1, running=[RunningBlock("r", 1000, 0, 1, 9)]) == 1, "beside the one that already broke the pair"


@pytest.mark.parametrize("gang", [16, 32])
def test_a_row_of_whole_nodes_stays_for_gangs_that_run_or_wait(gang: int) -> None:
    nodes = [8] * 7
    busy = [RunningBlock("r", 1000, 8 * (gang // 8), 8, 9)]  # a row of exactly the gang, then a longer or a shorter one
    rest = [RunningBlock("g", 1000, 8 * (gang // 8 + 1), 8 * (6 - gang // 8 - 1), 9)] if gang == 16 else []
    waits = [QueuedJob("q", 9000, (Option(8, 2),)), QueuedJob("g", 1, (Option(gang, 2),), earliest_step=9)]
    plan = plan_fast(build_problem(steps=4, node_sizes=nodes, queued=waits, running=busy + rest), 0)
    assert plan.first_gpu[0] >= 8 * (gang // 8 + 1), "not out of the row that the gang needs"


def test_as_long_as_the_job_runs_is_what_counts() -> None:
    soon = [RunningBlock("r", 1000, 17, 1, 1)]  # the node of two is half taken now
    assert first_gpu(1, running=soon) == 16


@settings(max_examples=120, deadline=None)
@given(st.integers(min_value=0, max_value=2**32), st.integers(min_value=0, max_value=30))
def test_value_starts_and_sizes_are_what_they_were_and_the_plan_is_legal(seed: int, iterations: int) -> None:
    problem = random_board(seed)
    plan = plan_fast(problem, iterations, seed)
    place, _ = solve(facts_of(problem), iterations, seed, FINISH_SHARE, False)
    assert plan.start.tolist() == place[:, 0].tolist()
    assert [o for o, s in zip(plan.option.tolist(), plan.start.tolist(), strict=True) if s >= 0] == [
        o for o, s in zip(place[:, 2].tolist(), plan.start.tolist(), strict=True) if s >= 0
    ]
    assert verify_plan(problem, plan) == []


def busy_board(seed: int) -> Problem:
    """Ten nodes of mixed sizes, a small job on every second one, six small jobs that could start anywhere."""
    rng, first, running = random.Random(seed), 0, []
    nodes = rng.choices((8, 8, 2, 4, 6), k=10)
    for node, size in enumerate(nodes):
        if rng.random() < 0.5:
            running.append(RunningBlock(f"r{node}", 1000, first + rng.randrange(size), 1, 9))
        first += size
    queued = [QueuedJob(f"q{at}", 1000, (Option(rng.choice((1, 2, 4)), 4),)) for at in range(6)]
    return build_problem(steps=8, node_sizes=nodes, queued=queued, running=running)


def test_small_jobs_in_nodes_of_mixed_sizes_cost_few_gangs_of_eight() -> None:
    lost = {"settled": 0, "lowest": 0}
    for seed in range(60):
        problem = busy_board(seed)
        settled = plan_fast(problem, 0)
        place, segments = solve(facts_of(problem), 0, 0, FINISH_SHARE, False)
        lowest = Plan("fast", place[:, 0], place[:, 1], place[:, 2], segments, 0, settled.reason)
        nothing = Plan("fast", np.full(problem.jobs, -1), place[:, 1], place[:, 2], segments, 0, settled.reason)
        before = free_blocks(problem, nothing)[3]
        lost["settled"] += before - free_blocks(problem, settled)[3]
        lost["lowest"] += before - free_blocks(problem, lowest)[3]
    assert lost["settled"] < lost["lowest"], lost

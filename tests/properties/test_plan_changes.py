"""What a change of the problem may do to plans: more GPUs never hurt, names and labels mean nothing, small changes cost little."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.decisions import Placed, Scaled
from services.allocator.core.heuristic import RETRIES, plan_fast, plan_repaired
from services.allocator.core.model import candidates_of
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Option as Size
from services.allocator.core.problem import Problem, QueuedJob, RunningBlock, build_problem
from services.allocator.core.verify import verify_plan
from services.allocator.shell.cp_sat import Limit
from services.allocator.shell.solver import plan_full
from tests import build
from tests.allocator_driver import Driver
from tests.oracle.boards import random_board, tiny_board
from tests.oracle.brute_force import brute_force

SEEDS = st.integers(min_value=0, max_value=2**32)


def without_last(plan: Plan) -> Plan:
    return replace(plan, start=plan.start[:-1], first_gpu=plan.first_gpu[:-1], option=plan.option[:-1])


def same_grid(one: Plan, other: Plan) -> bool:
    placed = one.start >= 0
    return (
        np.array_equal(one.start, other.start)
        and np.array_equal(one.first_gpu[placed], other.first_gpu[placed])
        and np.array_equal(one.option[placed], other.option[placed])
        and np.array_equal(one.segments, other.segments)
    )


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from([(1,), (2,), (1, 1)]))
def test_more_gpus_never_lower_the_optimum(seed: int, more: tuple[int, ...]) -> None:
    """New GPUs come as nodes of their own: a node that grows may lose the blocks it formed together with others."""
    small, large = tiny_board(seed), tiny_board(seed, more)
    assume(large.gpus <= 5)
    before, after = brute_force(small) / small.value_one, brute_force(large) / large.value_one
    assert after >= before - 1e-9


@pytest.mark.full_mode
@settings(max_examples=6, deadline=None)
@given(SEEDS)
def test_more_gpus_never_lower_what_full_mode_proves(seed: int) -> None:
    limit = Limit(0.5, deterministic=True)
    small, large = (plan_full(tiny_board(seed, more), limit, workers=1) for more in ((), (1,)))
    assert small.optimal
    assert large.optimal
    ones = tiny_board(seed).value_one, tiny_board(seed, (1,)).value_one
    assert large.plan.value / ones[1] >= small.plan.value / ones[0] - 1e-9


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_job_that_comes_and_goes_leaves_the_plan_as_it_was(seed: int) -> None:
    jobs = tiny_board(seed).jobs
    before, after = tiny_board(seed, jobs_max=jobs - 1), tiny_board(seed)
    plan = plan_fast(before, 20, seed)
    with_job = plan_repaired(after, plan)
    assert verify_plan(after, with_job) == []
    assert same_grid(without_last(with_job), plan)
    assert same_grid(plan_repaired(before, without_last(with_job)), plan)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_repaired_plan_is_no_further_from_the_best_than_what_came_could_be_worth(seed: int) -> None:
    """One job more raises the optimum by at most its own best gain, and a repair never loses what was there."""
    jobs = tiny_board(seed).jobs
    before, after = tiny_board(seed, jobs_max=jobs - 1), tiny_board(seed)
    assume(before.value_one == after.value_one)
    plan = plan_fast(before, 20, seed)
    with_job = plan_repaired(after, plan)
    candidates = candidates_of(after)
    worth = int(candidates.gain[candidates.job == jobs - 1].max(initial=0))
    assert with_job.value >= plan.value
    assert brute_force(after) - with_job.value <= brute_force(before) - plan.value + worth


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_what_becomes_free_is_offered_to_jobs_without_a_place(seed: int) -> None:
    problem = random_board(seed)
    plan = plan_fast(problem, 10, seed)
    placed = np.flatnonzero(plan.start >= 0)
    assume(len(placed))
    gone = replace(plan, start=np.where(np.arange(problem.jobs) == placed[0], -1, plan.start))
    refused = problem.job_table.copy()
    refused[placed[0], 1] = 1
    ended = replace(problem, job_table=refused)
    left, tried = plan_repaired(ended, gone), plan_repaired(ended, gone, retries=RETRIES)
    assert verify_plan(ended, left) == []
    assert verify_plan(ended, tried) == []
    assert tried.value >= left.value
    assert tried.start[placed[0]] == -1


def _mirrored(node_sizes: tuple[int, ...], swap: bool) -> Problem:
    """Two equal nodes, one of them with a running job; `swap` exchanges them."""
    size = node_sizes[0]
    first = size if swap else 0
    jobs = [QueuedJob(f"j{i}", 1000 * (1 + i), (Size(1, 2 + i % 3), Size(2, 1 + i % 2)), arrival=i) for i in range(4)]
    running = [RunningBlock("r", 5000, first, 1, 2)]
    return build_problem(steps=4, node_sizes=node_sizes, queued=jobs[:3], running=running)


@pytest.mark.full_mode
def test_equal_nodes_may_change_places() -> None:
    for sizes in ((1, 1), (2, 2)):
        one, other = _mirrored(sizes, False), _mirrored(sizes, True)
        assert brute_force(one) == brute_force(other)
        full = [plan_full(problem, Limit(0.5, deterministic=True), workers=1) for problem in (one, other)]
        assert full[0].plan.value == full[1].plan.value
        plan, size = plan_fast(other, 30), sizes[0]
        turned = np.where(plan.first_gpu >= 0, (plan.first_gpu + size) % (2 * size), -1)
        spans = np.array([one.option_gpus[o] > size if o >= 0 else False for o in plan.option])
        back = replace(plan, first_gpu=np.where(spans, plan.first_gpu, turned))
        assert verify_plan(one, back) == [], "the plan of one is a plan of the other, with other labels"


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(1, 8)), min_size=1, max_size=14))
def test_names_of_nodes_and_jobs_change_only_labels(jobs: list[tuple[int, int, int]]) -> None:
    """Two drivers, the same history under other names: the same decisions, label for label."""
    plain = _history(jobs, ("n00", "n01"), "j")
    renamed = _history(jobs, ("zulu", "alpha"), "xx")
    label = {"zulu": "n00", "alpha": "n01"}
    assert len(plain) == len(renamed)
    for one, other in zip(plain, renamed, strict=True):
        text = msgspec.json.encode(other).decode()
        for name, was in label.items():
            text = text.replace(name, was)
        assert text.replace('"xx', '"j') == msgspec.json.encode(one).decode()


def _history(jobs: list[tuple[int, int, int]], nodes: tuple[str, str], prefix: str) -> list[Placed | Scaled]:
    driver = Driver()
    driver.give(*[build.node(name, order=order, gpus=4) for order, name in enumerate(nodes)], build.application("chat"))
    for number, (level, priority, hours) in enumerate(jobs):
        name, size = f"{prefix}{number:02}", 1 << level
        driver.give(build.accepted(name, size, priority=priority), build.forecast(name, {size: 3600.0 * hours}))
        driver.pass_ms(600_000)
    return [effect for record in driver.log for effect in record.effects if isinstance(effect, Placed | Scaled)]

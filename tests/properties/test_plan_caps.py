"""Caps: no plan of any mode takes a group above its cap, a cap nobody reaches changes nothing, raising one never costs value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.core.baselines import plan_backfill, plan_fifo
from services.allocator.core.caps import Cap
from services.allocator.core.heuristic import plan_fast, plan_repaired
from services.allocator.core.problem import Option, Problem, QueuedJob, RunningBlock, build_problem
from services.allocator.core.reasons import Reason
from services.allocator.core.verify import verify_plan
from services.allocator.shell.cp_sat import Limit
from services.allocator.shell.solver import plan_full
from tests.oracle.boards import random_board, tiny_board

CAPPED = [seed for seed in range(400) if random_board(seed).cap_ids]


def _without_caps(problem: Problem) -> Problem:
    none = np.full((problem.jobs, 0), -1, np.int64)
    running = np.full((len(problem.running_ids), 0), -1, np.int64)
    used = np.zeros((0, problem.steps), np.int64)
    return replace(problem, cap_ids=(), cap_gpus=used[:, 0], cap_used=used, job_caps=none, running_caps=running)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(CAPPED), st.integers(0, 60))
def test_no_mode_takes_a_group_above_its_cap(seed: int, iterations: int) -> None:
    problem = random_board(seed)
    for plan in (plan_fast(problem, iterations), plan_fifo(problem), plan_backfill(problem)):
        assert [v for v in verify_plan(problem, plan) if v.rule == "cap"] == []
    assert verify_plan(problem, plan_repaired(problem, plan_fast(_without_caps(problem), 0))) == []


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(CAPPED), st.integers(0, 60))
def test_a_cap_that_nobody_can_reach_changes_nothing(seed: int, iterations: int) -> None:
    problem = random_board(seed)
    wide = replace(problem, cap_gpus=np.full(len(problem.cap_ids), 1 << 30, np.int64))
    capped, free = plan_fast(wide, iterations), plan_fast(_without_caps(problem), iterations)
    for field in ("start", "first_gpu", "option", "segments", "reason"):
        assert np.array_equal(getattr(capped, field), getattr(free, field))


@pytest.mark.full_mode
@pytest.mark.parametrize("seed", [seed for seed in range(60) if tiny_board(seed).cap_ids][:8])
def test_raising_a_cap_never_lowers_the_optimum(seed: int) -> None:
    problem = tiny_board(seed)
    raised = replace(problem, cap_gpus=problem.cap_gpus + 1)
    before, after = (plan_full(board, Limit(2.0, deterministic=True), workers=1) for board in (problem, raised))
    assert before.optimal
    assert after.optimal
    assert after.plan.value >= before.plan.value


def test_the_verifier_finds_a_plan_above_a_cap() -> None:
    seed = next(s for s in CAPPED if (plan_fast(_without_caps(random_board(s)), 0).start >= 0).sum() > 3)
    problem = random_board(seed)
    none_allowed = replace(problem, cap_gpus=np.zeros(len(problem.cap_ids), np.int64))
    plan = plan_fast(_without_caps(problem), 0)
    assert "cap" in {violation.rule for violation in verify_plan(none_allowed, plan)}


def test_a_capped_job_says_so_and_is_planned_for_when_its_team_has_room() -> None:
    problem = build_problem(
        steps=12,
        node_sizes=[8],
        queued=[QueuedJob("waits", 1000, (Option(4, 2),), caps=(0,)), QueuedJob("goes", 1000, (Option(2, 2),))],
        running=[RunningBlock("holds", 1000, 0, 2, remaining_steps=3, caps=(0,))],
        caps=[Cap("team vision", 5)],
    )
    plan = plan_fast(problem, 10)
    assert plan.start.tolist() == [3, 0]
    assert plan.reason.tolist() == [Reason.QUOTA_EXCEEDED, Reason.NONE]


def test_a_cap_smaller_than_every_size_leaves_the_job_out_for_good() -> None:
    problem = build_problem(
        steps=4,
        node_sizes=[8],
        queued=[QueuedJob("never", 1000, (Option(4, 2),), caps=(0,))],
        caps=[Cap("user ann", 2)],
    )
    plan = plan_fast(problem, 10)
    assert plan.start.tolist() == [-1]
    assert plan.reason.tolist() == [Reason.QUOTA_EXCEEDED]

"""Problems at the edge of sense: every planner gives a legal plan, and the kernels agree with the slow reading."""

from __future__ import annotations

import numpy as np
import pytest

from services.allocator.core.baselines import plan_backfill, plan_fifo
from services.allocator.core.gpu_states import GpuState
from services.allocator.core.heuristic import default_iterations, plan_fast, plan_repaired
from services.allocator.core.problem import Application, Option, Problem, QueuedJob, RunningBlock, build_problem
from services.allocator.core.reasons import Reason
from services.allocator.core.scenario import problem_of, read_scenario
from services.allocator.core.verify import verify_plan
from services.allocator.shell.cp_sat import Limit
from services.allocator.shell.solver import plan_full
from tests.oracle.naive_planner import naive_plan

STEPS = 8
LIMIT = Limit(0.05, deterministic=True)


def job(name: str, *options: tuple[int, int], **changed) -> QueuedJob:
    return QueuedJob(name, 2000, tuple(Option(gpus, steps) for gpus, steps in options), **changed)


def flat(level: int) -> Application:
    return Application("app", 3000, (level,) * STEPS)


PROBLEMS: dict[str, Problem] = {
    "nothing at all": build_problem(steps=1, node_sizes=()),
    "no GPUs, jobs and demand": build_problem(
        steps=STEPS, node_sizes=(), queued=[job("a", (1, 1)), job("b", (2, 3))], applications=[flat(2)]
    ),
    "no jobs": build_problem(steps=STEPS, node_sizes=(4, 4), applications=[flat(3)]),
    "no jobs, no demand": build_problem(steps=STEPS, node_sizes=(4,)),
    "demand above the pool": build_problem(
        steps=STEPS, node_sizes=(4,), queued=[job("a", (1, 2))], applications=[flat(9)]
    ),
    "every GPU running": build_problem(
        steps=STEPS,
        node_sizes=(4, 4),
        queued=[job("a", (1, 2)), job("b", (8, 2))],
        running=[RunningBlock(f"r{i}", 1000, i, 1, 3 + i) for i in range(8)],
    ),
    "every GPU running for ever": build_problem(
        steps=STEPS, node_sizes=(2,), queued=[job("a", (1, 2))], running=[RunningBlock("r", 1000, 0, 2, 1 << 40)]
    ),
    "sizes above the pool": build_problem(steps=STEPS, node_sizes=(4,), queued=[job("a", (8, 1)), job("b", (64, 1), (2, 2))]),
    "durations of nothing": build_problem(steps=STEPS, node_sizes=(2,), queued=[job("a", (1, 0)), job("b", (2, 0), (1, 0))]),
    "durations beyond the window": build_problem(
        steps=STEPS, node_sizes=(2,), queued=[job("a", (1, STEPS + 1)), job("b", (2, 1 << 50)), job("c", (1, 96))]
    ),
    "no offers": build_problem(steps=STEPS, node_sizes=(2,), queued=[QueuedJob("a", 1000, ())]),
    "priorities of nothing": build_problem(
        steps=STEPS, node_sizes=(2,), queued=[QueuedJob("a", 0, (Option(1, 2),))], applications=[Application("x", 0, (1,) * STEPS)]
    ),
    "starts after the window": build_problem(
        steps=STEPS, node_sizes=(2,), queued=[job("a", (1, 2), earliest_step=STEPS), job("b", (1, 2), earliest_step=STEPS - 1)]
    ),
    "everything refused": build_problem(
        steps=STEPS, node_sizes=(2,), queued=[job(f"j{i}", (1, 2), refusal=Reason.QUOTA_EXCEEDED) for i in range(3)]
    ),
    "every GPU closed": build_problem(
        steps=STEPS, node_sizes=(2, 2), queued=[job("a", (1, 2))], applications=[flat(1)], gpu_state=[GpuState.UNUSABLE] * 4
    ),
    "nodes of 4, 6 and 8": build_problem(
        steps=STEPS, node_sizes=(4, 6, 8, 4, 4), queued=[job("a", (8, 2)), job("b", (16, 2)), job("c", (4, 3)), job("d", (2, 9))],
        applications=[flat(5)],
    ),
    "nodes of 1": build_problem(steps=STEPS, node_sizes=(1,) * 5, queued=[job("a", (4, 2)), job("b", (2, 2)), job("c", (1, 2))]),
    "the largest window": build_problem(
        steps=96, node_sizes=(2,), queued=[job("a", (1, 96)), job("b", (2, 97)), job("c", (1, 64), (2, 33))]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_planner_gives_a_legal_plan(name: str) -> None:
    problem = PROBLEMS[name]
    fast = plan_fast(problem, default_iterations(problem))
    for plan in (fast, plan_fast(problem, 0), plan_repaired(problem, fast), plan_fifo(problem), plan_backfill(problem)):
        assert verify_plan(problem, plan) == [], plan.mode
    waiting = fast.start < 0
    assert (fast.reason[waiting] != Reason.NONE).all(), "who has no place is told why"


@pytest.mark.parametrize("name", PROBLEMS)
def test_full_mode_is_legal_and_below_its_bound(name: str) -> None:
    problem = PROBLEMS[name]
    full = plan_full(problem, LIMIT, workers=1)
    assert verify_plan(problem, full.plan) == []
    assert full.bound is not None
    assert full.bound >= full.plan.value >= plan_fast(problem, 0).value


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_kernels_agree_with_the_slow_reading(name: str) -> None:
    problem = PROBLEMS[name]
    plan = plan_fast(problem, 0)
    places, segments = naive_plan(problem)
    assert list(zip(plan.start.tolist(), plan.first_gpu.tolist(), plan.option.tolist(), strict=True)) == places
    assert sorted(map(tuple, plan.segments.tolist())) == sorted(segments)


def test_a_scenario_with_nodes_of_several_sizes() -> None:
    text = b"""{"format": "scenario.v1", "name": "mixed", "horizon_steps": 6, "gpus": 18, "node_gpus": 8, "nodes": [4, 6, 8],
        "realtime": [], "batch": [
        {"id": "whole", "kind": "training", "arrival": 0, "priority": 3, "requested_gpus": 8, "duration_steps": {"8": 2}},
        {"id": "no-six", "kind": "training", "arrival": 1, "priority": 2, "requested_gpus": 16, "duration_steps": {"16": 2}},
        {"id": "half", "kind": "training", "arrival": 2, "priority": 1, "requested_gpus": 4, "duration_steps": {"4": 3}}]}"""
    problem = problem_of(read_scenario(text))
    assert problem.topology.node_sizes == (4, 6, 8)
    plan = plan_fast(problem, 20)
    assert verify_plan(problem, plan) == []
    assert plan.first_gpu[0] == 10, "eight GPUs exist on one node only"
    assert plan.start[1] < 0, "no run of whole nodes adds up to sixteen"
    assert plan.start[2] == 0


def test_the_last_legal_place_is_used_to_the_last_step() -> None:
    problem = build_problem(steps=4, node_sizes=(2,), queued=[job(f"j{i}", (2, 1)) for i in range(5)])
    plan = plan_fast(problem, 0)
    assert sorted(plan.start.tolist()) == [-1, 0, 1, 2, 3]
    assert np.unique(plan.first_gpu[plan.start >= 0]).tolist() == [0]

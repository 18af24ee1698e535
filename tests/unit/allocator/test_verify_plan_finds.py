"""The verifier finds every kind of planted fault, and nothing in a legal plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from services.allocator.core.heuristic import plan_fast
from services.allocator.core.plan import Plan
from services.allocator.core.problem import (
    Application,
    Option,
    Problem,
    QueuedJob,
    Reservation,
    RunningBlock,
    build_problem,
)
from services.allocator.core.reasons import Reason
from services.allocator.core.verify import Start, verify_commitment, verify_plan


def problem() -> Problem:
    return build_problem(
        steps=6,
        node_sizes=(4, 4),
        queued=[
            QueuedJob("a", 3000, (Option(2, 2, 3),)),
            QueuedJob("b", 2000, (Option(1, 2),), earliest_step=2),
            QueuedJob("c", 1000, (Option(4, 1),), refusal=Reason.QUOTA_EXCEEDED),
        ],
        running=[RunningBlock("r", 5000, 0, 1, 3)],
        applications=[Application("app", 5000, (1, 1, 2, 2, 1, 1), held=(7,), switch_max=1)],
        reservations=[Reservation("v", 4, 1, 0, 6)],
        gpu_state=[0, 0, 0, 1, 0, 0, 0, 0],
    )


def edit(plan: Plan, array: str, job: int, value: int) -> Plan:
    changed = getattr(plan, array).copy()
    changed[job] = value
    return replace(plan, **{array: changed})


def with_segments(plan: Plan, *rows: tuple[int, int, int, int]) -> Plan:
    return replace(plan, segments=np.array(rows, dtype=np.int64).reshape(-1, 4))


def moved(plan: Plan, start: int, first: int) -> Plan:
    return edit(edit(plan, "start", 0, start), "first_gpu", 0, first)


FAULTS: list[tuple[str, Callable[[Plan], Plan]]] = [
    ("two_on_one_gpu", lambda plan: moved(plan, 0, 0)),
    ("two_on_one_gpu", lambda plan: with_segments(plan, (0, 7, 0, 6), (0, 7, 2, 4))),
    ("block_shape", lambda plan: moved(plan, 0, 3)),
    ("closed_gpu", lambda plan: moved(plan, 0, 2)),
    ("closed_gpu", lambda plan: moved(plan, 0, 4)),
    ("closed_gpu", lambda plan: with_segments(plan, (0, 4, 0, 6))),
    ("outside_pool", lambda plan: moved(plan, 0, 7)),
    ("outside_pool", lambda plan: with_segments(plan, (0, 8, 0, 6))),
    ("size_not_offered", lambda plan: edit(plan, "option", 0, 1)),
    ("start_step", lambda plan: edit(plan, "start", 1, 1)),
    ("refused_job", lambda plan: edit(edit(edit(plan, "start", 2, 5), "first_gpu", 2, 0), "option", 2, 2)),
    ("promise", lambda plan: with_segments(moved(plan, 0, 5), (0, 7, 0, 6), (0, 5, 2, 4))),
    ("promise", lambda plan: with_segments(plan, (0, 7, 0, 6), (0, 0, 2, 4))),
    ("switch_cap", lambda plan: with_segments(plan, (0, 6, 0, 6))),
    ("switch_cap", lambda plan: with_segments(plan, (0, 7, 0, 2), (0, 6, 2, 4), (0, 7, 4, 6))),
    ("over_demand", lambda plan: with_segments(plan, (0, 7, 0, 6), (0, 6, 0, 6))),
    ("shape", lambda plan: replace(plan, start=plan.start[:1])),
]


def test_a_legal_plan_has_no_violation() -> None:
    assert verify_plan(problem(), plan_fast(problem(), 20)) == []


@pytest.mark.parametrize(("rule", "plant"), FAULTS)
def test_every_planted_fault_is_found(rule: str, plant: Callable[[Plan], Plan]) -> None:
    facts = problem()
    assert rule in {violation.rule for violation in verify_plan(facts, plant(plan_fast(facts, 20)))}


@pytest.mark.parametrize(
    ("rule", "starts", "app_gpus"),
    [
        ("two_on_one_gpu", [Start(0, 0, 2)], {}),
        ("two_on_one_gpu", [Start(0, 6, 2)], {}),
        ("block_shape", [Start(0, 3, 2)], {}),
        ("closed_gpu", [Start(0, 2, 2)], {}),
        ("closed_gpu", [], {0: [4]}),
        ("size_not_offered", [Start(0, 1, 1)], {}),
        ("outside_pool", [Start(0, 7, 2)], {}),
        ("outside_pool", [], {0: [8]}),
        ("start_step", [Start(1, 1, 1)], {}),
        ("start_step", [Start(2, 0, 4)], {}),
        ("switch_cap", [], {0: [6]}),
        ("over_demand", [], {0: [6, 7]}),
    ],
)
def test_faulty_commitments_are_found(rule: str, starts: list[Start], app_gpus: dict[int, list[int]]) -> None:
    assert rule in {violation.rule for violation in verify_commitment(problem(), starts, app_gpus)}


def test_a_legal_commitment_has_no_violation() -> None:
    assert verify_commitment(problem(), [Start(0, 1, 2)], {0: [7]}) == []
    assert verify_commitment(problem(), [Start(0, 5, 2)], {}) == []

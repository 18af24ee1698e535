"""Each waiting job gets the reason that applies to it, and blockers name who holds the GPUs."""

from __future__ import annotations

import pytest

from services.allocator.core.gpu_states import GpuState
from services.allocator.core.heuristic import plan_fast
from services.allocator.core.problem import (
    Application,
    Option,
    Problem,
    QueuedJob,
    Reservation,
    RunningBlock,
    build_problem,
)
from services.allocator.core.reasons import Reason, reason_named
from services.allocator.core.waiting import blockers_of

JOB = QueuedJob("job", 1000, (Option(2, 2),))


def board(**facts: object) -> Problem:
    return build_problem(**({"steps": 4, "node_sizes": (4,), "queued": [JOB]} | facts))  # type: ignore[arg-type]


def running(*blocks: tuple[int, int]) -> list[RunningBlock]:
    return [RunningBlock(f"r{first}", 1000, first, size, 9) for first, size in blocks]


CASES: list[tuple[Reason, Problem]] = [
    (Reason.NONE, board()),
    (Reason.WAITING_FOR_GPUS, board(running=running((0, 1), (1, 2)))),
    (Reason.FRAGMENTED, board(running=running((1, 2)))),
    (Reason.APPLICATION_RETURN, board(applications=[Application("app", 9000, (0, 3, 3, 3))])),
    (Reason.RESERVED, board(reservations=[Reservation("v", 0, 4, 0, 2)])),
    (Reason.RESERVED, board(reservations=[Reservation("v", 0, 4, 1, 3)])),
    (Reason.TO_BE_CUT, board(reservations=[Reservation("o", 0, 4, 0, 4)], card_state=[1] * 4)),
    (
        Reason.RESERVED,
        board(reservations=[Reservation("o", 0, 2, 0, 4), Reservation("v", 2, 2, 0, 4)], card_state=[1, 1, 0, 0]),
    ),
    (
        Reason.TO_BE_CUT,
        board(reservations=[Reservation("o", 0, 3, 0, 4), Reservation("v", 3, 1, 1, 4)], card_state=[1, 1, 1, 0]),
    ),
    (
        Reason.WAITING_FOR_GPUS,
        board(running=running((0, 4)), reservations=[Reservation("o", 0, 4, 0, 4)], card_state=[1] * 4),
    ),
    (Reason.CUT_FOR_ANOTHER_POOL, board(gpu_state=[0, 2, 2, 0], card_state=[0, 2, 2, 0])),
    (
        Reason.NODE_DEGRADED,
        board(gpu_state=[0, 2, 2, 0], card_state=[0, 2, 0, 0], queued=[QueuedJob("job", 1000, (Option(4, 2),))]),
    ),
    (Reason.SIZE_EXCEEDS_POOL, board(node_sizes=(6, 6), queued=[QueuedJob("job", 1000, (Option(8, 2),))])),
    (
        Reason.SIZE_EXCEEDS_POOL,
        board(node_sizes=(6, 6), gpu_state=[1] * 12, queued=[QueuedJob("job", 1000, (Option(8, 2),))]),
    ),
    (
        Reason.SIZE_EXCEEDS_POOL,
        board(node_sizes=(6, 6), gpu_state=[2] * 12, queued=[QueuedJob("job", 1000, (Option(8, 2),))]),
    ),
    (
        Reason.NODE_DEGRADED,
        board(node_sizes=(4, 4), gpu_state=[0] * 4 + [2] * 4, queued=[QueuedJob("job", 1000, (Option(8, 2),))]),
    ),
    (Reason.NOT_BEFORE, board(queued=[QueuedJob("job", 1000, (Option(2, 2),), earliest_step=1)])),
    (Reason.BEYOND_WINDOW, board(queued=[QueuedJob("job", 1000, (Option(2, 2),), earliest_step=4)])),
    (Reason.SIZE_EXCEEDS_POOL, board(queued=[QueuedJob("job", 1000, (Option(8, 2),))])),
    (Reason.QUOTA_EXCEEDED, board(queued=[QueuedJob("job", 1000, (Option(1, 2),), refusal=Reason.QUOTA_EXCEEDED)])),
    (Reason.NO_CAPACITY, board(gpu_state=[GpuState.UNUSABLE] * 4)),
    (Reason.NO_CAPACITY, board(node_sizes=())),
    (Reason.NODE_DEGRADED, board(gpu_state=[0, 1, 1, 0])),
    (Reason.WAITING_FOR_GPUS, board(queued=[QueuedJob("big", 9000, (Option(4, 1),)), JOB])),
    (Reason.WAITING_FOR_GPUS, board(queued=[QueuedJob("big", 9000, (Option(4, 4),)), JOB])),
]


@pytest.mark.parametrize(("reason", "problem"), CASES)
def test_reason(reason: Reason, problem: Problem) -> None:
    plan = plan_fast(problem, 0)
    assert plan.reason_of(problem.jobs - 1) is reason
    assert (reason is Reason.NONE) == (plan.start[-1] == 0)


def test_a_job_planned_around_a_reservation_for_a_larger_one() -> None:
    big, small = QueuedJob("big", 9000, (Option(4, 2),)), QueuedJob("small", 1000, (Option(2, 3),))
    problem = board(queued=[big, small], running=[RunningBlock("r", 1000, 0, 2, 1)], steps=6)
    plan = plan_fast(problem, 0)
    assert plan.start.tolist() == [1, 3]  # the whole node is kept for the big one, the small one can't end before it
    assert plan.reason_of(0) is Reason.WAITING_FOR_GPUS
    assert plan.reason_of(1) is Reason.PLANNED_LATER
    assert [(b.kind, b.id) for b in blockers_of(problem, plan, 1)] == [("planned", "big"), ("running", "r")]


def test_blockers_name_running_jobs_applications_and_reservations() -> None:
    problem = board(
        running=running((0, 1)),
        applications=[Application("app", 9000, (1, 1, 1, 1))],
        reservations=[Reservation("v", 1, 1, 0, 4)],
    )
    blockers = blockers_of(problem, plan_fast(problem, 0), 0)
    assert [(b.kind, b.id, b.gpus) for b in blockers] == [
        ("application", "app", 1),
        ("reservation", "v", 1),
        ("running", "r0", 1),
    ]


def test_every_reason_has_a_stable_name_and_a_sentence() -> None:
    for reason in Reason:
        assert reason_named(reason.public_name) is reason
        assert reason.sentence.endswith(".")

"""The switch cap holds across commits, not only inside one plan: plan, commit the first step, plan again."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.core.heuristic import plan_fast
from services.allocator.core.problem import Application, Option, QueuedJob, RunningBlock, build_problem
from services.allocator.core.verify import Start, verify_commitment, verify_plan

STEPS, HOURS, CAP = 8, 10, 2


@settings(max_examples=40, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_rolling_horizon_keeps_cap_and_running_jobs(seed: int) -> None:
    rng = random.Random(seed)
    demand = [rng.randint(0, 4) for _ in range(HOURS + STEPS)]
    queue = [
        QueuedJob(
            f"j{i}", rng.randint(1, 9) * 1000, (Option(1, rng.randint(1, 6)), Option(2, rng.randint(1, 3))), arrival=i
        )
        for i in range(12)
    ]
    running: list[RunningBlock] = []
    held: tuple[int, ...] = ()
    for hour in range(HOURS):
        problem = build_problem(
            steps=STEPS,
            node_sizes=(4, 4),
            queued=queue,
            running=running,
            applications=[Application("app", 5000, tuple(demand[hour : hour + STEPS]), held=held, switch_max=CAP)],
        )
        plan = plan_fast(problem, 20, seed)
        assert verify_plan(problem, plan) == []
        now = plan.app_gpus(0, 0)
        sizes = {int(j): int(problem.option_gpus[plan.option[j]]) for j in plan.starts_now()}
        starts = [Start(j, int(plan.first_gpu[j]), size) for j, size in sizes.items()]
        assert verify_commitment(problem, starts, {0: now}) == []
        assert len(set(held) ^ set(now)) <= CAP
        begun = [
            RunningBlock(queue[s.job].id, queue[s.job].priority, s.first_gpu, s.gpus, _steps(problem, plan, s.job))
            for s in starts
        ]
        running = [
            RunningBlock(r.id, r.priority, r.first_gpu, r.gpus, r.remaining_steps - 1)
            for r in [*running, *begun]
            if r.remaining_steps > 1
        ]
        queue = [job for index, job in enumerate(queue) if index not in sizes]
        held = tuple(now)


def _steps(problem, plan, job: int) -> int:
    return int(problem.option_steps[plan.option[job]])

"""The rest of the plan, for the view: the planner run again on a copy of the state that the decision log adds up to.

Decisions carry commitments only; the plan behind them is a pure function of the state (`services.allocator.core`), so
whoever reads the log can make it again. Owns that copy. Loads the planner's kernels, so it is imported only where a
picture is drawn; without it the view shows what runs.
"""

from __future__ import annotations

from schemas.decisions import DecisionMade
from schemas.records import Now
from services.allocator.core.commit import plan_effects
from services.allocator.core.config import Policy
from services.allocator.core.reader import read
from services.allocator.core.state import State
from services.replay.core.day import Day
from services.replay.core.frame import PlannedSpan


class Planner:
    """`follow` decisions in log order, then ask for the `plan` of a moment."""

    def __init__(self, day: Day, memory_mib: dict[str, int], policy: Policy | None = None) -> None:
        self._pool = day.pool
        self._memory_mib = memory_mib
        self._policy = policy or Policy()
        self._state = State(cluster=day.cluster)

    def follow(self, decision: DecisionMade) -> None:
        """Advance the copy; what the log doesn't accept is skipped."""
        read(self._state, decision, self._policy.step_ms)

    def plan(self, now_ms: int, wall_ms: int) -> tuple[PlannedSpan, ...]:
        """Where the plan made at `now_ms` puts queued jobs and applications."""
        now = Now(max(now_ms, self._state.now_ms), max(wall_ms, self._state.wall_ms))
        _, posed_pools, plans = plan_effects(self._state, self._memory_mib, self._policy, now)
        spans: list[PlannedSpan] = []
        for posed, plan in zip(posed_pools, plans, strict=True):
            if posed.pool != self._pool:
                continue
            problem, step_ms = posed.problem, self._policy.step_ms
            for app, gpu, start, end in plan.segments.tolist():
                from_ms, until_ms = now.domain_ms + start * step_ms, now.domain_ms + end * step_ms
                spans.append(PlannedSpan(problem.app_ids[app], (gpu,), from_ms, until_ms))
            for row, job in enumerate(posed.queued):
                start, option = int(plan.start[row]), int(plan.option[row])
                if start < 0:
                    continue
                first, size = int(plan.first_gpu[row]), int(problem.option_gpus[option])
                from_ms = now.domain_ms + start * step_ms
                until_ms = from_ms + int(problem.option_steps[option]) * step_ms
                spans.append(PlannedSpan(job.job_id, tuple(range(first, first + size)), from_ms, until_ms))
        return tuple(spans)

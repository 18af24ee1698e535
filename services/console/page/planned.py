"""The plan ahead as blocks, made again from the log: decisions carry commitments only, the plan is a function of the state.

Owns one copy of each cluster's state, advanced by the decisions the board accepted. `take` is called on the event loop, `plan` and
`placed` in other threads, one at a time. Where the planner's kernels are not compiled there is neither.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

from schemas.decisions import DecisionMade
from schemas.records import Now

if TYPE_CHECKING:
    from services.allocator.core.decide import Settings
    from services.allocator.core.plan import Plan
    from services.allocator.core.pose import Posed
    from services.allocator.core.state import State
    from services.console.sentences import Explanation

BLOCKS_MAX = 20_000
"""Planned blocks sent to a browser: the nearest ones; more than that no screen shows."""


class Planner:
    """One cluster's. Decisions may be taken before `begin`: those the loaded state has already are skipped by their sequence."""

    def __init__(self) -> None:
        self._state: State | None = None
        self._settings: Settings | None = None
        self._waiting: deque[DecisionMade] = deque()
        self._lock = Lock()

    def begin(self, state: State, settings: Settings) -> None:
        """The state as loaded from the log, and what the cluster's allocator decides with."""
        self._state, self._settings = state, settings

    def take(self, decision: DecisionMade) -> None:
        self._waiting.append(decision)

    def plan(self, now_ms: int, wall_ms: int) -> dict[str, Any] | None:
        """The plan as of now; None if nothing was decided yet."""
        with self._lock:
            return self._planned(now_ms, wall_ms)

    def placed(self, explanation: Explanation, now_ms: int) -> Explanation:
        """What the state adds to the explanation of a waiting job, as in `gpugrid why`; the same if there is none."""
        from services.console.place_in_order import with_state

        with self._lock:
            known = self._caught_up()
            if known is None:
                return explanation
            state, settings = known
            return with_state(explanation, state, settings.policy, max(now_ms, state.now_ms))

    def _caught_up(self) -> tuple[State, Settings] | None:
        """The state with all decisions taken so far; None before the first."""
        if self._state is None or self._settings is None:
            return None
        from services.allocator.core.reader import read

        while self._waiting:
            read(self._state, self._waiting.popleft(), self._settings.policy.step_ms)
        return (self._state, self._settings) if self._state.sequence > 0 else None

    def _planned(self, now_ms: int, wall_ms: int) -> dict[str, Any] | None:
        known = self._caught_up()
        if known is None:
            return None
        from services.allocator.core.commit import plan_effects

        state, settings = known
        policy = settings.policy
        now = Now(max(now_ms, state.now_ms), max(wall_ms, state.wall_ms))
        _, posed, plans = plan_effects(state, settings.memory_mib, policy, now)
        blocks: list[list[Any]] = []
        ends: dict[str, int] = {}
        for one, made in zip(posed, plans, strict=True):
            blocks.extend(blocks_of(one, made, now.domain_ms, policy.step_ms))
            ends |= ends_of(one, now.domain_ms, policy.step_ms)
        blocks.sort(key=lambda block: (block[3], block[0]))
        return {
            "sequence": state.sequence,
            "made": now.domain_ms,
            "step_ms": policy.step_ms,
            "blocks": blocks[:BLOCKS_MAX],
            "ends": ends,
            "left_out": max(0, len(blocks) - BLOCKS_MAX),
        }


def ends_of(posed: Posed, now_ms: int, step_ms: int) -> dict[str, int]:
    """Until when the plan counts on what runs now, in whole steps: what is planned after it begins there. Pure."""
    steps = posed.problem.running_steps
    return {name: now_ms + int(steps[row]) * step_ms for row, name in enumerate(posed.problem.running_ids)}


def blocks_of(posed: Posed, plan: Plan, now_ms: int, step_ms: int) -> list[list[Any]]:
    """`[owner, first node, first GPU, start, end, GPUs, application]`: neighbours in the pool's order belong together. Pure."""
    problem = posed.problem
    first_of = sorted((posed.layout.first[node.node], node.node) for node in posed.layout.nodes)
    starts = [first for first, _ in first_of]

    def block(owner: str, gpu: int, size: int, start: int, end: int, application: bool) -> list[Any]:
        from bisect import bisect_right

        first, node = first_of[bisect_right(starts, gpu) - 1]
        return [owner, node, gpu - first, now_ms + start * step_ms, now_ms + end * step_ms, size, int(application)]

    found = []
    segments = sorted((app, start, end, gpu) for app, gpu, start, end in plan.segments.tolist())
    index = 0
    while index < len(segments):
        app, start, end, gpu = segments[index]
        size = 1
        while index + size < len(segments) and segments[index + size] == (app, start, end, gpu + size):
            size += 1
        found.append(block(problem.app_ids[app], gpu, size, start, end, True))
        index += size
    for row in range(problem.jobs):
        start, option = int(plan.start[row]), int(plan.option[row])
        if start >= 0:
            size, steps = int(problem.option_gpus[option]), int(problem.option_steps[option])
            found.append(block(problem.job_ids[row], int(plan.first_gpu[row]), size, start, start + steps, False))
    return found

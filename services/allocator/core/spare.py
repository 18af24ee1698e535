"""GPUs that nobody needs now, lent to applications on top of what they ask for: demand is a forecast, and idle GPUs are free.

Owns which and how many: at most `Policy.spare_share` of what an application asks for, never above its peak, only GPUs that the plan leaves
idle in this step and the next, and only as many as the switch cap lets it give back at once. So the next plan, which knows nothing of
this, can have all of them for batch work in the same step. While jobs wait, only on nodes where applications are anyway: elsewhere,
lending breaks blocks that these jobs need, which costs more value than unmet demand did (docs/backtest.md). Read next: `commit.py`.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.config import Policy
from services.allocator.core.gpu_states import GpuState
from services.allocator.core.plan import Plan
from services.allocator.core.pose import Posed
from services.allocator.core.problem import Problem

IDLE_STEPS = 2
"""A GPU that the plan uses in the step after this one is left alone: it would only come and go."""


def idle_gpus(problem: Problem, plan: Plan) -> NDArray[np.bool_]:
    """Per GPU whether the plan leaves it to nobody in the first IDLE_STEPS steps."""
    idle = problem.gpu_state == GpuState.USABLE
    for first, size in zip(problem.running_first.tolist(), problem.running_gpus.tolist(), strict=True):
        idle[first : first + size] = False
    for first, size, start, end in problem.reservations.tolist():
        if start < IDLE_STEPS and end > 0:
            idle[first : first + size] = False
    soon = np.flatnonzero((plan.start >= 0) & (plan.start < IDLE_STEPS))
    for job in soon.tolist():
        first = int(plan.first_gpu[job])
        idle[first : first + int(problem.option_gpus[plan.option[job]])] = False
    idle[plan.segments[plan.segments[:, 2] < IDLE_STEPS, 1]] = False
    return idle


def with_spare(
    posed: Posed, row: int, wanted: list[int], held: list[int], idle: NDArray[np.bool_], policy: Policy, used: int
) -> list[int]:
    """`wanted` by application `row` and what is lent on top, ascending; takes that out of `idle`. `used`: switches of this step so far.

    The plan may hold more than is asked for already, because the cap lets an application shrink only step by step.
    """
    app, asked = posed.apps[row], int(posed.problem.app_demand[row, 0])
    most = min(asked + ceil(asked * policy.spare_share), app.spec.peak_gpus) - len(wanted)
    if most <= 0:
        return wanted
    choice = _by_preference(posed, held, idle)[:most]
    fixed, before = set(wanted), set(held)
    for extra in range(len(choice), 0, -1):
        lent = choice[:extra]
        switched = len(fixed.union(lent) ^ before) if before else 0
        if used + switched + extra <= app.spec.switch_max:
            idle[lent] = False
            return sorted([*wanted, *lent])
    return wanted


def _by_preference(posed: Posed, held: list[int], idle: NDArray[np.bool_]) -> list[int]:
    """Idle GPUs: those it holds already, then others on applications' nodes, then the rest if nobody waits; from the top of the pool."""
    kept, near = set(held), np.zeros(posed.problem.gpus, np.bool_)
    nodes = {part.node for app in posed.apps for part in app.parts}
    for node in posed.layout.nodes:
        if node.node in nodes:
            first = posed.layout.first[node.node]
            near[first : first + node.size] = True
    allowed = idle & near if posed.problem.jobs else idle
    return sorted(np.flatnonzero(allowed)[::-1].tolist(), key=lambda gpu: (gpu not in kept, not near[gpu]))

"""A waiting job's place in order, in parts that can be shown: declared priority, aging, deadline, fair share, guarantee, overdue.

priority = (declared + aging + deadline) × share factor + 200 if inside its team's guarantee + 400 if overdue

A gang that lost a node and waits to be restored counts as overdue from then on, with or without rules: what it had must not go to fresh
jobs one by one.
The sum is the priority of the planner's objective: heuristic, model, verifier and explanations all work on it. With the default aging a
plain job stays below 200, so per GPU-step a guarantee is worth more than any borrowing, and an overdue job more than both. What they rest
on is not this weight, which many small jobs can outbid, but their claim: `claims.py`. All in thousandths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.rules import Aging
from services.allocator.core.fixed_point import PRIORITY_ONE
from services.allocator.core.shares import ONE
from services.allocator.core.state import Job

DEADLINE_FROM_S = 86_400.0
"""A deadline is felt from a day before the latest start that still meets it."""
DEADLINE_PRIORITY = 4 * PRIORITY_ONE
GUARANTEED_PRIORITY = 200 * PRIORITY_ONE
OVERDUE_PRIORITY = 400 * PRIORITY_ONE

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Standing:
    """The parts of one job's priority, in thousandths."""

    declared: int
    aging: int
    deadline: int
    share_factor: int
    guaranteed: bool
    overdue: bool

    @property
    def priority(self) -> int:
        tier = GUARANTEED_PRIORITY * self.guaranteed + OVERDUE_PRIORITY * self.overdue
        return (self.declared + self.aging + self.deadline) * self.share_factor // ONE + tier


def standing_of(
    job: Job, aging: Aging, now_ms: int, share_factor: int = ONE, *, guaranteed: bool = False, takes_s: float = 0.0
) -> Standing:
    """`takes_s`: how long the job is expected to run, so that its deadline is one for its start."""
    waited_s = (now_ms - job.submitted_ms) / 1000
    return Standing(
        declared=job.spec.priority * PRIORITY_ONE,
        aging=int(_aging(waited_s, aging)),
        deadline=0 if job.spec.deadline_ms is None else _urgency((job.spec.deadline_ms - now_ms) / 1000 - takes_s),
        share_factor=share_factor,
        guaranteed=guaranteed,
        overdue=job.restores or (aging.overdue_s is not None and waited_s >= aging.overdue_s),
    )


def _aging(waited_s: float, aging: Aging) -> float:
    """Monotone in the waiting time, capped."""
    return min(aging.priority_max, max(0.0, waited_s - aging.after_s) / 3600 * aging.per_hour) * PRIORITY_ONE


def _urgency(slack_s: float) -> int:
    """Grows from 0 a day before the latest start to its most at it, and stays: late is better than later."""
    return int(DEADLINE_PRIORITY * min(1.0, max(0.0, 1.0 - slack_s / DEADLINE_FROM_S)))


def ranked_priorities(
    declared: Ints, submitted_ms: Ints, deadline_ms: Ints, restores: Ints, aging: Aging, now_ms: int, factor: int
) -> Ints:
    """`standing_of(…).priority` of many jobs of one team without guarantee and expected run time; `deadline_ms` 0: none."""
    waited_s = (now_ms - submitted_ms) / 1000
    aged = (
        np.minimum(aging.priority_max, np.maximum(0.0, waited_s - aging.after_s) / 3600 * aging.per_hour) * PRIORITY_ONE
    )
    slack_s = (deadline_ms - now_ms) / 1000
    urgency = DEADLINE_PRIORITY * np.clip(1.0 - slack_s / DEADLINE_FROM_S, 0.0, 1.0)
    urgent = np.where(deadline_ms > 0, urgency.astype(np.int64), 0)
    total = (declared * PRIORITY_ONE + aged.astype(np.int64) + urgent) * factor // ONE
    overdue = restores != 0
    if aging.overdue_s is not None:
        overdue |= waited_s >= aging.overdue_s
    return total + np.where(overdue, OVERDUE_PRIORITY, 0)

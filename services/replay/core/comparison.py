"""Several days under several policies, in one place: mean, worst, and gpugrid's gain over each simple policy.

Pure arithmetic over outcomes. The worst day is the one that is worst for the number in question.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from services.replay.core.baselines import BACKFILL, FIFO, fifo, priority_backfill
from services.replay.core.day import Day
from services.replay.core.outcome import Outcome

GPUGRID = "gpugrid"
POLICIES = (FIFO, BACKFILL, GPUGRID)


class Spread(Struct, frozen=True, kw_only=True):
    """Mean over the days, and the worst day."""

    mean: float
    worst: float


class PolicySummary(Struct, frozen=True, kw_only=True):
    """One policy over all days."""

    policy: str
    value: Spread
    utilization: Spread
    completed: Spread
    unmet_gpu_hours: Spread
    wait_p50_s: dict[str, Spread]
    wait_p90_s: dict[str, Spread]


class Comparison(Struct, frozen=True, kw_only=True):
    """`days`: the outcomes, three per day. `value_gain`, `utilization_gain`: of gpugrid over FIFO and priority backfill, as
    ratios − 1 and as differences of shares."""

    days: list[dict[str, Outcome]]
    policies: list[PolicySummary]
    value_gain: dict[str, Spread]
    utilization_gain: dict[str, Spread]


def with_baselines(day: Day, ours: Outcome) -> dict[str, Outcome]:
    """The day under all policies."""
    return {FIFO: fifo(day), BACKFILL: priority_backfill(day), GPUGRID: ours}


def compare(days: Sequence[dict[str, Outcome]]) -> Comparison:
    """At least one day."""
    return Comparison(
        days=list(days),
        policies=[_summary(policy, [day[policy] for day in days]) for policy in POLICIES],
        value_gain={
            other: _least([_ratio(day[GPUGRID].value, day[other].value) for day in days]) for other in (FIFO, BACKFILL)
        },
        utilization_gain={
            other: _least([day[GPUGRID].utilization - day[other].utilization for day in days])
            for other in (FIFO, BACKFILL)
        },
    )


def _ratio(ours: float, theirs: float) -> float:
    """Gain as a share of the other's value; of its absolute value where that is negative, 0 where it is 0."""
    return (ours - theirs) / abs(theirs) if theirs else 0.0


def _summary(policy: str, outcomes: Sequence[Outcome]) -> PolicySummary:
    classes = list(outcomes[0].wait_s)
    return PolicySummary(
        policy=policy,
        value=_least([entry.value for entry in outcomes]),
        utilization=_least([entry.utilization for entry in outcomes]),
        completed=_least([entry.completed / max(entry.jobs, 1) for entry in outcomes]),
        unmet_gpu_hours=_most([entry.unmet_gpu_hours for entry in outcomes]),
        wait_p50_s={name: _most([entry.wait_s[name].p50_s for entry in outcomes]) for name in classes},
        wait_p90_s={name: _most([entry.wait_s[name].p90_s for entry in outcomes]) for name in classes},
    )


def _least(values: Sequence[float]) -> Spread:
    return Spread(mean=sum(values) / len(values), worst=min(values))


def _most(values: Sequence[float]) -> Spread:
    return Spread(mean=sum(values) / len(values), worst=max(values))

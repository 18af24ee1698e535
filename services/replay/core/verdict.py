"""How gpugrid's backtest stands against its goals, level by level, as ratios to the baselines of the same day.

Owns the comparison: which baselines count at a level (those that ask for no durations at every level, the others at their
own), and the goals. Refuses to judge what was not run: a ratio without its baseline is None. Read next: `findings.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from services.replay.core.baselines import EASY, FIFO, INFORMED
from services.replay.core.beliefs import Level
from services.replay.core.comparison import GPUGRID
from services.replay.core.findings import ALL, WHOLE_NODES, Finding

UNMET_SHARE_MAX = 0.01
MEAN_WAIT_SHARE_MAX = 0.5
FORECAST_VALUE_SHARE_MIN = 0.95


class Against(Struct, frozen=True, kw_only=True):
    """gpugrid at one level against the best baseline for each number. `met`: goal → whether it was met; a goal whose baseline was
    not run is left out."""

    level: str
    value_gain: dict[str, float]
    utilization_gain: dict[str, float]
    unmet_share: float
    below_floor_gpu_hours: float
    whole_node_p99_over_easy: float | None
    mean_wait_over_fifo: float | None
    met: dict[str, bool]


class Verdict(Struct, frozen=True, kw_only=True):
    """`value_with_forecasts`: gpugrid's value with forecasts ÷ with true durations; likewise for the other levels."""

    levels: list[Against]
    value_over_true: dict[str, float]


def verdict(findings: Sequence[Finding]) -> Verdict:
    """Judge what was run; without gpugrid's runs there is nothing to judge."""
    ours = {one.level: one for one in findings if one.scheduler == GPUGRID}
    true = ours.get(Level.TRUE.value)
    over = {
        level: one.outcome.value / true.outcome.value
        for level, one in ours.items()
        if true is not None and one is not true and true.outcome.value > 0
    }
    return Verdict(levels=[_against(one, findings) for one in ours.values()], value_over_true=over)


def rivals(level: str, findings: Sequence[Finding]) -> dict[str, Finding]:
    """The baselines that share this level."""
    return {
        one.scheduler: one
        for one in findings
        if one.scheduler != GPUGRID and (one.scheduler not in INFORMED or one.level == level)
    }


def _against(ours: Finding, findings: Sequence[Finding]) -> Against:
    others = rivals(ours.level, findings)
    value = {name: _gain(ours.outcome.value, one.outcome.value) for name, one in others.items()}
    points = {name: ours.outcome.utilization - one.outcome.utilization for name, one in others.items()}
    p99 = _over(ours, others.get(EASY), WHOLE_NODES, "p99_s")
    mean = _over(ours, others.get(FIFO), ALL, "mean_s")
    met = {
        "unmet real-time at most 1 %": ours.unmet_share <= UNMET_SHARE_MAX,
        "never below a floor": ours.below_floor_gpu_hours == 0,
    }
    if others:
        met["more value than every baseline"] = min(value.values()) > 0
        met["higher utilization than every baseline"] = min(points.values()) > 0
    if p99 is not None:
        met["whole-node P99 wait no worse than EASY's"] = p99 <= 1
    if mean is not None:
        met["mean wait at most half of FIFO's"] = mean <= MEAN_WAIT_SHARE_MAX
    return Against(
        level=ours.level,
        value_gain=value,
        utilization_gain=points,
        unmet_share=ours.unmet_share,
        below_floor_gpu_hours=ours.below_floor_gpu_hours,
        whole_node_p99_over_easy=p99,
        mean_wait_over_fifo=mean,
        met=met,
    )


def _gain(ours: float, theirs: float) -> float:
    return (ours - theirs) / abs(theirs) if theirs else 0.0


def _over(ours: Finding, theirs: Finding | None, name: str, figure: str) -> float | None:
    """Ours ÷ theirs; None where they were not run, or waited for nothing."""
    if theirs is None:
        return None
    most: float = getattr(theirs.wait_s[name], figure)
    mine: float = getattr(ours.wait_s[name], figure)
    if most == 0:
        return 1.0 if mine == 0 else None
    return mine / most

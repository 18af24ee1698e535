"""Durations and demand of the traces as rows of measure, goal, figure and whether it is met; and what hindsight could do.

Owns: the goals as numbers, and the bound: every run forecast by the quantiles of all scored runs of its own key, its own outcome
among them. No forecaster that knows only the key can be better, except by knowing when. Read next: `__main__.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from msgspec import Struct

from services.forecaster.core.demand_scores import OURS, DemandScore
from services.forecaster.core.duration_scores import score, short_jobs
from services.forecaster.core.rolling import Array, PastRuns
from services.forecaster.shell.evaluation import DurationReport

BELOW_SIMPLE = 0.9
"""At least ten percent below the best simple rule."""
PLAIN_LIGHTGBM = {"philly": 1.236, "metacentrum": 1.641, "nasa": 0.658}
"""Pinball of plain LightGBM quantiles, measured once by others with the same protocol."""
FACTOR_MAX = {"philly": 1.85, "metacentrum": 2.3, "nasa": 1.5}
SHORT_MIN = {"philly": (0.8, 0.7), "metacentrum": (0.8, 0.7), "nasa": (0.95, 0.9)}
DEMAND_COVERAGE = (0.86, 0.94)
REGRETS = (0.0, 0.05, 0.1, 0.2, 0.5)
"""Loss above that of the best other method on a client, which nobody can name beforehand."""


class Goal(Struct, frozen=True, kw_only=True):
    """One row. `goal` in words, `figure` as measured."""

    measure: str
    goal: str
    figure: float | None
    met: bool


def duration_goals(name: str, report: DurationReport) -> list[Goal]:
    """Of one trace."""
    ours, short = report.methods[OURS], report.short[OURS]
    best = min([one.pinball for rule, one in report.methods.items() if rule != OURS] + [PLAIN_LIGHTGBM[name]])
    recall_min, precision_min = SHORT_MIN[name]
    recall, precision = short.recall or 0.0, short.precision or 0.0
    groups = [*report.by_month, *report.by_size]
    wrong = [one.name for one in groups if not one.right]
    return [
        Goal(
            measure=f"{name}: pinball",
            goal=f"≤ {BELOW_SIMPLE * best:.3f}, ten percent below the best of the rules and plain LightGBM ({best:.3f})",
            figure=ours.pinball,
            met=ours.pinball <= BELOW_SIMPLE * best,
        ),
        Goal(
            measure=f"{name}: P50 factor",
            goal=f"≤ {FACTOR_MAX[name]}",
            figure=ours.factor,
            met=ours.factor <= FACTOR_MAX[name],
        ),
        Goal(
            measure=f"{name}: groups whose P90 coverage is off ({', '.join(wrong) or 'none'})",
            goal=f"0 of {len(groups)} months and sizes",
            figure=float(len(wrong)),
            met=not wrong,
        ),
        Goal(measure=f"{name}: short jobs, recall", goal=f"≥ {recall_min}", figure=recall, met=recall >= recall_min),
        Goal(
            measure=f"{name}: short jobs, precision",
            goal=f"≥ {precision_min}",
            figure=precision,
            met=precision >= precision_min,
        ),
    ]


def hindsight(runs: PastRuns, chosen: np.ndarray, days: int | None) -> dict[str, Any]:
    """Score of the best constant per key (and per so many days, if given), chosen after the fact."""
    members: dict[Any, list[int]] = {}
    for row in np.flatnonzero(chosen):
        part = None if days is None else int(runs.submit_s[row]) // (86_400 * days)
        members.setdefault((runs.subject(int(row)), part), []).append(int(row))
    log_s = runs.log_s()
    p50: Array = np.zeros(len(runs))
    p90: Array = np.zeros(len(runs))
    for rows in members.values():
        p50[rows], p90[rows] = np.quantile(log_s[rows], 0.5), np.quantile(log_s[rows], 0.9)
    return {
        "keys": len(members),
        "score": asdict(score(runs, (p50, p90), chosen)),
        "short": asdict(short_jobs(runs, p50, chosen)),
    }


def regrets(clients: dict[str, dict[str, DemandScore]], largest: int) -> dict[str, Any]:
    """Of the largest clients: our loss over that of the best other method, known only afterwards; how many are worse by how much."""
    ratios = sorted(
        scores[OURS].loss / min(one.loss for rule, one in scores.items() if rule != OURS)
        for scores in list(clients.values())[:largest]
    )
    return {
        "clients": len(ratios),
        "worse": {f"by more than {over:.0%}": sum(one > 1.0 + over for one in ratios) for over in REGRETS},
        "ratio": {
            name: round(float(np.quantile(ratios, share)), 3)
            for name, share in (("least", 0.0), ("P25", 0.25), ("P50", 0.5), ("P75", 0.75), ("P90", 0.9), ("most", 1.0))
        },
        "geometric mean": round(float(np.exp(np.log(ratios).mean())), 3),
    }


def demand_goals(
    name: str,
    total: dict[str, DemandScore],
    clients: dict[str, dict[str, DemandScore]],
    peers: Sequence[str],
    largest: int,
) -> list[Goal]:
    """Of one group of clients, in order of load. statsforecast's methods are compared over the clients that they were run on."""
    ours = total[OURS]
    best = min(one.loss for rule, one in total.items() if rule != OURS)
    large = dict(list(clients.items())[:largest])
    worse = [
        client
        for client, scores in large.items()
        if scores[OURS].loss > min(one.loss for rule, one in scores.items() if rule != OURS)
    ]
    rows = [
        Goal(
            measure=f"{name}: demand loss, all clients",
            goal=f"≤ {BELOW_SIMPLE * best:.4f}, ten percent below the best simple rule ({best:.4f})",
            figure=ours.loss,
            met=ours.loss <= BELOW_SIMPLE * best,
        ),
        Goal(
            measure=f"{name}: P90 coverage of demand",
            goal="86–94 %",
            figure=ours.coverage,
            met=DEMAND_COVERAGE[0] <= ours.coverage <= DEMAND_COVERAGE[1],
        ),
        Goal(
            measure=f"{name}: large clients on which something is better ({', '.join(worse) or 'none'})",
            goal=f"0 of {len(large)}",
            figure=float(len(worse)),
            met=not worse,
        ),
    ]
    for peer in peers:
        both = [scores for scores in clients.values() if peer in scores]
        mine = sum(scores[OURS].loss * scores[OURS].load for scores in both)
        theirs = sum(scores[peer].loss * scores[peer].load for scores in both)
        if theirs > 0:
            rows.append(
                Goal(
                    measure=f"{name}: demand loss over {peer}'s, {len(both)} of {len(clients)} clients",
                    goal=f"≤ {BELOW_SIMPLE}",
                    figure=round(mine / theirs, 4),
                    met=mine <= BELOW_SIMPLE * theirs,
                )
            )
    return rows

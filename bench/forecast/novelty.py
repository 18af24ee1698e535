"""Where the loss of duration forecasts lies: in things never seen before, or in things seen that vary.

Owns: runs grouped by how many of the very same thing (user, program, size …) had ended when they were submitted, and per group the score
beside the best constant per key in hindsight, which is what the spread among identical submissions leaves to whoever knows the key.
Refuses: forecasting. Read next: `goals.py`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

import numpy as np

from services.forecaster.core.duration_scores import score, short_jobs
from services.forecaster.core.history import Subject
from services.forecaster.core.rolling import Array, Moment, PastRuns, in_order

GROUPS = ((0, "none had ended"), (4, "1 to 4 had ended"), (1 << 62, "5 or more had ended"))
"""Most ended runs of each group, and its name."""


def by_novelty(runs: PastRuns, log_p50: Array, log_p90: Array, chosen: np.ndarray) -> dict[str, Any]:
    """Per group: how many of the scored runs, our score and short jobs, and those of hindsight per key."""
    known = _ended_before(runs)
    hindsight = _best_constants(runs, chosen)
    result: dict[str, Any] = {}
    least = 0
    for most, name in GROUPS:
        group = chosen & (known >= least) & (known <= most)
        least = most + 1
        if not group.any():
            continue
        result[name] = {
            "share": round(float(group.sum() / chosen.sum()), 4),
            "ours": asdict(score(runs, (log_p50, log_p90), group)),
            "ours_short": asdict(short_jobs(runs, log_p50, group)),
            "hindsight": asdict(score(runs, hindsight, group)),
            "hindsight_short": asdict(short_jobs(runs, hindsight[0], group)),
        }
    return result


def _ended_before(runs: PastRuns) -> np.ndarray:
    counts: dict[Subject, int] = defaultdict(int)
    result = np.zeros(len(runs), np.int64)
    for _, moment, row in in_order(runs):
        if moment is Moment.SUBMIT:
            result[row] = counts[runs.subject(row)]
        elif moment is Moment.END and runs.ended[row]:
            counts[runs.subject(row)] += 1
    return result


def _best_constants(runs: PastRuns, chosen: np.ndarray) -> tuple[Array, Array]:
    members: dict[Subject, list[int]] = defaultdict(list)
    for row in np.flatnonzero(chosen):
        members[runs.subject(int(row))].append(int(row))
    p50, p90, log_s = np.zeros(len(runs)), np.zeros(len(runs)), runs.log_s()
    for rows in members.values():
        p50[rows], p90[rows] = np.quantile(log_s[rows], 0.5), np.quantile(log_s[rows], 0.9)
    return p50, p90

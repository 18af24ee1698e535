"""A backtest as CSV: one row per scheduler and level, for spreadsheets and for scoring with other tools."""

from __future__ import annotations

import csv
import io

from services.replay.backtest import Backtest
from services.replay.core.findings import Finding, Times


def backtest_csv(found: Backtest) -> str:
    """Columns: what was run, the outcome's figures, then mean and percentiles of waiting and completion per size class."""
    rows = [_row(one) for one in found.findings]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(one: Finding) -> dict[str, str]:
    made = one.outcome
    row = {
        "scheduler": one.scheduler,
        "level": one.level,
        "value": f"{made.value:.3f}",
        "utilization": f"{made.utilization:.6f}",
        "held": f"{made.held:.6f}",
        "useful": f"{made.useful:.6f}",
        "jobs": str(made.jobs),
        "completed": str(made.completed),
        "starved": str(one.starved),
        "unmet_gpu_hours": f"{made.unmet_gpu_hours:.3f}",
        "unmet_share": f"{one.unmet_share:.6f}",
        "below_floor_gpu_hours": f"{one.below_floor_gpu_hours:.3f}",
        "schedulability_share": f"{one.schedulability.share:.6f}",
        "decisions": str(one.decisions),
    }
    for what, by_class in (("wait", one.wait_s), ("jct", one.jct_s)):
        for name, times in by_class.items():
            row |= _columns(f"{what}_{name.replace(' ', '_')}", times)
    return row


def _columns(prefix: str, times: Times) -> dict[str, str]:
    return {
        f"{prefix}_jobs": str(times.jobs),
        f"{prefix}_mean_s": f"{times.mean_s:.1f}",
        f"{prefix}_p50_s": f"{times.p50_s:.1f}",
        f"{prefix}_p90_s": f"{times.p90_s:.1f}",
        f"{prefix}_p99_s": f"{times.p99_s:.1f}",
    }

"""Tables and JSON of `gpugrid policy`. Pure, but for printing what it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from services.console.durations import moment_text
from services.console.policy_effect import GroupUse, JobEffect, group_uses
from services.console.tables import plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from services.console.policy_orders import Standing
    from services.console.session import Session

JOBS_SHOWN_MAX = 40
"""More changed jobs than a screen holds; the count follows, `--json` has all."""


def show_document(standing: Standing) -> dict[str, Any]:
    """The rules in force and the use of every group."""
    rows = []
    for row in group_uses(standing.state, standing.now_ms):
        rows.append(
            {
                "group": row.group.words,
                "kind": row.group.kind,
                "name": row.group.name,
                "pool": row.pool,
                "gpus": row.gpus,
                "maximum": row.maximum,
                "guaranteed": row.guaranteed,
                "running": row.running,
                "running_max": row.running_max,
                "waiting": row.waiting,
                "used_gpu_hours": None if row.used_h is None else round(row.used_h, 3),
                "share_factor": row.factor,
            }
        )
    rules = standing.state.rules
    return {"cluster": standing.cluster, "version": rules.version, "rules": msgspec.to_builtins(rules), "groups": rows}


def headline(standing: Standing) -> str:
    rules = standing.state.rules
    if rules.version == 0:
        return f"Cluster {standing.cluster} has no rules of its own: priority, aging and arrival decide."
    share = (
        f"fair share {rules.fair_share:g}, half-life {rules.half_life_s / 86_400:g} d"
        if rules.fair_share
        else "no fair share"
    )
    overdue = rules.aging.overdue_s
    late = f"overdue after {overdue / 3600:g} h" if overdue is not None else "no job is ever overdue"
    return f"Cluster {standing.cluster}, rules version {rules.version}: {share}, {late}."


def groups_table(standing: Standing) -> Table:
    """Use against limits, one row per group and pool."""
    numbers = ("GPUS", "OF", "GUARANTEED", "RUNNING", "OF", "WAITING", "USED GPU-H", "SHARE")
    table = plain_table("GROUP", "POOL", *numbers, right=numbers)
    for row in group_uses(standing.state, standing.now_ms):
        style = "bold yellow" if _full(row) else None
        table.add_row(
            row.group.words,
            row.pool,
            str(row.gpus),
            _limit(row.maximum),
            str(row.guaranteed or ""),
            str(row.running),
            _limit(row.running_max),
            str(row.waiting),
            "" if row.used_h is None else f"{row.used_h:.1f}",
            "" if row.factor is None else f"×{row.factor:.2f}",
            style=style,
        )
    return table


def print_judgement(session: Session, changes: Sequence[str], effects: Sequence[JobEffect], now_ms: int) -> None:
    """What a file changes: rules first, then jobs."""
    if not changes:
        session.print("The file says what is in force already.")
        return
    session.print("Changes:")
    for line in changes:
        session.print(f"  {line}")
    if not effects:
        session.print("Nothing that waits, runs or is served would stand differently after the next decision.")
        return
    session.print(
        f"{len(effects)} job{'s' if len(effects) > 1 else ''} would stand differently after the next decision:"
    )
    table = plain_table("JOB", "NOW", "THEN", "PLANNED NOW", "PLANNED THEN")
    for effect in effects[:JOBS_SHOWN_MAX]:
        table.add_row(
            effect.job_id,
            effect.before,
            effect.after,
            _moment(effect.planned_before_ms, now_ms),
            _moment(effect.planned_after_ms, now_ms),
        )
    session.print(table)
    if len(effects) > JOBS_SHOWN_MAX:
        session.print(f"… and {len(effects) - JOBS_SHOWN_MAX} more (`--json` has all)")


def _moment(planned_ms: int | None, now_ms: int) -> str:
    return "none" if planned_ms is None else moment_text(planned_ms, now_ms)


def _limit(most: int | None) -> str:
    return "" if most is None else str(most)


def _full(row: GroupUse) -> bool:
    by_gpus = row.maximum is not None and row.gpus >= row.maximum
    return by_gpus or (row.running_max is not None and row.running >= row.running_max)

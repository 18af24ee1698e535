"""Tables for people and rows for programs, from the same facts. Pure: builds rich renderables, prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from schemas.nodes import Health, NodeStateChanged
from schemas.status import JobState
from services.console.durations import duration_text, moment_text
from services.console.facts import ACCEPTED, JobView, World
from services.console.sentences import gpu_ranges
from services.console.shape import pool_shape

STATE_STYLES = {
    ACCEPTED: "cyan",
    JobState.REFUSED.value: "red",
    JobState.QUEUED.value: "yellow",
    JobState.STARTING.value: "bright_green",
    JobState.RUNNING.value: "green",
    JobState.STOPPING.value: "magenta",
    JobState.COMPLETED.value: "dim",
    JobState.FAILED.value: "red",
    JobState.CANCELLED.value: "dim",
    JobState.TIMED_OUT.value: "red",
}
HEALTH_STYLES = {
    Health.USABLE: "green",
    Health.DEGRADED: "yellow",
    Health.SUSPECT: "magenta",
    Health.LOST: "red",
}
_STATE_ORDER = (
    "running",
    "starting",
    "stopping",
    "queued",
    ACCEPTED,
    "refused",
    "failed",
    "timed_out",
    "cancelled",
    "completed",
)


def plain_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """The one look of all tables: no frame, so that lines can be cut and copied."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column == "JOB"
        )
    return table


def sorted_jobs(views: Iterable[JobView]) -> list[JobView]:
    """Running first, then the queue in its order, then what has ended, newest first."""

    def place(view: JobView) -> tuple[int, int, int, str]:
        position = view.position or 1 << 30
        ended_ms = view.status.ended_ms if view.status and view.status.ended_ms else 0
        return _STATE_ORDER.index(view.state), position, -ended_ms, view.job_id

    return sorted(views, key=place)


def jobs_table(views: Sequence[JobView], now_ms: int) -> Table:
    """One line per job: where it is and why."""
    table = plain_table(
        "JOB", "STATE", "POS", "KIND", "TEAM", "USER", "PRIO", "GPUS", "WHERE", "SINCE", "START", "REASON",
        right=("POS", "PRIO", "GPUS"),
    )  # fmt: skip
    for view in views:
        row = job_row(view)
        start_ms = row["planned_start_p50_ms"]
        table.add_row(
            view.job_id,
            Text(view.state, style=STATE_STYLES.get(view.state, "")),
            _text(row["position"]),
            row["kind"] or "",
            row["team"] or "",
            row["user"] or "",
            _text(row["priority"]),
            _text(row["gpus"]) or "/".join(str(size) for size in row["sizes"]),
            " ".join(f"{part['node']}:{gpu_ranges(part['gpus'])}" for part in row["placed"]),
            _since(view, now_ms),
            "" if start_ms is None or row["started_ms"] is not None else moment_text(start_ms, now_ms),
            row["reason"] or "",
        )
    return table


def job_row(view: JobView) -> dict[str, Any]:
    """What `jobs --json` has of one job."""
    status, spec = view.status, view.spec
    return {
        "job_id": view.job_id,
        "state": view.state,
        "reason": status.reason if status else None,
        "detail": status.detail if status else "",
        "position": view.position,
        "kind": "application" if view.is_application else view.job.kind.value if view.job else None,
        "team": spec.team if spec else None,
        "user": spec.user if spec else None,
        "priority": view.priority,
        "sizes": list(view.job.sizes) if view.job else [],
        "gpus": view.gpus_held or None,
        "placed": [{"node": part.node, "gpus": list(part.gpus)} for part in status.placed] if status else [],
        "holders": list(status.holders) if status else [],
        "attempt": status.attempt if status else 0,
        "submitted_ms": view.submitted_ms,
        "planned_start_p50_ms": status.planned_start_p50_ms if status else None,
        "planned_start_p90_ms": status.planned_start_p90_ms if status else None,
        "started_ms": status.started_ms if status else None,
        "ended_ms": status.ended_ms if status else None,
        "sequence": status.sequence if status else None,
        "cluster": view.cluster,
        "traceparent": view.traceparent,
    }


def nodes_table(world: World) -> Table:
    """One line per node: health, what runs there, what is free."""
    table = plain_table(
        "NODE",
        "POOL",
        "HEALTH",
        "GPUS",
        "FREE",
        "USED %",
        "MODEL",
        "JOBS",
        "FINDINGS",
        right=("GPUS", "FREE", "USED %"),
    )
    for row, node in zip(node_rows(world), world.pool_nodes(None), strict=True):
        table.add_row(
            node.node,
            node.pool,
            Text(node.health.value + (", draining" if row["draining"] else ""), style=HEALTH_STYLES[node.health]),
            str(row["gpus"] - len(row["absent"])) + (f" of {row['gpus']}" if row["absent"] else ""),
            str(len(row["free"])),
            "" if row["utilization_pct"] is None else f"{row['utilization_pct']:.0f}",
            node.gpu_model,
            " ".join(f"{job['job_id']}:{gpu_ranges(job['gpus'])}" for job in row["jobs"]),
            "; ".join([*_cards_text(row), *(_finding_text(finding) for finding in row["findings"])]),
        )
    return table


def _cards_text(row: dict[str, Any]) -> list[str]:
    """Of a machine whose cards are shared: what is to be cut, and why the last cut failed."""
    cards = sorted({slot // row["slots_per_card"] for slot in row["withheld"]})
    found = [f"cards {gpu_ranges(cards)} are being emptied or cut"] if cards else []
    return [*found, f"last cut: {row['cards_detail']}"] if row["cards_detail"] else found


def node_rows(world: World) -> list[dict[str, Any]]:
    """What `nodes --json` has, in pool order."""
    shapes = {shape.node: shape for shape in pool_shape(world).nodes}
    rows = []
    for node in world.pool_nodes(None):
        placed = world.placements.get(node.node)
        measured = [gpu.utilization_pct for gpu in node.gpus if not gpu.stale]
        rows.append(
            {
                "node": node.node,
                "cluster": node.cluster,
                "pool": node.pool,
                "health": node.health.value,
                "draining": world.is_draining(node),
                "gpus": len(node.gpus),
                "machine": node.machine,
                "slots_per_card": node.slots_per_card,
                "absent": list(placed.absent) if placed else [],
                "withheld": list(placed.withheld) if placed else [],
                "cards_detail": placed.cards_detail if placed else "",
                "unhealthy": [gpu.index for gpu in node.gpus if not gpu.healthy],
                "free": list(shapes[node.node].free),
                "utilization_pct": sum(measured) / len(measured) if measured else None,
                "gpu_model": node.gpu_model,
                "rack": node.rack,
                "incarnation": node.incarnation,
                "sequence": placed.sequence if placed else None,
                "jobs": [
                    {"job_id": one.job_id, "gpus": list(one.gpus), "desired": one.desired.value}
                    for one in (placed.assignments if placed else [])
                ],
                "findings": _finding_rows(node),
            }
        )
    return rows


def pool_summary(world: World) -> str:
    """One line under the nodes."""
    shape = pool_shape(world)
    return (
        f"{shape.gpus} GPUs on {len(shape.nodes)} nodes; {shape.free} free, largest free block {shape.largest_block()},"
        f" whole nodes free (schedulability) {shape.schedulability}."
    )


def _finding_rows(node: NodeStateChanged) -> list[dict[str, Any]]:
    return [
        {"code": one.code.value, "gpu": one.gpu, "job_id": one.job_id, "detail": one.detail} for one in node.findings
    ]


def _finding_text(finding: dict[str, Any]) -> str:
    where = "" if finding["gpu"] is None else f" gpu {finding['gpu']}"
    whose = f" ({finding['job_id']})" if finding["job_id"] else ""
    return f"{finding['code']}{where}{whose}"


def _since(view: JobView, now_ms: int) -> str:
    status = view.status
    if status is None:
        return "" if view.accepted_ms is None else duration_text((now_ms - view.accepted_ms) / 1000)
    if view.final:
        return "" if status.ended_ms is None else duration_text((now_ms - status.ended_ms) / 1000) + " ago"
    since_ms = status.started_ms if status.started_ms is not None else view.submitted_ms
    return "" if since_ms is None else duration_text(max(0, now_ms - since_ms) / 1000)


def _text(value: object) -> str:
    return "" if value is None else str(value)

"""What is known as JSON for the browser: one row per job, node, application and block. Pure.

Names are short but words; what is empty is left out, because a page may show ten thousand rows.
"""

from __future__ import annotations

from typing import Any

from schemas.nodes import GpuState, Health
from services.console.facts import JobView
from services.console.page.blocks import Block, WhyHere
from services.console.page.board import Board
from services.console.page.demand import AppDemand

Row = dict[str, Any]
HOLDERS_SHOWN = 3


def job_row(view: JobView) -> Row:
    """A job or application in the list."""
    status, spec = view.status, view.spec
    row: Row = {
        "state": view.state,
        "reason": status.reason if status else None,
        "kind": "application" if view.is_application else view.job.kind.value if view.job else None,
        "team": spec.team if spec else None,
        "user": spec.user if spec else None,
        "prio": view.priority,
        "sizes": list(view.job.sizes) if view.job else None,
        "want": (view.job.requested_gpus or view.job.sizes[0]) if view.job else None,
        "gpus": view.gpus_held or None,
        "at": view.submitted_ms if view.submitted_ms is not None else view.accepted_ms,
        "start": status.started_ms if status else None,
        "end": status.ended_ms if status else None,
        "p50": status.planned_start_p50_ms if status else None,
        "p90": status.planned_start_p90_ms if status else None,
        "try": status.attempt if status and status.attempt > 1 else None,
        "holders": list(status.holders[:HOLDERS_SHOWN]) if status and not view.final else None,
        "due": view.expected_end_ms() if not view.final else None,
        "order": view.arrival,
    }
    return {name: value for name, value in row.items() if value not in (None, [], "")}


def node_row(board: Board, name: str) -> Row:
    """A node with its GPUs as `[utilization %, used MiB, total MiB, flags]`; flags: 1 unhealthy, 2 stale, 4 cut for another pool."""
    node = board.world.nodes[name]
    absent = board.world.absent(name)
    drain = board.world.draining.get(name)
    return {
        "cluster": node.cluster,
        "pool": node.pool,
        "order": node.order,
        "rack": node.rack,
        "health": node.health.value,
        "lost": node.health is Health.LOST,
        "draining": drain is not None,
        "drain_cause": drain.cause if drain is not None else "",
        "model": node.gpu_model,
        "driver": node.driver,
        "seen": node.time_ms,
        "gpus": [_gpu_row(gpu, gpu.index in absent) for gpu in sorted(node.gpus, key=lambda one: one.index)],
        "findings": [
            {"code": one.code.value, "gpu": one.gpu, "job": one.job_id, "detail": one.detail} for one in node.findings
        ],
    }


def _gpu_row(gpu: GpuState, absent: bool) -> list[float]:
    flags = (not gpu.healthy) + 2 * gpu.stale + 4 * absent
    return [round(gpu.utilization_pct), gpu.memory_used_mib, gpu.memory_total_mib, flags]


def block_row(block: Block) -> list[Any]:
    """`[owner, node, GPUs, since, until, expected end, attempt, flags]`; flags: 1 application, 2 its process has started."""
    flags = block.application + 2 * block.started
    return [
        block.owner, block.node, list(block.gpus), block.since_ms, block.until_ms, block.expect_ms, block.attempt, flags,
    ]  # fmt: skip


def app_row(board: Board, name: str) -> Row:
    """An application's curves; times in ms, GPUs as numbers. `held` steps: `[from, GPUs]`."""
    view = board.world.jobs.get(name)
    demand = board.demand.get(name, AppDemand())
    spec = view.application if view else None
    forecast = demand.forecast
    return {
        "floor": spec.floor_gpus if spec else 0,
        "peak": spec.peak_gpus if spec else 0,
        "quantile": spec.quantile if spec else None,
        "headroom": spec.headroom if spec else None,
        "unit": demand.unit,
        "per_gpu": demand.per_gpu,
        "window_ms": round(demand.window_s * 1000),
        "observed": [[time_ms, round(gpus, 3)] for time_ms, gpus in sorted(demand.observed.items())],
        "held": [[hold.time_ms, len(hold.gpus)] for hold in board.ledger.holds.get(name, ())],
        "fan": [[time_ms, round(p50, 3), round(p90, 3)] for time_ms, (p50, p90) in sorted(demand.fan.items())],
        "step_ms": forecast.step_s * 1000 if forecast else None,
        "made": forecast.made_ms if forecast else None,
        "model": forecast.model if forecast else None,
    }


def why_row(why: WhyHere, before: list[tuple[str, int]]) -> Row:
    """The facts behind a placement; of those who were there before only the last few."""
    return {
        "sequence": why.sequence,
        "at": why.at_ms,
        "gpus": len(why.gpus),
        "p50_s": why.p50_s,
        "p90_s": why.p90_s,
        "waited_for": why.waited_for,
        "holders": list(why.holders),
        "before": [{"owner": owner, "left": left_ms} for owner, left_ms in before[:HOLDERS_SHOWN]],
    }


def snapshot_rows(board: Board) -> dict[str, Any]:
    """Everything, for a browser that has nothing yet."""
    return {
        "jobs": {name: job_row(view) for name, view in board.world.jobs.items()},
        "nodes": {name: node_row(board, name) for name in sorted(board.world.nodes)},
        "apps": {name: app_row(board, name) for name in app_names(board)},
        "blocks": {name: block_row(block) for name, block in board.blocks.all.items()},
    }


def app_names(board: Board) -> list[str]:
    """Applications that are known and have not ended."""
    return sorted(name for name, view in board.world.jobs.items() if view.is_application and not view.final)


def take_changes(board: Board) -> dict[str, Any]:
    """What changed since the last time, as rows to set and names to drop. Empties the board's notes."""
    changed, blocks, world = board.changed, board.blocks, board.world
    found = {
        "jobs": {name: job_row(world.jobs[name]) for name in changed.jobs if name in world.jobs},
        "nodes": {name: node_row(board, name) for name in changed.nodes if name in world.nodes},
        "apps": {name: app_row(board, name) for name in changed.apps if name in world.jobs},
        "blocks": {name: block_row(blocks.all[name]) for name in blocks.changed if name in blocks.all},
    }
    gone = {
        "jobs": list(changed.jobs_gone),
        "nodes": [name for name in changed.nodes if name not in world.nodes],
        "blocks": list(blocks.gone),
    }
    for notes in (changed.jobs, changed.jobs_gone, changed.nodes, changed.apps, blocks.changed, blocks.gone):
        notes.clear()
    set_rows = {name: rows for name, rows in found.items() if rows}
    gone_rows = {name: names for name, names in gone.items() if names}
    return {name: part for name, part in (("set", set_rows), ("gone", gone_rows)) if part}

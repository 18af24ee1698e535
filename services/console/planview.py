"""The grid a person sees: what runs now, and the planner's own plan for the rest of the window, made again from the log.

Decisions hold commitments only; the plan behind them is a pure function of the state, so the console makes the same one.
Without planning (`--now`, or a log that can't be read) the picture comes from placements and planned starts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from schemas.nodes import Health
from services.console import queries
from services.console.facts import World
from services.console.gridview import STEP_S_DEFAULT, Cell, Grid, Row, grid_of_world
from services.console.session import Session

if TYPE_CHECKING:
    from services.allocator.core.plan import Plan
    from services.allocator.core.pose import Posed


COMPILED = "search.solve-*.nbi"
"""numba's index file of the kernel that needs all others; without it the plan would take minutes to compile."""


def kernels_compiled() -> bool:
    """Whether the planner starts in about a second here. Names the cache, so it comes before numba's import."""
    from services.allocator.shell.warmup import use_kernel_cache

    return os.environ.get("NUMBA_DISABLE_JIT") == "1" or any(use_kernel_cache().rglob(COMPILED))


async def load_grid(
    session: Session, pool: str | None, *, steps: int, step_s: int | None, plan: bool
) -> tuple[Grid, bool]:
    """(grid, whether everything was read). A given step length shows the world's picture, the plan has its own."""
    world = await queries.load_world(session, forecasts=True)
    now_ms = session.clock().now_ms()
    if plan and step_s is None and world.nodes:
        planned = await _planned(session, world, pool, steps, now_ms)
        if planned is not None:
            return planned, world.complete
    return grid_of_world(world, pool, now_ms=now_ms, step_s=step_s or STEP_S_DEFAULT, steps=steps), world.complete


async def _planned(session: Session, world: World, pool: str | None, steps: int, now_ms: int) -> Grid | None:
    """The planner's grid over all clusters, or None where no decision was made yet or its kernels are not compiled here."""
    from schemas.records import Now

    if not kernels_compiled():
        return None
    from services.allocator.core.commit import plan_effects
    from services.allocator.shell.log import load
    from services.console.settings import settings_of

    rows: list[Row] = []
    step_s = STEP_S_DEFAULT
    for cluster in sorted({node.cluster for node in world.nodes.values()}):
        settings = settings_of(session, cluster)
        step_s = settings.policy.step_s
        partition = next(world.node_partition[name] for name, node in world.nodes.items() if node.cluster == cluster)
        loaded = await load(session.bus(), cluster, partition, settings.policy.step_ms, "gpugrid-console")
        if loaded.state.sequence == 0:
            return None
        now = Now(max(now_ms, loaded.state.now_ms), loaded.state.wall_ms)
        _, posed, plans = plan_effects(loaded.state, settings.memory_mib, settings.policy, now)
        for one, made in zip(posed, plans, strict=True):
            if pool is None or one.pool == pool:
                rows.extend(rows_of_plan(one, made, steps))
    return Grid(now_ms, step_s, tuple(rows))


def rows_of_plan(posed: Posed, plan: Plan, steps: int) -> list[Row]:
    """Rows of one pool's plan. Pure. What runs now is sure in its first step; the rest is expected or planned."""
    problem = posed.problem
    shown = min(steps, problem.steps)
    cells: list[list[Cell | None]] = [[None] * shown for _ in range(problem.gpus)]

    def fill(name: str, first: int, size: int, start: int, end: int, *, sure: bool, application: bool = False) -> None:
        for gpu in range(first, first + size):
            for step in range(start, min(end, shown)):
                cells[gpu][step] = Cell(name, application, sure=sure and step == 0)

    for app, gpu, start, end in plan.segments.tolist():
        fill(problem.app_ids[app], gpu, 1, start, end, sure=True, application=True)
    for row in range(problem.jobs):
        start, option = int(plan.start[row]), int(plan.option[row])
        if start >= 0:
            size, length = int(problem.option_gpus[option]), int(problem.option_steps[option])
            fill(problem.job_ids[row], int(plan.first_gpu[row]), size, start, start + length, sure=False)
    for row, name in enumerate(problem.running_ids):
        first, size = int(problem.running_first[row]), int(problem.running_gpus[row])
        fill(name, first, size, 0, int(problem.running_steps[row]), sure=True)
    rows = []
    for node in posed.layout.nodes:
        first = posed.layout.first[node.node]
        for gpu in (gpu for gpu in range(node.size) if gpu not in node.absent):
            down = node.health is Health.LOST or not node.healthy[gpu]
            held = node.health is Health.SUSPECT or node.draining
            rows.append(Row(node.node, gpu, tuple(cells[first + gpu]), down, held))
    return rows

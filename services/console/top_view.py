"""`gpugrid top`: the page's numbers in a terminal, drawn once a second. `draw` is pure; `run` owns the terminal and the reading."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from schemas.nodes import Health
from schemas.status import JobState
from services.console.durations import duration_text, from_now_text, moment_text
from services.console.errors import ConsoleError
from services.console.facts import JobView, number_queue
from services.console.gridview import colour_of
from services.console.page.board import Board
from services.console.page.follower import Follower
from services.console.page.hub import Hub
from services.console.session import Session
from services.console.tables import plain_table

READ_WAIT_S = 30.0
"""Until the topics are read to their end for the first time; then there is nothing to show."""
CHROME_LINES = 11
"""Lines of head and headings; the rest is shared by what runs and what waits."""
EIGHTHS = " ▁▂▃▄▅▆▇█"
PLACED = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)


def draw(board: Board, sections: Mapping[str, Any], now_ms: int, width: int, height: int) -> RenderableType:
    """One picture of at most `height` lines."""
    number_queue(board.world)
    views = list(board.world.jobs.values())
    waiting = sorted(
        (one for one in views if one.position is not None), key=lambda one: (one.cluster or "", one.position or 0)
    )
    running = sorted(
        (one for one in views if one.status and one.status.state in PLACED and not one.is_application),
        key=lambda one: (-one.gpus_held, (one.status and one.status.started_ms) or 0, one.job_id),
    )
    nodes = _nodes(board, width)
    apps = _apps(board)
    left = max(4, height - CHROME_LINES - len(nodes) - apps.row_count)
    waiting_lines = max(2, min(len(waiting), left - min(len(running), left // 2)))
    running_lines = max(1, left - waiting_lines)
    parts: list[RenderableType] = [_head(board, sections, now_ms, len(running), len(waiting)), *nodes]
    if apps.row_count:
        parts.append(apps)
    parts.append(_running(running, running_lines, now_ms))
    parts.append(_waiting(waiting, waiting_lines, now_ms))
    return Group(*parts)


def _head(board: Board, sections: Mapping[str, Any], now_ms: int, running: int, waiting: int) -> Text:
    world = board.world
    total = sum(len(node.gpus) for node in world.nodes.values())
    held = len(world.holder_of())
    text = Text(f"{moment_text(now_ms, now_ms)} UTC  ", style="bold", no_wrap=True, overflow="ellipsis")
    text.append(
        f"{held} of {total} GPUs held, {running} jobs run, {waiting} wait, decision {board.decisions}\n", style=""
    )
    shadow = sections.get("shadow")
    if shadow:
        ours, fifo = shadow["gpugrid"], shadow["fifo"]
        text.append(
            f"at work so far {ours['utilization']:.0%} (FIFO {fifo['utilization']:.0%}), value {ours['value']:,.0f}"
            f" (FIFO {fifo['value']:,.0f}), missing real-time {ours['unmet_gpu_hours']:.2f} GPU-h\n",
            style="dim",
        )
    found = sections.get("diagnosis")
    if found and waiting:
        text.append(f"{found['headline']}. {found['sentence']}\n", style="yellow")
    return text


def _nodes(board: Board, width: int) -> list[Text]:
    """A block per GPU, as high as it is used, in its owner's colour; nodes side by side."""
    holders = board.world.holder_of()
    lines: list[Text] = []
    line = Text(no_wrap=True)
    for node in board.world.pool_nodes(None):
        bad = node.health in (Health.LOST, Health.SUSPECT)
        part = Text(f"{node.node} ", style="red" if bad else "yellow" if node.node in board.world.draining else "dim")
        for gpu in sorted(node.gpus, key=lambda one: one.index):
            owner = holders.get((node.node, gpu.index))
            bar = EIGHTHS[round(gpu.utilization_pct / 100 * 8)] if not gpu.stale else "?"
            style = f"{colour_of(owner)} on grey15" if owner else "on grey15"
            part.append("x" if not gpu.healthy else bar if owner else "·", style="red" if not gpu.healthy else style)
        part.append("  ")
        if len(line) + len(part) > width and len(line):
            lines.append(line)
            line = Text(no_wrap=True)
        line.append_text(part)
    return [*lines, line] if len(line) else lines


def _apps(board: Board) -> Table:
    table = plain_table("APPLICATION", "HELD", "NEEDED", "FLOOR", "PEAK", right=("HELD", "NEEDED", "FLOOR", "PEAK"))
    for name, view in sorted(board.world.jobs.items()):
        if view.application is None or view.final:
            continue
        demand = board.demand.get(name)
        needed = demand.observed[max(demand.observed)] if demand is not None and demand.observed else None
        short = needed is not None and needed > view.gpus_held + 0.05
        table.add_row(
            Text(name, style=colour_of(name)),
            str(view.gpus_held),
            Text("" if needed is None else f"{needed:.1f}", style="bold red" if short else ""),
            str(view.application.floor_gpus),
            str(view.application.peak_gpus),
        )
    return table


def _running(views: list[JobView], lines: int, now_ms: int) -> Table:
    table = plain_table("RUNNING", "GPUS", "WHERE", "FOR", "ENDS", "TEAM", "USER", right=("GPUS",))
    for view in views[:lines]:
        status = view.status
        started_ms = status.started_ms if status is not None else None
        end_ms = view.expected_end_ms()
        table.add_row(
            Text(view.job_id, style=colour_of(view.job_id)),
            str(view.gpus_held),
            " ".join(part.node for part in status.placed[:3]) if status is not None else "",
            "" if started_ms is None else duration_text(max(0, now_ms - started_ms) / 1000),
            "" if end_ms is None else from_now_text(end_ms, now_ms),
            view.spec.team if view.spec else "",
            view.spec.user if view.spec else "",
        )
    return table


def _waiting(views: list[JobView], lines: int, now_ms: int) -> Table:
    more = f" (+{len(views) - lines})" if len(views) > lines else ""
    table = plain_table(
        "#", f"WAITING{more}", "GPUS", "PRIO", "WAITED", "STARTS", "REASON", right=("#", "GPUS", "PRIO")
    )
    for view in views[:lines]:
        status = view.status
        start_ms = status.planned_start_p50_ms if status is not None else None
        table.add_row(
            str(view.position or ""),
            Text(view.job_id, style=colour_of(view.job_id)),
            ",".join(str(size) for size in view.job.sizes) if view.job else "",
            str(view.priority or ""),
            "" if view.submitted_ms is None else duration_text(max(0, now_ms - view.submitted_ms) / 1000),
            "" if start_ms is None else from_now_text(start_ms, now_ms),
            (status.reason or "") if status is not None else "",
        )
    return table


def run(session: Session, *, once: bool, period_s: float) -> None:
    """Until Ctrl-C, or one picture."""
    if session.make_bus is None:
        session.address()
    asyncio.run(_run(session, once, period_s))


async def _run(session: Session, once: bool, period_s: float) -> None:
    hub = Hub("top")
    follower = Follower(session, hub, planning=False)
    task = asyncio.create_task(follower.run())
    console = session.console()
    try:
        try:
            await asyncio.wait_for(follower.ready.wait(), READ_WAIT_S)
        except TimeoutError:
            raise ConsoleError(f"The topics could not be read within {READ_WAIT_S:.0f} s ({follower.lost}).") from None
        if once:
            console.print(draw(hub.board, hub.sections, follower.now_ms(), console.width, 40))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                picture = draw(hub.board, hub.sections, follower.now_ms(), console.width, console.height)
                if follower.lost:
                    picture = Group(Text(f"Not connected: {follower.lost}", style="bold red"), picture)
                live.update(picture, refresh=True)
                await asyncio.sleep(period_s)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

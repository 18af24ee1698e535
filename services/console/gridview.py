"""The grid as coloured text: one line per GPU, one character per step, now at the left. Pure.

Owns: cells from placements and planned starts (`grid_of_world`), letters and colours, the drawing. The planner's own full
plan comes in the same shape (`planview`). Refuses: planning.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from schemas.nodes import Health
from schemas.placements import Desired
from schemas.status import JobState
from services.console.durations import moment_text
from services.console.facts import World

STEP_S_DEFAULT = 900
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_COLOURS = (
    "dark_orange3", "steel_blue1", "chartreuse3", "medium_purple1", "gold3", "deep_pink3", "turquoise2", "salmon1",
    "dodger_blue2", "dark_sea_green2", "orchid", "khaki3", "spring_green3", "light_coral", "slate_blue1", "cyan3",
)  # fmt: skip
FREE, DOWN, HELD = "·", "x", "#"
"""HELD: usable by nobody new (draining, suspect, reserved)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one GPU does in one step. `sure`: decided; otherwise planned or beyond the median duration."""

    job_id: str
    application: bool = False
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU over the steps; None is free. `down` and `held` say why nothing new may start there."""

    node: str
    gpu: int
    cells: tuple[Cell | None, ...]
    down: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows in pool order. `waiting`: (job, planned start) of jobs whose GPUs are not known here."""

    now_ms: int
    step_s: int
    rows: tuple[Row, ...]
    waiting: tuple[tuple[str, int], ...] = ()

    @property
    def steps(self) -> int:
        return max((len(row.cells) for row in self.rows), default=0)


def grid_of_world(world: World, pool: str | None, *, now_ms: int, step_s: int, steps: int) -> Grid:
    """What runs now, for as long as it is expected to; queued jobs only by their planned start."""
    lasting: dict[tuple[str, int], tuple[str, bool, int]] = {}
    for node, placed in sorted(world.placements.items()):
        for one in placed.assignments:
            view = world.jobs.get(one.job_id)
            end_ms = view.expected_end_ms() if view else None
            left = 1 if one.desired is Desired.STOP or end_ms is None else _steps(end_ms - now_ms, step_s)
            if one.application:
                left = steps
            for gpu in one.gpus:
                lasting[node, gpu] = (one.job_id, one.application, max(1, min(left, steps)))
    rows = []
    for state in world.pool_nodes(pool):
        down = state.health is Health.LOST
        held = state.health is Health.SUSPECT or world.is_draining(state)
        absent = world.absent(state.node)
        for card in sorted((one for one in state.gpus if one.index not in absent), key=lambda one: one.index):
            cells: list[Cell | None] = [None] * steps
            if (state.node, card.index) in lasting:
                job_id, application, left = lasting[state.node, card.index]
                for step in range(left):
                    cells[step] = Cell(job_id, application, sure=step == 0)
            rows.append(Row(state.node, card.index, tuple(cells), down or not card.healthy, held))
    waiting = [
        (view.job_id, view.status.planned_start_p50_ms)
        for view in world.jobs.values()
        if view.status and view.status.state is JobState.QUEUED and view.status.planned_start_p50_ms is not None
    ]
    return Grid(now_ms, step_s, tuple(rows), tuple(sorted(waiting, key=lambda pair: (pair[1], pair[0]))))


def _steps(span_ms: int, step_s: int) -> int:
    return max(1, -(-span_ms // (step_s * 1000)))


def letters_of(grid: Grid) -> dict[str, str]:
    """A letter per job, in order of first appearance; letters repeat after 62 jobs, colours tell them apart."""
    letters: dict[str, str] = {}
    for step in range(grid.steps):
        for row in grid.rows:
            cell = row.cells[step]
            if cell is not None and cell.job_id not in letters:
                letters[cell.job_id] = _LETTERS[len(letters) % len(_LETTERS)]
    return letters


def colour_of(job_id: str) -> str:
    """The same job has the same colour everywhere, always."""
    return _COLOURS[zlib.crc32(job_id.encode()) % len(_COLOURS)]


def draw(grid: Grid) -> Text:
    """The picture: a time axis, then the GPUs by node."""
    letters = letters_of(grid)
    label = max((len(row.node) for row in grid.rows), default=4) + 4
    text = Text(no_wrap=True)
    text.append(_axis(grid, label) + "\n", style="dim")
    previous = None
    for row in grid.rows:
        name = row.node if row.node != previous else ""
        previous = row.node
        text.append(f"{name:<{label - 3}}{row.gpu:>2} ", style="bold" if name else "dim")
        for cell in row.cells:
            if cell is not None:
                style = colour_of(cell.job_id)
                text.append(letters[cell.job_id], style=f"bold black on {style}" if cell.sure else style)
            else:
                text.append(DOWN if row.down else HELD if row.held else FREE, style="red" if row.down else "dim")
        text.append("\n")
    return text


def _axis(grid: Grid, label: int) -> str:
    """Clock times every 12 steps."""
    axis = [" "] * (label + grid.steps + 8)
    for step in range(0, grid.steps, 12):
        words = "now" if step == 0 else moment_text(grid.now_ms + step * grid.step_s * 1000, grid.now_ms)[-5:]
        axis[label + step : label + step + len(words)] = words
    return "".join(axis).rstrip()


def legend(grid: Grid, limit: int = 40) -> Text:
    """Letter → job, running ones first; `limit` names at most."""
    letters = letters_of(grid)
    text = Text()
    for number, (job_id, letter) in enumerate(letters.items()):
        if number == limit:
            text.append(f" … and {len(letters) - limit} more (--json has all)")
            break
        text.append(letter, style=f"bold black on {colour_of(job_id)}")
        text.append(f" {job_id}   ")
    return text


def later(grid: Grid, limit: int = 8) -> list[str]:
    """Planned starts whose GPUs this picture does not know, as lines."""
    lines = [f"{job_id} starts {moment_text(start_ms, grid.now_ms)}" for job_id, start_ms in grid.waiting[:limit]]
    if len(grid.waiting) > limit:
        lines.append(f"… and {len(grid.waiting) - limit} more planned starts (`gpugrid jobs --state queued`)")
    return lines


def grid_rows(grid: Grid) -> dict[str, Any]:
    """What `grid --json` has: runs of equal cells as [job, first step, steps, sure]."""
    return {
        "now_ms": grid.now_ms,
        "step_s": grid.step_s,
        "steps": grid.steps,
        "gpus": [
            {"node": row.node, "gpu": row.gpu, "down": row.down, "held": row.held, "runs": _runs(row.cells)}
            for row in grid.rows
        ],
        "planned_starts": [{"job_id": job_id, "start_ms": start_ms} for job_id, start_ms in grid.waiting],
    }


def _runs(cells: Sequence[Cell | None]) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    previous: Cell | None = None
    for step, cell in enumerate(cells):
        if cell is not None and cell == previous:
            runs[-1]["steps"] += 1
        elif cell is not None:
            runs.append(
                {"job_id": cell.job_id, "application": cell.application, "sure": cell.sure, "first": step, "steps": 1}
            )
        previous = cell
    return runs

"""A planned grid as text and as an SVG picture: one row per GPU, one column per step. Pure.

Jobs have the colours they have everywhere (`gridview.colour_of`); applications are grey, idle cells stay empty.
"""

from __future__ import annotations

from html import escape

from rich.color import Color
from rich.text import Text

from services.allocator.core.plan import Plan
from services.allocator.core.problem import Problem
from services.allocator.core.value import completed, utilization, value_of
from services.console.gridview import colour_of

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
ROWS_MAX = 128  # taller grids fill screens and files without showing more
CELL_PX, GAP_PX, LEFT_PX, TITLE_PX = 14, 26, 46, 34
Block = tuple[str, int, int, int, int]  # job, first GPU, GPUs, start, end


def blocks(problem: Problem, plan: Plan) -> list[Block]:
    """Batch-like blocks inside the window, running ones first, then by start."""
    rows: list[Block] = []
    for name, (first, size, steps, *_) in zip(problem.running_ids, problem.running_table.tolist(), strict=True):
        rows.append((name, first, size, 0, min(steps, problem.steps)))
    planned: list[Block] = []
    for job, start in enumerate(plan.start.tolist()):
        if start >= 0:
            row = int(plan.option[job])
            end = min(start + int(problem.option_steps[row]), problem.steps)
            planned.append((problem.job_ids[job], int(plan.first_gpu[job]), int(problem.option_gpus[row]), start, end))
    return rows + sorted(planned, key=lambda block: (block[3], block[1]))


def draw(problem: Problem, plan: Plan) -> Text:
    """Letters for jobs, `▒` for applications, `·` for idle cells; nodes apart, at most ROWS_MAX GPUs."""
    cells: list[list[tuple[str, str]]] = [[("·", "dim")] * problem.steps for _ in range(problem.gpus)]
    for _, gpu, start, end in plan.segments.tolist():
        cells[gpu][start:end] = [("▒", "grey50")] * (end - start)
    for index, (name, first, size, start, end) in enumerate(blocks(problem, plan)):
        cell = (LETTERS[index % len(LETTERS)], f"bold black on {colour_of(name)}")
        for gpu in range(first, first + size):
            cells[gpu][start:end] = [cell] * (end - start)
    text = Text(no_wrap=True)
    text.append("      " + "".join(f"{step:<6}" for step in range(0, problem.steps, 6)) + "\n", style="dim")
    for gpu in range(min(problem.gpus, ROWS_MAX)):
        if gpu and problem.topology.gpu_node[gpu] != problem.topology.gpu_node[gpu - 1]:
            text.append("\n")
        text.append(f"{gpu:>4}  ", style="dim")
        for letter, style in cells[gpu]:
            text.append(letter, style=style)
        text.append("\n")
    if problem.gpus > ROWS_MAX:
        text.append(f"      … and {problem.gpus - ROWS_MAX} more GPUs (--json has all)\n", style="dim")
    return text


def legend(problem: Problem, plan: Plan) -> Text:
    """Letter → job."""
    text = Text()
    for index, (name, *_) in enumerate(blocks(problem, plan)[: len(LETTERS)]):
        text.append(LETTERS[index], style=f"bold black on {colour_of(name)}")
        text.append(f" {name}  ")
    return text


def svg(problem: Problem, plans: list[tuple[str, Plan]]) -> str:
    """The plans above each other in one picture, same scale, with their numbers as titles."""
    rows = min(problem.gpus, ROWS_MAX)
    nodes = int(problem.topology.gpu_node[rows - 1]) if rows else 0
    height = TITLE_PX + rows * CELL_PX + nodes * 4 + GAP_PX
    width = max(LEFT_PX + problem.steps * CELL_PX + 12, 560)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height * len(plans) + 8}" '
        'font-family="system-ui, sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for index, (title, plan) in enumerate(plans):
        parts += _panel(problem, title, plan, index * height, rows)
    parts.append("</svg>\n")
    return "\n".join(parts)


def _panel(problem: Problem, title: str, plan: Plan, top: int, rows: int) -> list[str]:
    """One plan: title, GPU numbers, idle background, applications, jobs."""
    words = (
        f"{title}: {utilization(problem, plan):.1%} of GPU-steps in use, value {value_of(problem, plan):.1f}, "
        f"{completed(problem, plan)} jobs completed"
    )
    parts = [f'<text x="{LEFT_PX}" y="{top + 20}" font-size="14" font-weight="600">{escape(words)}</text>']

    def y_of(gpu: int) -> int:
        return top + TITLE_PX + gpu * CELL_PX + int(problem.topology.gpu_node[gpu]) * 4

    def box(gpu: int, size: int, start: int, end: int, fill: str, label: str) -> None:
        last = min(gpu + size, rows) - 1
        if gpu > last:
            return
        x, y, w = LEFT_PX + start * CELL_PX, y_of(gpu), (end - start) * CELL_PX - 1
        h = y_of(last) + CELL_PX - 1 - y
        parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="2" fill="{fill}"><title>{escape(label)}</title></rect>'
        )
        if w >= 7 * len(label):
            parts.append(f'<text x="{x + 4}" y="{y + min(h, CELL_PX * 2) / 2 + 4:.0f}">{escape(label)}</text>')

    for gpu in range(rows):
        parts.append(
            f'<rect x="{LEFT_PX}" y="{y_of(gpu)}" width="{problem.steps * CELL_PX - 1}" height="{CELL_PX - 1}" fill="#f1f1ee"/>'
        )
        parts.append(f'<text x="{LEFT_PX - 6}" y="{y_of(gpu) + 11}" text-anchor="end" fill="#777">{gpu}</text>')
    for app, gpu, start, end in plan.segments.tolist():
        box(gpu, 1, start, end, "#b9bcc4", problem.app_ids[app])
    for name, first, size, start, end in blocks(problem, plan):
        box(first, size, start, end, Color.parse(colour_of(name)).get_truecolor().hex, name)
    return parts

"""The live terminal view: the day as a coloured grid, the queue with its reasons, the numbers. Draws frames, decides nothing.

Two GPUs share a line of text (upper and lower half of a character); where the terminal is too low, one GPU stands for its
neighbours. Needs 80 × 24, is made for 100 × 40. Read next: `core/frame.py`.
"""

from __future__ import annotations

import zlib

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.style import Style
from rich.text import Text

from services.replay.core.frame import IDLE, AppRow, Frame, Phase, QueueRow
from services.replay.core.latency import Hop

Rgb = tuple[int, int, int]

BASE: dict[str, Rgb] = {
    "training": (66, 133, 244),
    "batch_inference": (46, 174, 96),
    "quantization": (158, 106, 222),
    "debug": (92, 204, 214),
}
"""A hue per kind; jobs of one kind differ in brightness."""
APPLICATIONS: tuple[Rgb, ...] = ((255, 140, 26), (247, 191, 38), (235, 94, 66), (255, 170, 120))
SHADES = (1.0, 0.82, 0.66)
IDLE_PAST: Rgb = (44, 46, 52)
IDLE_AHEAD: Rgb = (24, 25, 29)
DIMMED = {Phase.PAST: 1.0, Phase.EXPECTED: 0.55, Phase.PLANNED: 0.33}
NOW: Rgb = (235, 235, 235)
LABEL_WIDTH = 4
SIDE_WIDTH = 38
SIDE_WIDTH_NARROW = 31
KIND_SHORT = {"training": "train", "batch_inference": "batch", "quantization": "quant", "debug": "debug"}
REASONS = {
    "waiting_for_gpus": "too few GPUs free",
    "fragmented": "free, wrong shape",
    "application_return": "app needs them back",
    "behind_priority": "behind higher value",
    "planned_later": "planned for later",
    "awaiting_forecast": "forecast comes",
    "requeue_backoff": "pauses after failure",
    "node_degraded": "nodes not usable",
    "no_capacity": "no usable GPU",
    "quota_exceeded": "quota used up",
    "running_limit": "enough jobs run",
    "queue_limit": "queue limit",
    "takes_a_place": "takes a place",
    "size_exceeds_pool": "no block so large",
    "reserved": "reserved",
    "to_be_cut": "cards to be cut",
    "cut_for_another_pool": "cards cut elsewhere",
    "cut_under_way": "cards being cut",
}
"""Short enough for a narrow column; the public names stand in docs, the sentences in `gpugrid why`."""
BAR = "▏▎▍▌▋▊▉█"


def grid_columns(width: int) -> int:
    """Columns of the grid in a terminal of `width`."""
    return max(width - _side(width) - LABEL_WIDTH - 4, 10)


def draw(frame: Frame, width: int, height: int, speed: float = 0.0) -> RenderableType:
    """The whole screen of `width` × `height`."""
    layout = Layout()
    layout.split_column(Layout(name="top", size=2), Layout(name="middle"), Layout(name="bottom", size=1))
    layout["middle"].split_row(Layout(name="grid"), Layout(name="side", size=_side(width)))
    layout["top"].update(_header(frame, width, speed))
    lines = height - 3 - 2 - 2
    layout["grid"].update(
        Panel(
            _grid(frame, lines),
            title="[bold]GPUs × time[/]  past [dim]▸ now ▸ expected ▸ planned[/]",
            title_align="left",
            border_style="grey37",
            padding=0,
        )
    )
    layout["side"].update(_sidebar(frame, _side(width), height - 3))
    layout["bottom"].update(_progress(frame, width))
    return layout


def _side(width: int) -> int:
    return SIDE_WIDTH if width >= 95 else SIDE_WIDTH_NARROW


def _clock(time_ms: int) -> str:
    minutes = time_ms // 60_000 % 1440
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _header(frame: Frame, width: int, speed: float) -> Text:
    day = frame.day
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(" gpugrid ", style="bold black on #f7bf26")
    text.append(f"  {day.name}  {_clock(frame.now_ms)}", style="bold")
    pace = f"{speed:g}× real time" if speed else "paused"
    text.append(f"  {day.gpus} GPUs on {day.gpus // day.node_gpus} nodes, seed {day.seed}, {pace}\n", style="dim")
    if frame.notice:
        text.append(f" {frame.notice}", style="bold red")
        return text
    for kind, rgb in BASE.items():
        text.append(" ■ ", style=Style(color=_hex(rgb)))
        text.append(KIND_SHORT[kind] if width < 95 else kind.replace("_", " "), style="dim")
    for number, app in enumerate(frame.apps):
        text.append(" ■ ", style=Style(color=_hex(APPLICATIONS[number % len(APPLICATIONS)])))
        text.append(app.app_id, style="dim")
    return text


def _grid(frame: Frame, lines: int) -> Text:
    """`lines` lines of two GPUs each, then the time axis."""
    gpus, columns = frame.cells.shape
    stride = max(-(-gpus // (2 * max(lines, 1))), 1)
    shown = list(range(0, gpus, stride))
    text = Text(no_wrap=True)
    colours = _Colours(frame)
    now_column = frame.now_column
    for upper in range(0, len(shown), 2):
        first = shown[upper]
        second = shown[upper + 1] if upper + 1 < len(shown) else first
        text.append(_row_label(frame, first, stride), style="dim")
        run, style = "", None
        for column in range(columns):
            cell = colours.style(first, second, column, now_column)
            if cell is not style and run:
                text.append(run, style=style)
                run = ""
            run, style = run + "▀", cell
        text.append(run + "\n", style=style)
    text.append_text(_axis(frame, columns))
    return text


def _row_label(frame: Frame, gpu: int, stride: int) -> str:
    per_node = frame.day.node_gpus
    starts = gpu % per_node < 2 * stride and (gpu // per_node != (gpu - 2 * stride) // per_node or gpu == 0)
    return f"{f'n{gpu // per_node:02d}' if starts else '':<{LABEL_WIDTH}}"


def _axis(frame: Frame, columns: int) -> Text:
    """Hours under the columns, the present marked."""
    marks = [" "] * (columns + LABEL_WIDTH + 6)
    hours = frame.day.hours
    every = next((step for step in (1, 2, 3, 4, 6, 12, 24) if hours / step * 6 <= columns), 24)
    now_at = LABEL_WIDTH + min(frame.now_column, columns - 1)
    hour = 0
    while hour <= hours:
        label = _clock(frame.day.start_ms + hour * 3_600_000)
        at = LABEL_WIDTH + round(hour / hours * columns)
        beside_now = at + len(label) < now_at or at > now_at + 1
        if at + len(label) <= columns + LABEL_WIDTH and beside_now:
            marks[at : at + len(label)] = label
        hour += every
    text = Text("".join(marks[: columns + LABEL_WIDTH]), style="dim", no_wrap=True)
    text.plain = text.plain[:now_at] + "▲" + text.plain[now_at + 1 :]
    text.stylize("bold white", now_at, now_at + 1)
    return text


class _Colours:
    """Styles of cells, each made once."""

    def __init__(self, frame: Frame) -> None:
        self._cells = frame.cells.tolist()
        self._phases = frame.phases.tolist()
        self._rgb = [_owner_rgb(frame, number) for number in range(len(frame.owners))]
        self._styles: dict[tuple[Rgb, Rgb], Style] = {}

    def style(self, upper: int, lower: int, column: int, now_column: int) -> Style:
        pair = (self._rgb_of(upper, column, now_column), self._rgb_of(lower, column, now_column))
        found = self._styles.get(pair)
        if found is None:
            found = self._styles[pair] = Style(color=_hex(pair[0]), bgcolor=_hex(pair[1]))
        return found

    def _rgb_of(self, gpu: int, column: int, now_column: int) -> Rgb:
        owner = self._cells[gpu][column]
        if owner == IDLE:
            return IDLE_PAST if column <= now_column else IDLE_AHEAD
        return _scaled(self._rgb[owner], DIMMED[Phase(self._phases[gpu][column])])


def _owner_rgb(frame: Frame, number: int) -> Rgb:
    if frame.kinds[number] == "application":
        return APPLICATIONS[number % len(APPLICATIONS)]
    shade = SHADES[zlib.crc32(frame.owners[number].encode()) % len(SHADES)]
    return _scaled(BASE[frame.kinds[number]], shade)


def _scaled(rgb: Rgb, share: float) -> Rgb:
    return (round(rgb[0] * share), round(rgb[1] * share), round(rgb[2] * share))


def _hex(rgb: Rgb) -> str:
    return f"#{rgb[0]:02x}{rgb[1]:02x}{rgb[2]:02x}"


def _sidebar(frame: Frame, width: int, height: int) -> RenderableType:
    inner = width - 4
    used = 8 + len(frame.apps) + 2
    rows = max(height - used - 2, 1)
    return Group(
        Panel(_numbers(frame, inner), title="now", **_PANEL),
        Panel(_applications(frame.apps, inner), title="real time: held / needed", **_PANEL),
        Panel(_queue(frame.queue, rows, inner), title=f"queue: {len(frame.queue)} waiting", **_PANEL),
    )


_PANEL: dict = {"title_align": "left", "border_style": "grey37", "padding": (0, 1)}


def _numbers(frame: Frame, width: int) -> RenderableType:
    hop = frame.hops.get("submit → decided", Hop(jobs=0, p50_ms=0, p90_ms=0, p99_ms=0))
    latency = f"{hop.p50_ms:.0f} ms, P99 {hop.p99_ms:.0f}" if hop.jobs else "–"
    ours = frame.so_far
    lines = [
        _labelled("GPUs at work", _bar(frame.utilization_now, width - 20) + f" {frame.utilization_now:4.0%}"),
        _labelled("so far", _bar(ours.utilization, width - 20) + f" {ours.utilization:4.0%}"),
        _labelled("jobs", f"{frame.completed}/{frame.arrived} done, {frame.running} run"),
        _labelled("value", f"{ours.value:,.0f}"),
        _labelled(
            "unmet", f"{ours.unmet_gpu_hours:.2f} GPU-h", "bold red" if ours.unmet_gpu_hours > 0.005 else "green"
        ),
        _labelled("decided in", latency),
    ]
    return Group(*lines)


def _labelled(label: str, value: str, style: str = "") -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{label:<13}", style="dim")
    text.append(value, style=style)
    return text


def _bar(share: float, width: int) -> str:
    """A bar of eighths of a character."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (BAR[rest - 1] if rest else "")).ljust(width, "·")


def _applications(apps: tuple[AppRow, ...], width: int) -> RenderableType:
    lines = []
    scale = max((max(app.held, app.demand) for app in apps), default=1.0) or 1.0
    for number, app in enumerate(apps):
        missing = app.demand > app.held + 1e-9
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{app.app_id:<10.10}", style=Style(color=_hex(APPLICATIONS[number % len(APPLICATIONS)])))
        text.append(f"{app.held:>2} / {app.demand:>4.1f} ", style="bold red" if missing else "")
        bar = max(width - 21, 4)
        need = round(app.demand / scale * bar)
        held = round(app.held / scale * bar)
        text.append("█" * min(need, held), style=Style(color=_hex(APPLICATIONS[number % len(APPLICATIONS)])))
        text.append("▒" * max(held - need, 0), style="dim")
        text.append("░" * max(need - held, 0), style="red")
        lines.append(text)
    return Group(*lines)


def _queue(queue: tuple[QueueRow, ...], rows: int, width: int) -> RenderableType:
    """The first jobs by priority; the rest summed up by reason."""
    if not queue:
        return Text("nobody waits", style="dim")
    shown = queue if len(queue) <= rows else queue[: max(rows - 2, 1)]
    lines = []
    for row in shown:
        why = REASONS.get(row.reason, row.reason.replace("_", " "))
        if row.planned_in_s is not None:
            why = f"in {_short_span(row.planned_in_s)}" if row.planned_in_s >= 60 else "starts next"
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{row.gpus:>2} ", style="bold")
        text.append(f"{KIND_SHORT[row.kind]:<5}", style=Style(color=_hex(BASE[row.kind])))
        text.append(f" p{row.priority} {_short_span(row.waited_s):>5}  ")
        text.append(why, style="dim")
        lines.append(text)
    if len(shown) < len(queue):
        counts: dict[str, int] = {}
        for row in queue[len(shown) :]:
            counts[row.reason] = counts.get(row.reason, 0) + 1
        most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:2]
        rest = ", ".join(f"{count} {REASONS.get(reason, reason)}" for reason, count in most)
        lines.append(Text(f"+{len(queue) - len(shown)}: {rest}", style="dim", overflow="ellipsis"))
    return Group(*lines)


def _short_span(seconds: float) -> str:
    return f"{seconds / 60:.0f}m" if seconds < 5400 else f"{seconds / 3600:.1f}h"


def _progress(frame: Frame, width: int) -> Text:
    label = f" {frame.progress:4.0%} of the day, {frame.decisions} decisions "
    bar = max(width - len(label) - 1, 5)
    full = round(frame.progress * bar)
    text = Text(no_wrap=True)
    text.append(" " + "━" * full, style="#f7bf26")
    text.append("━" * (bar - full), style="grey30")
    text.append(label, style="dim")
    return text

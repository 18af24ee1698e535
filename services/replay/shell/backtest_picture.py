"""A backtest as one SVG: value and utilization per scheduler and level, the waits of whole-node jobs, schedulability over time.

Text in, text out; no plotting library. Colours tell gpugrid from the rest without relying on them: every bar has its figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from services.replay.backtest import Backtest
from services.replay.core.comparison import GPUGRID
from services.replay.core.findings import WHOLE_NODES, Finding
from services.replay.shell.backtest_view import LEVELS, NAMES

WIDTH, LEFT, PANEL, BAR, GAP, TOP = 1180, 200, 270, 13, 4, 70
INK, DIM, OURS, OTHERS = "#222222", "#777777", "#0072b2", "#c2c2c2"
LINES = (OURS, "#d55e00", "#009e73", "#999999")
SERIES_HEIGHT = 150


def backtest_svg(found: Backtest) -> str:
    """The whole picture."""
    rows = _rows(found.findings)
    panels = (
        ("Value, priority × GPU-hours", [one.outcome.value for one in rows], "{:,.0f}"),
        ("GPUs at work, %", [100 * one.outcome.utilization for one in rows], "{:.1f}"),
        ("P99 wait of whole-node jobs, h", [one.wait_s[WHOLE_NODES].p99_s / 3600 for one in rows], "{:.1f}"),
    )
    parts = [
        _text(
            12,
            24,
            f"{found.trace} from {found.start}, {found.days} d, {found.gpus} GPUs, {found.jobs} jobs, load {found.load:.2f}",
            15,
        )
    ]
    height = TOP + len(rows) * (BAR + GAP)
    for place, one in enumerate(rows):
        y = TOP + place * (BAR + GAP) + BAR - 2
        parts.append(
            _text(LEFT - 8, y, _label(one), 11, anchor="end", colour=OURS if one.scheduler == GPUGRID else INK)
        )
    for place, (title, values, pattern) in enumerate(panels):
        parts += _panel(LEFT + place * (PANEL + 50), title, rows, values, pattern)
    parts += _series(found, height + 60)
    height += 60 + SERIES_HEIGHT + 60
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" role="img">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _rows(findings: Sequence[Finding]) -> list[Finding]:
    """Those without durations first, then level by level, gpugrid last in each."""
    levels = ["", *LEVELS]
    return sorted(findings, key=lambda one: (levels.index(one.level), one.scheduler == GPUGRID))


def _label(one: Finding) -> str:
    return f"{NAMES[one.scheduler]}, {LEVELS[one.level]}" if one.level else NAMES[one.scheduler]


def _panel(x: int, title: str, rows: Sequence[Finding], values: Sequence[float], pattern: str) -> list[str]:
    most = max([*values, 1e-9])
    parts = [_text(x, TOP - 12, title, 12)]
    for place, (one, value) in enumerate(zip(rows, values, strict=True)):
        y, width = TOP + place * (BAR + GAP), max(value, 0.0) / most * (PANEL - 50)
        colour = OURS if one.scheduler == GPUGRID else OTHERS
        parts.append(f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
        parts.append(_text(x + width + 5, y + BAR - 2, pattern.format(value), 11))
    return parts


def _series(found: Backtest, top: int) -> list[str]:
    """Free whole nodes over time: gpugrid at its best-known level, and up to three baselines."""
    ours = [one for one in found.findings if one.scheduler == GPUGRID][:2]
    others = [one for one in found.findings if one.scheduler in ("priority_backfill", "easy_backfill")][:2]
    chosen = ours + others
    if not chosen:
        return []
    most = max([*(max(one.schedulability.whole_nodes, default=0) for one in chosen), 1])
    width = WIDTH - LEFT - 40
    parts = [
        _text(
            LEFT, top - 8, "Whole nodes free (schedulability) over time; applications' reserved peaks are not free", 12
        )
    ]
    for level in (0, most):
        y = top + SERIES_HEIGHT - level / most * SERIES_HEIGHT
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(LEFT - 8, y + 4, str(level), 11, anchor="end"))
    for place, one in enumerate(chosen):
        nodes = one.schedulability.whole_nodes
        points = " ".join(
            f"{LEFT + index / max(len(nodes) - 1, 1) * width:.1f},{top + SERIES_HEIGHT - value / most * SERIES_HEIGHT:.1f}"
            for index, value in enumerate(nodes)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{LINES[place]}" stroke-width="1.4"/>')
        parts.append(_text(LEFT + place * 235, top + SERIES_HEIGHT + 34, f"— {_label(one)}", 12, colour=LINES[place]))
    parts.append(_text(LEFT, top + SERIES_HEIGHT + 16, "0 h", 11, colour=DIM))
    parts.append(_text(LEFT + width, top + SERIES_HEIGHT + 16, f"{24 * found.days} h", 11, anchor="end", colour=DIM))
    return parts


def _text(x: float, y: float, text: str, size: int, *, anchor: str = "start", colour: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
    )

"""The report's pictures as SVG, written by hand: dots per draw, and bars beside each other. No library, no script inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, ROW, TOP, BOTTOM = 760, 150, 24, 26, 44, 40
COLOURS = ("#8a8f98", "#2f6fdb", "#d9822b", "#2a9d62")
FONT = 'font-family="system-ui, sans-serif" font-size="12" fill="#1b1f24"'


def strips(title: str, axis: str, groups: Mapping[str, Sequence[float]], goal: float | None = None) -> str:
    """A line of dots per group on one axis, the median as a tick; the goal as a line across."""
    values = [value for group in groups.values() for value in group]
    low, high = min([*values, goal or 1.0]), max([*values, 1.0])
    low, high = low - 0.02 * (high - low), high + 0.02 * (high - low)
    height = TOP + ROW * len(groups) + BOTTOM
    parts = [_head(height, title)]

    def x(value: float) -> float:
        return LEFT + (value - low) / max(1e-12, high - low) * (WIDTH - LEFT - RIGHT)

    parts += _axis(low, high, x, height, axis)
    if goal is not None:
        parts.append(
            f'<line x1="{x(goal):.1f}" x2="{x(goal):.1f}" y1="{TOP - 6}" y2="{height - BOTTOM}" stroke="#c0392b" stroke-dasharray="4 3"/>'
        )
    for index, (name, group) in enumerate(groups.items()):
        y = TOP + ROW * index + ROW / 2
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" {FONT}>{escape(name)}</text>')
        parts += [
            f'<circle cx="{x(value):.1f}" cy="{y:.1f}" r="3.5" fill="{COLOURS[1]}" fill-opacity="0.45"/>'
            for value in group
        ]
        median = sorted(group)[len(group) // 2]
        parts.append(
            f'<line x1="{x(median):.1f}" x2="{x(median):.1f}" y1="{y - 9:.1f}" y2="{y + 9:.1f}" stroke="#1b1f24" stroke-width="2"/>'
        )
    return "\n".join([*parts, "</svg>", ""])


def bars(title: str, axis: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Bars of the same few series for every group, from 0."""
    series = list(next(iter(groups.values())))
    bar = 9
    row = bar * len(series) + 12
    high = max(value for group in groups.values() for value in group.values()) * 1.02
    height = TOP + 18 + row * len(groups) + BOTTOM
    parts = [_head(height, title)]

    def x(value: float) -> float:
        return LEFT + value / high * (WIDTH - LEFT - RIGHT)

    parts += _axis(0.0, high, x, height, axis)
    for index, name in enumerate(series):
        parts.append(f'<rect x="{LEFT + 110 * index}" y="{TOP - 8}" width="10" height="10" fill="{COLOURS[index]}"/>')
        parts.append(f'<text x="{LEFT + 110 * index + 15}" y="{TOP + 1}" {FONT}>{escape(name)}</text>')
    for at, (group, values) in enumerate(groups.items()):
        y = TOP + 18 + row * at
        parts.append(f'<text x="{LEFT - 8}" y="{y + row / 2:.1f}" text-anchor="end" {FONT}>{escape(group)}</text>')
        for index, name in enumerate(series):
            width = x(values[name]) - LEFT
            parts.append(
                f'<rect x="{LEFT}" y="{y + bar * index}" width="{width:.1f}" height="{bar - 1}" fill="{COLOURS[index]}"/>'
            )
    return "\n".join([*parts, "</svg>", ""])


def _head(height: float, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="12" y="22" {FONT} font-weight="600">{escape(title)}</text>'
    )


def _axis(low: float, high: float, x, height: float, label: str) -> list[str]:
    """About six ticks at round numbers, and what is measured."""
    step = _round_step((high - low) / 6)
    parts, tick = [], -(-low // step) * step
    while tick <= high:
        parts.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{height - BOTTOM}" stroke="#e3e6ea"/>'
        )
        parts.append(
            f'<text x="{x(tick):.1f}" y="{height - BOTTOM + 15}" text-anchor="middle" {FONT}>{tick:.6g}</text>'
        )
        tick = round(tick + step, 12)
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{height - 8}" text-anchor="end" {FONT}>{escape(label)}</text>')
    return parts


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, at least `rough`."""
    scale = 10.0 ** len(str(int(1 / rough))) if rough < 1 else 1.0
    for factor in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0):
        if factor / scale * (10 if rough < 1 else 1) >= rough:
            return factor / scale * (10 if rough < 1 else 1)
    return rough

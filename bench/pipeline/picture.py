"""Lag over time as a small SVG: one line, two axes, no library."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT, MARGIN = 640, 220, 48
TICKS = 4


def line_svg(points: Sequence[tuple[float, float]], *, title: str, x_label: str, y_label: str) -> str:
    """A line through the points; y starts at 0."""
    x_max = max((x for x, _ in points), default=1.0) or 1.0
    y_max = max((y for _, y in points), default=1.0) or 1.0
    across, up = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def x_of(x: float) -> float:
        return MARGIN + across * x / x_max

    def y_of(y: float) -> float:
        return HEIGHT - MARGIN - up * max(0.0, y) / y_max

    line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
    marks = []
    for tick in range(TICKS + 1):
        x, y = x_max * tick / TICKS, y_max * tick / TICKS
        marks.append(f'<text x="{x_of(x):.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{x:.0f}</text>')
        marks.append(f'<text x="{MARGIN - 6}" y="{y_of(y) + 4:.1f}" text-anchor="end">{y:.0f}</text>')
        marks.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y_of(y):.1f}" y2="{y_of(y):.1f}" stroke="#ccc" stroke-width="0.5"/>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n'
        f'<text x="{MARGIN}" y="20" font-size="13">{title}</text>\n'
        + "\n".join(marks)
        + f'\n<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">{x_label}</text>\n'
        f'<text x="{MARGIN}" y="{MARGIN - 10}">{y_label}</text>\n'
        f'<polyline points="{line}" fill="none" stroke="#1f6feb" stroke-width="1.5"/>\n</svg>\n'
    )

"""Scores as SVG: coverage per group, pinball per month, and demand as a fan. Text in, files out; no plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.forecaster.core.demand_scores import OURS, Rates
from services.forecaster.shell.evaluation import DemandReport, DurationReport

WIDTH, LEFT, TOP, PLOT = 760, 150, 48, 560
BAR, GAP = 18, 8
FAN_HEIGHT = 240
FANS_MAX = 4
"""Clients drawn: the largest."""
INK, OURS_COLOUR, OTHER_COLOURS, BAND = "#222222", "#0072b2", ("#999999", "#bbbbbb", "#d5d5d5"), "#9ecae1"

Series = NDArray[np.float64]


def write_durations(report: DurationReport, folder: Path) -> None:
    """coverage.svg and pinball.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = [*report.by_month, *report.by_size]
    rows = [(f"{one.name} ({one.runs:,})", [(one.coverage, OURS_COLOUR)]) for one in groups]
    _write(
        folder / "coverage.svg", _bars("Share of runs within P90, per month and size; the line is 90 %", rows, 1.0, 0.9)
    )
    months = [one.name for one in report.by_month]
    colours = {name: OTHER_COLOURS[place % 3] for place, name in enumerate(n for n in report.methods if n != OURS)}
    colours[OURS] = OURS_COLOUR
    losses = [
        (month, [(scores[month], colours[name]) for name, scores in report.pinball_by_month.items()])
        for month in months
    ]
    most = max((value for _, bars in losses for value, _ in bars), default=1.0)
    names = ", ".join(report.methods)
    _write(folder / "pinball.svg", _bars(f"Pinball loss per month: {names} (from above)", losses, most, None))


def write_demand(report: DemandReport, rates: Rates, folder: Path) -> None:
    """demand-CLIENT.svg for the largest clients."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in list(report.clients)[:FANS_MAX]:
        days = [day for day in report.days if rates.clients[day.client] == name]
        came = np.concatenate([rates.load[day.client, day.origin : day.origin + len(day.p50)] for day in days])
        p50, p90 = np.concatenate([day.p50 for day in days]), np.concatenate([day.p90 for day in days])
        _write(
            folder / f"demand-{_file_part(name)}.svg", _fan(f"{name}: load, P50 and P90, 24 h ahead", came, p50, p90)
        )


def _bars(title: str, rows: Sequence[tuple[str, Sequence[tuple[float, str]]]], most: float, mark: float | None) -> str:
    parts, y = [_text(12, 24, title, "start")], float(TOP)
    for label, bars in rows:
        parts.append(_text(LEFT - 8, y + BAR * len(bars) / 2 + 4, label, "end"))
        for value, colour in bars:
            width = PLOT * value / most if most > 0 else 0.0
            parts.append(f'<rect x="{LEFT}" y="{y:.0f}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>')
            parts.append(_text(LEFT + width + 4, y + BAR - 5, f"{value:.3g}", "start"))
            y += BAR
        y += GAP
    if mark is not None:
        x = LEFT + PLOT * mark / most
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{y:.0f}" stroke="{INK}" stroke-dasharray="4 3"/>'
        )
    return _picture(parts, y + 10)


def _fan(title: str, came: Series, p50: Series, p90: Series) -> str:
    top = max(float(np.nanmax(came, initial=0.0)), float(p90.max(initial=0.0)), 1e-9)
    across = (WIDTH - 80) / max(1, len(p50) - 1)

    def points(values: Series) -> list[str]:
        return [
            f"{60 + place * across:.1f},{TOP + FAN_HEIGHT * (1 - value / top):.1f}"
            for place, value in enumerate(values)
            if value == value
        ]

    band = " ".join([*points(p90), *reversed(points(p50))])
    parts = [
        _text(60, 24, title, "start"),
        _text(54, TOP + 4, f"{top:.3g}", "end"),
        _text(54, TOP + FAN_HEIGHT + 4, "0", "end"),
        f'<polygon points="{band}" fill="{BAND}" stroke="none"/>',
        f'<polyline points="{" ".join(points(p50))}" fill="none" stroke="{OURS_COLOUR}" stroke-width="1.5"/>',
        f'<polyline points="{" ".join(points(came))}" fill="none" stroke="{INK}" stroke-width="0.8"/>',
    ]
    return _picture(parts, TOP + FAN_HEIGHT + 20)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{escape(words)}</text>'


def _picture(parts: Sequence[str], height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _file_part(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")

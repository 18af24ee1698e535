"""The tables people see: one day under three policies, latency per hop, several days with mean and worst. rich only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.replay.core.comparison import GPUGRID, POLICIES, Comparison, Spread
from services.replay.core.latency import Hop
from services.replay.core.outcome import SIZE_CLASSES, Outcome

NAMES = {"fifo": "FIFO", "priority_backfill": "priority backfill", "gpugrid": "gpugrid"}


def span_text(seconds: float) -> str:
    """`45s`, `12m`, `3.4h`."""
    if seconds < 90:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 5400 else f"{seconds / 3600:.1f}h"


def framed(title: str, rows: str = "") -> Table:
    """The frame of every table of days and backtests; its first column names the rows."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column(rows)
    return table


def day_table(outcomes: Mapping[str, Outcome]) -> Table:
    """One day: a row per measure, a column per policy."""
    first = next(iter(outcomes.values()))
    table = framed(
        f"{first.day}, seed {first.seed}: {first.jobs} jobs, applications need {first.demand_gpu_hours:.0f} GPU-hours"
    )
    for policy in POLICIES:
        table.add_column(NAMES[policy], justify="right", style="bold" if policy == GPUGRID else "")
    for label, show in _MEASURES:
        table.add_row(label, *(show(outcomes[policy]) for policy in POLICIES))
    table.add_section()
    heads = [Text("P50   P90   P99", style="dim") for _ in POLICIES]
    table.add_row(Text("waiting, by requested GPUs", style="dim"), *heads)
    for name in SIZE_CLASSES:
        waits = [outcomes[policy].wait_s[name] for policy in POLICIES]
        jobs = waits[0].jobs
        cells = [" ".join(f"{span_text(value):>5}" for value in (wait.p50_s, wait.p90_s, wait.p99_s)) for wait in waits]
        table.add_row(f"  {name} ({jobs} job{'s' if jobs != 1 else ''})", *(cells if jobs else ["–"] * len(POLICIES)))
    return table


_MEASURES: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("value, priority × GPU-hours", lambda entry: f"{entry.value:,.0f}"),
    ("utilization, GPUs at work", lambda entry: f"{entry.utilization:.1%}"),
    ("  held, at work or not", lambda entry: f"{entry.held:.1%}"),
    ("  useful, without lost work", lambda entry: f"{entry.useful:.1%}"),
    ("jobs completed", lambda entry: f"{entry.completed} of {entry.jobs}"),
    ("  still running, not started", lambda entry: f"{entry.running}, {entry.waiting}"),
    ("completed per GPU and day", lambda entry: f"{entry.completed_per_gpu_day:.2f}"),
    ("unmet real-time GPU-hours", lambda entry: f"{entry.unmet_gpu_hours:.2f}"),
)


def gains_line(outcomes: Mapping[str, Outcome]) -> Text:
    """What gpugrid made of the day, beside the others, in one sentence."""
    ours = outcomes[GPUGRID]
    parts = []
    for policy in POLICIES[:-1]:
        theirs = outcomes[policy]
        value = f"{(ours.value - theirs.value) / abs(theirs.value):+.0%} value, " if theirs.value else ""
        points = 100 * (ours.utilization - theirs.utilization)
        parts.append(f"{value}{points:+.1f} points of utilization over {NAMES[policy]}")
    return Text("gpugrid: " + "; ".join(parts) + ".", style="bold green")


def latency_table(hops: Mapping[str, Hop]) -> Table:
    """Wall-clock milliseconds per hop."""
    table = framed("Latency, wall clock", "hop")
    for name in ("jobs", "P50", "P90", "P99"):
        table.add_column(name, justify="right")
    for name, hop in hops.items():
        cells = [f"{value:.0f} ms" for value in (hop.p50_ms, hop.p90_ms, hop.p99_ms)] if hop.jobs else ["–"] * 3
        table.add_row(name, str(hop.jobs), *cells)
    return table


def comparison_table(comparison: Comparison) -> RenderableType:
    """Several days: mean and worst per policy, then gpugrid's gains."""
    days = len(comparison.days)
    table = framed(f"{days} day{'s' if days > 1 else ''}: mean (worst day)")
    for summary in comparison.policies:
        table.add_column(NAMES[summary.policy], justify="right", style="bold" if summary.policy == GPUGRID else "")
    rows: list[tuple[str, list[str]]] = [
        ("value", [_pair(entry.value, "{:,.0f}") for entry in comparison.policies]),
        ("utilization", [_pair(entry.utilization, "{:.1%}") for entry in comparison.policies]),
        ("jobs completed", [_pair(entry.completed, "{:.0%}") for entry in comparison.policies]),
        ("unmet real-time GPU-hours", [_pair(entry.unmet_gpu_hours, "{:.2f}") for entry in comparison.policies]),
    ]
    for name in SIZE_CLASSES:
        waits = [(entry.wait_p50_s[name], entry.wait_p90_s[name]) for entry in comparison.policies]
        cells = [f"{span_text(p50.mean)}, {span_text(p90.mean)} ({span_text(p90.worst)})" for p50, p90 in waits]
        rows.append((f"waiting P50, P90: {name} GPU{'s' if name != '1' else ''}", cells))
    for label, cells in rows:
        table.add_row(label, *cells)
    return Group(table, _gains(comparison))


def _pair(spread: Spread, pattern: str) -> str:
    return f"{pattern.format(spread.mean)} ({pattern.format(spread.worst)})"


def _gains(comparison: Comparison) -> Text:
    lines = [
        f"gpugrid over {NAMES[other]}: value {value.mean:+.1%} on average, {value.worst:+.1%} on the worst day; "
        f"utilization {100 * points.mean:+.1f} points, worst {100 * points.worst:+.1f}."
        for (other, value), points in zip(
            comparison.value_gain.items(), comparison.utilization_gain.values(), strict=True
        )
    ]
    return Text("\n".join(lines), style="bold green")

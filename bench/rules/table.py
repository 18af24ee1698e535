"""The rules table as markdown: a table per trace, a row per document of rules or other scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.replay.core.findings import ALL, Times
from services.replay.core.outcome import SIZE_CLASSES
from services.replay.core.rule_findings import RuleFinding
from services.replay.shell.tables import span_text

COLUMNS: tuple[tuple[str, Callable[[RuleFinding], str]], ...] = (
    ("", lambda one: one.row if one.ours else f"*{one.row}*"),
    ("utilization", lambda one: f"{one.utilization:.1%}"),
    ("value", lambda one: f"{one.value:,.0f}"),
    ("completed", lambda one: str(one.completed)),
    ("not started", lambda one: str(one.never)),
    ("starved", lambda one: str(one.starved)),
    ("wait P50 / P90 / P99", lambda one: _times(one.wait_s[ALL])),
    *((f"{name} GPU", lambda one, name=name: _times(one.wait_s[name])) for name in SIZE_CLASSES),
    ("worst team's P90", lambda one: f"{span_text(one.worst_team_p90_s)} ({one.worst_team})"),
    ("fairness", lambda one: f"{one.fairness:.2f}"),
    ("starts over a maximum", lambda one: _over(one)),
    ("places lost (GPU-h)", lambda one: f"{one.preemptions} ({one.lost_gpu_hours:.1f})" if one.preemptions else "0"),
    ("deadlines met", lambda one: f"{one.deadlines_met} of {one.deadlines}"),
    ("data brought (GPU-h)", lambda one: f"{one.staged_gpu_hours:.1f}" if one.staged_gpu_hours else "–"),
    (
        "racks of gangs (fewest)",
        lambda one: "–" if one.gang_racks is None else f"{one.gang_racks} ({one.gang_racks_min})",
    ),
)
SUMMARY: tuple[tuple[str, Callable[[RuleFinding], str]], ...] = (
    ("utilization, value", lambda one: f"{one.utilization:.1%}, {one.value:,.0f}"),
    ("starved", lambda one: str(one.starved)),
    ("wait: mean, P99", lambda one: f"{span_text(one.wait_s[ALL].mean_s)}, {span_text(one.wait_s[ALL].p99_s)}"),
    ("fairness", lambda one: f"{one.fairness:.2f}"),
)


def summary(found: Mapping[str, Sequence[RuleFinding]]) -> str:
    """One table of the traces that have the same rows, as docs/policy.md quotes it."""
    rows = [one.row for one in next(iter(found.values()))]
    beside = {trace: {one.row: one for one in ones} for trace, ones in found.items()}
    beside = {trace: ones for trace, ones in beside.items() if list(ones) == rows}
    names = [f"{trace}: {name}" if not at else name for trace in beside for at, (name, _) in enumerate(SUMMARY)]
    lines = [f"| | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}"]
    for row in rows:
        name = row if next(iter(beside.values()))[row].ours else f"*{row}*"
        lines.append(f"| {name} | {' | '.join(show(ones[row]) for ones in beside.values() for _, show in SUMMARY)} |")
    return "\n".join(lines) + "\n"


def markdown(found: Mapping[str, Sequence[RuleFinding]], about: Mapping[str, Mapping[str, Any]]) -> str:
    """The summary, then everything, trace by trace; of the columns those that say something of the trace."""
    parts = [summary(found)]
    for trace, ones in found.items():
        facts = about[trace]
        cells = {name: [show(one) for one in ones] for name, show in COLUMNS}
        cells = {name: texts for name, texts in cells.items() if set(texts) != {"–"}}
        parts.append(
            f"**{trace}**: {facts['words']}; {facts['jobs']} jobs of {facts['teams']} teams, load {facts['load']:.2f}.\n\n"
            f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}\n"
            + "".join(f"| {' | '.join(line)} |\n" for line in zip(*cells.values(), strict=True))
        )
    return "\n".join(parts)


def _times(times: Times) -> str:
    if not times.jobs:
        return "–"
    return " / ".join(span_text(value) for value in (times.p50_s, times.p90_s, times.p99_s))


def _over(one: RuleFinding) -> str:
    """What a maximum in force let through (0, or a fault); in brackets what was above it where none was in force."""
    return f"({one.would_be_over_maximum})" if one.over_maximum is None else str(one.over_maximum)

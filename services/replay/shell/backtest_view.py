"""A backtest as tables: per level the schedulers side by side, then the goals, then what forecasts cost. rich only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.replay.backtest import Backtest, Took
from services.replay.core.comparison import GPUGRID
from services.replay.core.findings import ALL, WHOLE_NODES, Finding
from services.replay.core.outcome import SIZE_CLASSES
from services.replay.core.verdict import Against, Verdict, rivals
from services.replay.shell.tables import framed, span_text

NAMES = {
    "fifo": "FIFO",
    "best_effort_fifo": "best-effort FIFO",
    "priority_backfill": "priority backfill",
    "easy_backfill": "EASY",
    "shortest_predicted": "shortest first",
    GPUGRID: "gpugrid",
}
LEVELS = {
    "true": "true durations",
    "forecast": "forecasts",
    "limit": "the user's limit",
    "none": "no durations",
}


def backtest_tables(found: Backtest) -> RenderableType:
    """Everything, top down."""
    parts: list[RenderableType] = [_heading(found)]
    levels = list(dict.fromkeys(one.level for one in found.findings if one.level))
    if not levels:
        parts.append(_table("", found.findings))
    for level in levels:
        ours = [one for one in found.findings if one.scheduler == GPUGRID and one.level == level]
        parts.append(_table(level, [*rivals(level, found.findings).values(), *ours]))
    if found.verdict.levels:
        parts += [_goals(found.verdict), _cost(found.verdict), _overruns(found.findings), _took(found.took)]
    return Group(*parts)


def _heading(found: Backtest) -> Text:
    days = f"{found.days} day{'s' if found.days > 1 else ''}"
    return Text(
        f"{found.trace} from {found.start}, {days}, seed {found.seed}: {found.jobs} jobs on {found.gpus} GPUs, load {found.load:.2f}, "
        f"of which applications {found.app_share:.0%}.",
        style="bold",
    )


def _hours(field: str, name: str) -> Callable[[Finding], str]:
    def show(one: Finding) -> str:
        times = getattr(one, field)[name]
        if not times.jobs:
            return "–"
        return " ".join(f"{span_text(value):>5}" for value in (times.p50_s, times.p90_s, times.p99_s))

    return show


def _measures() -> list[tuple[str, Callable[[Finding], str]]]:
    rows: list[tuple[str, Callable[[Finding], str]]] = [
        ("value, priority × GPU-hours", lambda one: f"{one.outcome.value:,.0f}"),
        ("utilization, GPUs at work", lambda one: f"{one.outcome.utilization:.1%}"),
        ("  held", lambda one: f"{one.outcome.held:.1%}"),
        ("  useful", lambda one: f"{one.outcome.useful:.1%}"),
        ("jobs completed", lambda one: f"{one.outcome.completed} of {one.outcome.jobs}"),
        ("starved (> 30 min)", lambda one: f"{one.starved}"),
        ("unmet real-time", lambda one: f"{one.unmet_share:.2%}"),
        ("below a floor, GPU-hours", lambda one: f"{one.below_floor_gpu_hours:.1f}"),
        ("free GPU time in whole nodes", lambda one: f"{one.schedulability.share:.0%}"),
        ("mean wait", lambda one: span_text(one.wait_s[ALL].mean_s)),
        ("wait P50, P90, P99", _hours("wait_s", ALL)),
    ]
    rows += [(f"  {name} GPU{'s' if name != '1' else ''}", _hours("wait_s", name)) for name in SIZE_CLASSES]
    rows.append(("  whole nodes", _hours("wait_s", WHOLE_NODES)))
    rows.append(("completion P50, P90, P99", _hours("jct_s", ALL)))
    rows += [(f"  {name} GPU{'s' if name != '1' else ''}", _hours("jct_s", name)) for name in SIZE_CLASSES]
    return rows


def _table(level: str, findings: Sequence[Finding]) -> Table:
    table = framed(LEVELS.get(level, "Schedulers that ask for no durations").capitalize())
    for one in findings:
        ours = one.scheduler == GPUGRID
        table.add_column(NAMES[one.scheduler], justify="right", style="bold" if ours else "")
    for label, show in _measures():
        table.add_row(label, *(show(one) for one in findings))
    return table


def _goals(found: Verdict) -> Table:
    table = framed("Goals")
    for against in found.levels:
        table.add_column(LEVELS[against.level], justify="right")
    for goal in dict.fromkeys(goal for against in found.levels for goal in against.met):
        table.add_row(goal, *(_mark(against, goal) for against in found.levels))
    return table


def _mark(against: Against, goal: str) -> Text:
    met = against.met.get(goal)
    figure = {
        "more value than every baseline": _least(against.value_gain, "{:+.1%}"),
        "higher utilization than every baseline": _least(
            {name: 100 * points for name, points in against.utilization_gain.items()}, "{:+.1f} points"
        ),
        "unmet real-time at most 1 %": f"{against.unmet_share:.2%}",
        "never below a floor": f"{against.below_floor_gpu_hours:.1f} GPU-hours",
        "whole-node P99 wait no worse than EASY's": _ratio(against.whole_node_p99_over_easy),
        "mean wait at most half of FIFO's": _ratio(against.mean_wait_over_fifo),
    }.get(goal, "")
    if met is None:
        return Text("–")
    return Text(f"{figure} {'✓' if met else '✗'}", style="green" if met else "red")


def _least(gains: dict[str, float], pattern: str) -> str:
    return pattern.format(min(gains.values())) if gains else ""


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"


def _cost(found: Verdict) -> Text:
    shares = [f"{share:.1%} with {LEVELS[level]}" for level, share in found.value_over_true.items()]
    if not shares:
        return Text("")
    return Text(f"Of gpugrid's value with true durations it keeps {', '.join(shares)}.")


def _overruns(findings: Sequence[Finding]) -> Text:
    lines = []
    for one in findings:
        over, told = one.overruns, one.promises
        if over is None or told is None or (not over.jobs and not told.told):
            continue
        lines.append(
            f"{LEVELS[one.level].capitalize()}: {over.jobs} of {over.of_started} jobs ran past their P90 "
            f"(median {over.ran_over_p90:.1f} times it), {over.held_up} jobs waited for their GPUs then, "
            f"{over.unmet_gpu_hours:.1f} GPU-hours of demand went unmet meanwhile; "
            f"of {told.told} jobs told a later start {told.by_p50_share:.0%} began by it, {told.by_p90_share:.0%} by its P90."
        )
    return Text("\n".join(lines))


def _took(took: Sequence[Took]) -> Text:
    lines = [
        f"{one.run}: {one.replans} re-plans, P50 {one.replan_p50_ms:.1f} ms, P90 {one.replan_p90_ms:.1f} ms, "
        f"P99 {one.replan_p99_ms:.1f} ms."
        for one in took
        if one.replans
    ]
    return Text("\n".join(lines), style="dim")

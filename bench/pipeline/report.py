"""Results for people: tables, the verdict on each goal, and the files of a run."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from bench.pipeline.latency import P50_GOAL_MS, P99_GOAL_MS, RATIO_GOAL, LatencyResult
from bench.pipeline.picture import line_svg
from bench.pipeline.stats import Distribution
from bench.pipeline.throughput import ThroughputResult


def show_latency(result: LatencyResult, console: Console) -> None:
    """Ways, hops, verdicts."""
    console.print(_table("End to end, seen by a reader (ms)", result.ways_ms))
    console.print(_table("Per hop, by record times in whole ms", result.hops_ms))
    reasons = ", ".join(f"{count} {reason}" for reason, count in result.first_reasons.items())
    console.print(
        f"First decisions: {reasons}. Lost: {result.lost}. Publisher late by at most {result.publisher_late_ms} ms."
    )
    console.print(_turns_table(result))
    cpu = ", ".join(f"{name} {ms:.1f}" for name, ms in result.cpu_ms_per_job.items())
    console.print(f"Processor ms per job: {cpu}.", highlight=False)
    named = result.ways_ms["pipeline: submit → first decision"]
    placed = result.ways_ms["pipeline: submit → placing decision"]
    for name, way, ratio in (("first", named, result.ratio_named), ("placing", placed, result.ratio_placed)):
        if way is not None:
            console.print(
                f"submit → {name} decision: P50 {way.p50_ms:.1f} ms ({_met(way.p50_ms <= P50_GOAL_MS)} {P50_GOAL_MS:g}), "
                f"P99 {way.p99_ms:.1f} ms ({_met(way.p99_ms <= P99_GOAL_MS)} {P99_GOAL_MS:g}), "
                f"{ratio:.2f} × the bare chain ({_met(ratio <= RATIO_GOAL)} {RATIO_GOAL:g})",
                highlight=False,
            )
    _show_machine(result.facts, console)


def show_throughput(result: ThroughputResult, console: Console) -> None:
    """The series in steps, and the verdict."""
    table = Table(title="Lag: events published and not yet named by a decision")
    for column in ("second", "published", "decided", "lag", "decisions"):
        table.add_column(column, justify="right")
    step = max(1, len(result.samples) // 15)
    for sample in [*result.samples[::step], result.samples[-1]]:
        row = (sample.at_s, sample.published, sample.decided, sample.lag, sample.decisions)
        table.add_row(*(f"{value:.0f}" for value in row))
    console.print(table)
    console.print(_table("submit → first decision (ms)", {"under load": result.latency_ms}))
    console.print(
        f"Lag changes by {result.lag_slope:+.2f} events/s ({'GROWS' if result.growing else 'level'}), at most {result.lag_max}; "
        f"{result.decisions} decisions, {result.jobs_per_decision} jobs each; drained {result.drained_s:.1f} s after the last event.",
        highlight=False,
    )
    _show_machine(result.facts, console)


def write(result: LatencyResult | ThroughputResult, folder: Path) -> Path:
    """JSON named after the benchmark, replacing the last one; the lag as SVG beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.benchmark.split('.')[0]}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    if isinstance(result, ThroughputResult):
        points = [(sample.at_s, float(sample.lag)) for sample in result.samples]
        title = f"Lag at {result.options.rate:g} job events/s, {result.options.gpus} GPUs"
        path.with_suffix(".svg").write_text(line_svg(points, title=title, x_label="seconds", y_label="events"))
    return path


def _table(title: str, rows: dict[str, Distribution | None]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("", no_wrap=True)
    for column in ("n", "P1", "P10", "P25", "P50", "P75", "P90", "P95", "P99", "P99.9", "max"):
        table.add_column(column, justify="right", no_wrap=True, min_width=6)
    for name, entry in rows.items():
        if entry is None:
            table.add_row(name, "0")
            continue
        shares = [entry.percentiles[share] for share in ("1", "10", "25", "50", "75", "90", "95", "99", "99.9")]
        table.add_row(name, str(entry.count), *(f"{value:.1f}" for value in (*shares, entry.max_ms)))
    return table


def _turns_table(result: LatencyResult) -> Table:
    table = Table(
        title="Turn by turn: medians, and the cores other programs kept busy", title_justify="left", box=SIMPLE
    )
    for column in (
        "first decision",
        "placing",
        "bare chain",
        "first ÷ chain",
        "placing ÷ chain",
        "others",
        "others (chain)",
    ):
        table.add_column(column, justify="right")
    for turn in result.turns:
        table.add_row(
            *(f"{value:.1f}" for value in (turn.named_p50_ms, turn.placed_p50_ms, turn.chain_p50_ms)),
            *(
                f"{value:.2f}"
                for value in (turn.ratio_named, turn.ratio_placed, turn.others_pipeline, turn.others_chain)
            ),
        )
    return table


def _met(met: bool) -> str:
    return "met: ≤" if met else "MISSED: ≤"


def _show_machine(facts, console: Console) -> None:
    console.print(
        f"{facts.cores} × {facts.cpu}, load {facts.load_1m} before the start; Kafka {facts.kafka}, Python {facts.python}, "
        f"commit {facts.commit}{' + changes' if facts.dirty else ''}.",
        style="dim",
        highlight=False,
    )

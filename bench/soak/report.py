"""A soak's result for people: both runs side by side, the kills, what processes used, and what is wrong."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from bench.soak.run import SoakResult


def show(result: SoakResult, console: Console) -> None:
    """Tables, then the verdict."""
    console.print(_runs(result))
    console.print(_kills(result))
    console.print(_used(result))
    for sentence in result.wrong:
        console.print(sentence, style="bold red", highlight=False)
    if not result.wrong:
        console.print(
            f"{result.disturbed.jobs} jobs by {result.options.events} events: each ended once, as the script says and as "
            f"undisturbed, through {len(result.disturbed.kills)} kills; metered GPU time is what was executed.",
            highlight=False,
        )


def _runs(result: SoakResult) -> Table:
    table = Table("", title="What no disturbance may change", title_justify="left", box=SIMPLE)
    runs = (result.undisturbed, result.disturbed)
    for name in ("undisturbed", "disturbed"):
        table.add_column(name, justify="right")
    for name in sorted({name for run in runs for name in run.certain}):
        table.add_row(name, *(str(run.certain.get(name, 0)) for run in runs))
    table.add_section()
    table.add_row("GPU-hours metered", *(f"{run.metered_gpu_h:.3f}" for run in runs))
    table.add_row("events per second", *(f"{run.events_per_s:.0f}" for run in runs))
    table.add_row("seconds to the last job's end", *(f"{run.drained_s:.0f}" for run in runs))
    table.add_row("jobs open at most", *(str(run.open_max) for run in runs))
    table.add_row("events sent again", *(str(run.resent) for run in runs))
    return table


def _kills(result: SoakResult) -> Table:
    table = Table("killed", title="Kills", title_justify="left", box=SIMPLE)
    for name in ("after events", "second", "back after s"):
        table.add_column(name, justify="right")
    for kill in result.disturbed.kills:
        table.add_row(kill.name, str(kill.at_events), f"{kill.at_s:.1f}", f"{kill.back_s:.1f}")
    return table


def _used(result: SoakResult) -> Table:
    title = "Undisturbed processes: MiB, growth of that per 100,000 events, and processor ms per event"
    table = Table("", title=title, title_justify="left", box=SIMPLE)
    for name in ("first", "last", "most", "growth", "ms per event"):
        table.add_column(name, justify="right")
    for name, used in result.undisturbed.used.items():
        growth = "" if used.growth_mib is None else f"{used.growth_mib:+.0f}"
        sizes = (f"{mib:.0f}" for mib in (used.first_mib, used.last_mib, used.most_mib))
        table.add_row(name, *sizes, growth, f"{1000 * used.cpu_s / result.options.events:.2f}")
    return table

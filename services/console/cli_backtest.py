"""`gpugrid backtest`: days of a real trace under gpugrid's planner and five simple schedulers. Signature and help here."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from services.console.errors import ConsoleError, UsageError
from services.console.flags import AsJson
from services.console.session import Session

AUTO = "auto"


class TraceName(Enum):
    """Traces with bundled extracts."""

    PHILLY = "philly"
    OPENB = "openb"
    LINGJUN = "lingjun"
    HELIOS = "helios"


def backtest(
    ctx: typer.Context,
    trace: Annotated[TraceName, typer.Option(help="Which trace; its extract is bundled.")] = TraceName.PHILLY,
    file: Annotated[
        Path | None,
        typer.Option(
            help="A larger file with the columns of the trace's original (docs/backtest.md).", show_default=False
        ),
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="First day: a date (philly) or a day number.", show_default="the trace's own")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=5, help="How many days.")] = 1,
    gpus: Annotated[
        int | None,
        typer.Option(min=16, max=4096, help="Size of the pool, nodes of 8.", show_default="64; lingjun, helios 128"),
    ] = None,
    load: Annotated[
        str,
        typer.Option(
            metavar="SHARE|auto",
            help="What is asked for ÷ what the pool can give; scales arrivals. auto: where FIFO's P90 wait first exceeds two hours.",
        ),
    ] = AUTO,
    levels: Annotated[
        str, typer.Option(help="What is known of durations: true, forecast, limit, none.")
    ] = "true,forecast,limit,none",
    schedulers: Annotated[
        str | None,
        typer.Option(
            help="fifo, best_effort_fifo, priority_backfill, easy_backfill, shortest_predicted, gpugrid.",
            show_default="all",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws everything that the trace doesn't tell.")] = 2,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Runs at a time; 0: one per core.")] = 0,
    svg: Annotated[Path | None, typer.Option(help="Draw it there.", show_default=False)] = None,
    csv: Annotated[
        Path | None, typer.Option(help="One row per scheduler and level, there.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play days of a real trace, event by event, under gpugrid's planner and five simple schedulers: who gets more out of the pool.

    The planner is the real one, asked at every event for the whole horizon. It is shown durations at up to four levels: the true ones,
    our live forecasts, the user's limit, nothing. The same options give the same figures, bit for bit.

    \b
    gpugrid backtest
    gpugrid backtest --trace lingjun --days 3 --levels forecast --svg lingjun.svg
    gpugrid backtest --trace philly --file philly_jobs.csv.gz --start 2017-10-09 --gpus 256 --load 0.9 --json
    """
    from services.console import backtest_command

    if file is not None and not file.is_file():
        raise UsageError(f"{file} is no file.")
    for target in (svg, csv):
        if target is not None and not target.absolute().parent.is_dir():
            raise ConsoleError(f"{target} can't be written: its folder doesn't exist.")
    session: Session = ctx.obj
    options = backtest_command.options_of(
        trace=trace.value,
        file=file,
        start=start,
        days=days,
        gpus=gpus,
        load=None if load == AUTO else load,
        levels=levels,
        schedulers=schedulers,
        seed=seed,
    )
    backtest_command.run(session, options, workers=workers, svg=svg, csv=csv, as_json=as_json)

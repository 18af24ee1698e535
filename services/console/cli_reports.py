"""Commands that sum up: report, latency, diagnose. Signatures and help here, the work elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from services.console.errors import ConsoleError, UsageError
from services.console.flags import AsJson, duration
from services.console.metering.report import STARVED_AFTER_S, By
from services.console.session import Session, note_incomplete


class Format(StrEnum):
    """What a report is written as."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    HTML = "html"


def report(
    ctx: typer.Context,
    since: Annotated[
        str, typer.Option(metavar="24h|7d|2026-01-31|…T08:00", help="From then on: so long ago, or a date (UTC).")
    ] = "24h",
    until: Annotated[str | None, typer.Option(metavar="…", help="The same; left out: now.", show_default=False)] = None,
    by: Annotated[By, typer.Option(help="What is added up.")] = By.TEAM,
    form: Annotated[Format, typer.Option("--format", help="Parquet needs the extra gpugrid[parquet].")] = Format.TABLE,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there.", show_default=False)] = None,
    starved_after: Annotated[
        float, typer.Option(parser=duration, metavar="6h", help="Jobs that waited longer count as starved.")
    ] = STARVED_AFTER_S,
    as_json: AsJson = False,
) -> None:
    """GPU-hours held, effective, idle and lost, and what they bought, per team, user, job or kind.

    \b
    gpugrid report --since 7d --by team
    gpugrid report --since 2026-01-01 --until 2026-02-01 --by user --format csv --out january.csv
    gpugrid report --format html --out today.html
    """
    from services.console.metering import load_report

    session: Session = ctx.obj
    form = Format.JSON if as_json else form
    if form is Format.PARQUET and out is None:
        raise UsageError("Parquet is binary: name a file with --out FILE.")
    now_ms = session.clock().now_ms()
    window = load_report.window_of(since, until, now_ms)
    made, complete = session.run(
        load_report.load(session, by, window, starved_after_s=starved_after), "Reading the log"
    )
    note_incomplete(session, complete)
    load_report.show(session, made, form.value, out, now_ms)


def latency(
    ctx: typer.Context,
    minutes: Annotated[float, typer.Option(min=0.1, max=1440.0, help="The last so many minutes, wall time.")] = 15.0,
    as_json: AsJson = False,
) -> None:
    """Where time goes per hop: P50, P90 and P99 of the last minutes, between the services and inside them.

    \b
    gpugrid latency
    gpugrid latency --minutes 60 --json
    """
    from services.console import latency_view

    session: Session = ctx.obj
    found = session.run(latency_view.load(session, minutes), "Reading records and spans")
    note_incomplete(session, found.complete)
    if as_json:
        session.json(latency_view.document(found))
        return
    if not any(hop.jobs for hop in found.hops) and not found.spans:
        raise ConsoleError(f"No job passed through in the last {minutes:g} minutes; try --minutes with more.")
    session.print(latency_view.hops_table(found.hops))
    if found.spans:
        session.print(latency_view.spans_table(found.spans))


def diagnose(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Why the queue waits: fragmentation or total shortage, with numbers; the classic case; what would help.

    \b
    gpugrid diagnose
    gpugrid diagnose --json | jq '.[].headline'
    """
    from services.console import queries
    from services.console.diagnosis import diagnose_world

    session: Session = ctx.obj
    world = session.run(queries.load_world(session), "Reading jobs and nodes")
    note_incomplete(session, world.complete)
    found = diagnose_world(world, session.clock().now_ms())
    if as_json:
        session.json([asdict(one) for one in found])
        return
    for one in found:
        name = f"{one.pool}: " if one.pool else ""
        session.print(f"{name}{one.headline}.")
        session.print(f"  {one.case.replace('_', ' ')}: {one.sentence}")
        for line in one.would_help:
            session.print(f"  - {line}")

"""Options that several commands share, so that they mean and read the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Job or application id.", show_default=False)]
NodeId = Annotated[
    str, typer.Argument(metavar="NODE", help="Node id, as `gpugrid nodes` shows it.", show_default=False)
]
Pool = Annotated[str | None, typer.Option("--pool", help="Only this pool.")]


def duration(text: str | float) -> float:
    """Parser of duration options; typer hands defaults through it, too. Raises BadParameter (exit code 2)."""
    from services.console.durations import parse_duration_s

    if not isinstance(text, str):
        return float(text)
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

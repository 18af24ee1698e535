"""Options that several commands share, so that they mean and read the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Job or application id.", show_default=False)]
NodeId = Annotated[
    str, typer.Argument(metavar="NODE", help="Node id, as `gpugrid nodes` shows it.", show_default=False)
]
AcceptedPools = Annotated[
    list[str] | None, typer.Option(help="Acceptable pool, the preferred one first; repeatable.", show_default=False)
]
AcceptedModels = Annotated[
    list[str] | None, typer.Option(help="All pools of this GPU model are acceptable; repeatable.", show_default=False)
]
Speeds = Annotated[
    list[str] | None,
    typer.Option(
        metavar="POOL=NUMBER",
        help="How fast it is in a pool or on a GPU model, beside the others; repeatable. Without: measured ratios.",
        show_default=False,
    ),
]
Datasets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=MiB]",
        help="Data it reads; among equally early places one whose nodes keep it wins. Repeatable.",
        show_default=False,
    ),
]
Cause = Annotated[str, typer.Option(help="Why, for the record.")]
Cluster = Annotated[str | None, typer.Option("--cluster", help="Which cluster, if there are several.")]
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


DAY_S = 86_400.0
Deadline = Annotated[
    float,
    typer.Option(
        parser=duration,
        metavar="1h",
        help="Then what still runs there is checkpointed and stopped.",
        show_default="1 day",
    ),
]

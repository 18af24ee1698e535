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


INDICES_MAX = 1024
"""GPUs of one node that an order may name: what its event can carry."""


def index_list(text: str, option: str) -> list[int]:
    """`0-3,6`, in order and each once; none for an empty text. BadParameter (exit code 2) for anything else."""
    found: dict[int, None] = {}
    for part in text.split(",") if text else []:
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise typer.BadParameter(f"{text!r} is no list of indices like 0-3,6", param_hint=option)
        if not int(first) <= int(last or first) < INDICES_MAX:
            raise typer.BadParameter(
                f"{part.strip()} is no range of indices: they count from 0 to {INDICES_MAX - 1}", param_hint=option
            )
        found.update(dict.fromkeys(range(int(first), int(last or first) + 1)))
    return sorted(found)


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

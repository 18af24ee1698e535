"""The processes of the running stacks, as a table and as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from services.console.health_view import healths
from services.console.stack import Stack
from services.console.tables import plain_table

_STYLES = {
    "ready": "green",
    "done": "dim",
    "starting": "yellow",
    "waiting": "yellow",
    "backing-off": "red",
    "failed": "red",
}


def stack_row(stack: Stack) -> dict[str, Any]:
    """What `status --json` has of one stack."""
    said = {one.pid: one for one in healths(stack.run_dir)}
    row: dict[str, Any] = msgspec.to_builtins(stack.state)
    for process in row["processes"]:
        own = said.get(process["pid"])
        process["not_ready"] = own.reason if own is not None else ""
        process["lag"] = dict(own.lag) if own is not None else {}
    return {**row, "run_dir": str(stack.run_dir), "bootstrap": stack.bootstrap, "clock": stack.clock}


def stacks_table(rows: Sequence[dict[str, Any]]) -> Table:
    """One line per process."""
    table = plain_table(
        "STACK", "PROCESS", "STATE", "PID", "RESTARTS", "PORTS", "LAG", "LOG", right=("PID", "RESTARTS", "LAG")
    )
    for row in rows:
        for process in row["processes"]:
            state = process["state"] + (f" ({process['not_ready']})" if process["not_ready"] else "")
            table.add_row(
                row["name"],
                process["name"],
                Text(state, style=_STYLES.get(process["state"], "")),
                str(process["pid"] or ""),
                str(process["restarts"]),
                " ".join(f"{name}:{port}" for name, port in process["ports"].items()),
                str(sum(process["lag"].values())) if process["lag"] else "",
                process["log"],
            )
    return table

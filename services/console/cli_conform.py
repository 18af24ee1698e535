"""The command that judges executors. Signature and help here; the work is imported when it runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from services.console.errors import ConsoleError
from services.console.flags import AsJson, duration
from services.console.session import Session

WAIT_S = 30.0


def conform(
    ctx: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node that the executor serves.", show_default=False)],
    cluster: Annotated[str, typer.Option(help="The cluster of the node.")] = "c0",
    partition: Annotated[int, typer.Option(min=0, help="The cluster's partition, as the catalog has it.")] = 0,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="It runs jobs of template `simulated` instead of commands.")
    ] = False,
    wait: Annotated[
        float, typer.Option(parser=duration, metavar="30s", help="For one report.", show_default="30 s")
    ] = WAIT_S,
    as_json: AsJson = False,
) -> None:
    """Play an allocator against an executor, and say what it got wrong against docs/executors.md.

    No other allocator may place anything on the node meanwhile, and the node needs three GPUs. Exit code 0 only if nothing was wrong.

    \b
    gpugrid conform test-node --cluster c0
    """
    from rich.text import Text

    from services.console.conform.verdict import Subject
    from services.console.conform.verdict import conform as judged
    from services.console.tables import plain_table

    session: Session = ctx.obj
    subject = Subject(node=node, cluster=cluster, partition=partition, simulated=simulated)
    outcomes = session.run(judged(session.bus(), session.clock(), subject, wait_s=wait), f"Trying {node}")
    wrong = sum(len(one.findings) for one in outcomes)
    if as_json:
        session.json({"node": node, "wrong": wrong, "scenarios": [asdict(one) for one in outcomes]})
    else:
        table = plain_table("", "SCENARIO", "PROMISE, OR WHAT WAS WRONG")
        for one in outcomes:
            table.add_row(Text("✗", style="red") if one.findings else Text("✓", style="green"), one.name, one.promise)
            for finding in one.findings:
                table.add_row("", "", Text(f"{finding.rule}: {finding.detail}", style="red"))
        session.print(table)
    if wrong:
        raise ConsoleError(f"{node}'s executor got {wrong} things wrong; docs/executors.md explains the rules.")

"""Commands about what runs: checkpoint, logs, events. Signatures and help here; the work is imported when a command runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from services.console.errors import ConsoleError
from services.console.flags import AsJson, JobId, duration
from services.console.session import Session, note_incomplete

CHECKPOINT_WAIT_S = 3600.0
"""Longest `--wait`: intake lets no job declare a longer one."""


def checkpoint(
    ctx: typer.Context,
    job_id: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="Until the job says that it has saved.")] = False,
    timeout: Annotated[
        float, typer.Option(parser=duration, metavar="10m", help="Longest --wait.", show_default="1 h")
    ] = CHECKPOINT_WAIT_S,
    as_json: AsJson = False,
) -> None:
    """Ask a running job to save its work now and go on.

    \b
    gpugrid checkpoint training-4f9k2 --wait
    """
    from services.console import orders

    session: Session = ctx.obj
    sent = session.run(orders.checkpoint_job(session, job_id), f"Asking {job_id} for a checkpoint")
    if wait:
        sent |= session.run(
            orders.checkpoint_answer(session, job_id, sent["ordered_wall_ms"], timeout), f"Waiting for {job_id}"
        )
    if as_json:
        session.json(sent)
    elif wait:
        session.print(
            f"{job_id} has saved {sent['fraction']:.1%} of its work at {sent['location'] or '(no place named)'}."
        )
    else:
        session.print(f"Asked {job_id} for a checkpoint; `gpugrid events {job_id}` shows its answer.")


def logs(
    ctx: typer.Context,
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the attempt has ended.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines shown first.")] = 50,
    node: Annotated[str | None, typer.Option(help="Which node of a gang.", show_default=False)] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Default: the newest.", show_default=False)] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(envvar="GPUGRID_RUN_DIR", help="Executor's run folder; left out: the running stack's."),
    ] = None,
) -> None:
    """A job's output (of executors on this machine), as it is written.

    \b
    gpugrid logs training-4f9k2 -f
    gpugrid logs training-4f9k2 --attempt 1 -n 1000
    """
    from services.console import job_logs

    session: Session = ctx.obj
    folder = run_dir
    if folder is None:
        stack = session.stack()
        if stack is None:
            raise ConsoleError("No stack is running here: name an executor's run folder with --run-dir.")
        folder = stack.run_dir
    log = job_logs.newest(folder, job_id, node=node, attempt=attempt)
    session.note(f"{job_id}, attempt {log.attempt} on {log.node}: {log.path}")
    content, offset = job_logs.tail(log.path, lines)
    sys.stdout.buffer.write(content)
    sys.stdout.flush()
    for content in job_logs.follow(log, offset) if follow else ():
        sys.stdout.buffer.write(content)
        sys.stdout.flush()


def events(
    ctx: typer.Context,
    job_id: JobId,
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic; repeatable.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """A job's whole history, from every topic that names it.

    \b
    gpugrid events training-4f9k2
    gpugrid events training-4f9k2 --topic executions --json
    """
    from services.console import job_history

    session: Session = ctx.obj
    lines, complete = session.run(job_history.load_history(session, job_id), f"Reading about {job_id}")
    if topic:
        lines = [line for line in lines if line.topic in topic]
    note_incomplete(session, complete)
    if as_json:
        session.json(job_history.history_rows(lines))
    else:
        session.print(job_history.history_table(lines, session.clock().now_ms()))

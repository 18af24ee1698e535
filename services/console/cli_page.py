"""`gpugrid page` and `gpugrid top`: the two views people keep open. Signatures and help here."""

from __future__ import annotations

from typing import Annotated

import typer

from services.console.errors import ConsoleError
from services.console.session import Session

PORT_DEFAULT = 8470


def page(
    ctx: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: a free one.")] = PORT_DEFAULT,
    host: Annotated[
        str, typer.Option(help="Who may look: 127.0.0.1 only this machine, 0.0.0.0 everybody who reaches it.")
    ] = "127.0.0.1",
    token: Annotated[
        bool, typer.Option("--token", help="Print the token for submitting, cancelling and draining there, and exit.")
    ] = False,
    service: Annotated[bool, typer.Option("--service", hidden=True)] = False,
) -> None:
    """Serve the page: grid, jobs and why, nodes, demand, value beside FIFO, latency, reports. Looking needs no login.

    \b
    gpugrid page                      then open http://127.0.0.1:8470/
    gpugrid page --token              what to enter there to submit, cancel and drain
    gpugrid page --host 0.0.0.0       for the whole network: put it behind your own TLS
    """
    from services.console.page import serve

    session: Session = ctx.obj
    if token:
        print(serve.token_for(session))
        return
    serve.serve(session, host=host, port=port, quiet=service)


def top(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print the picture once and exit.")] = False,
    seconds: Annotated[float, typer.Option(min=0.2, max=60.0, help="Time between two pictures.")] = 1.0,
) -> None:
    """A live view in the terminal: pool, applications, what runs, what waits and why. Ctrl-C ends it.

    \b
    gpugrid top
    gpugrid top --once
    """
    from services.console import top_view

    session: Session = ctx.obj
    try:
        top_view.run(session, once=once, period_s=seconds)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    except OSError as error:
        raise ConsoleError(f"The topics can't be read ({error}).") from None

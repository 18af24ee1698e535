"""`gpugrid page` from start to end: the token, the server, what a person is told, the health file a supervisor looks at."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from services.console.page.access import FILE_NAME, Access, token_of
from services.console.page.server import PageServer
from services.console.session import Session

FILE_VARIABLE = "GPUGRID_PAGE_TOKEN_FILE"


def token_path(session: Session) -> Path:
    """GPUGRID_PAGE_TOKEN_FILE, the running stack's folder, or the user's cache folder."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    stack = session.stack()
    if stack is not None and not session.bootstrap:
        return stack.run_dir / FILE_NAME
    from deploy.local.cache import cache_root

    return cache_root() / FILE_NAME


def token_for(session: Session) -> str:
    """The token that the page asks for, made now if there is none yet."""
    return token_of(token_path(session))


def serve(session: Session, *, host: str, port: int, quiet: bool) -> None:
    """Serve until SIGINT or SIGTERM. `quiet`: as a supervised process, which waits for its broker instead of giving up."""
    path = token_path(session)
    access = Access(token_of(path))
    if not quiet and session.make_bus is None:
        session.address()
    from services.console.planview import kernels_compiled

    server = PageServer(session, access, host=host, port=port, planning=kernels_compiled())
    asyncio.run(_serve(session, server, host, path, quiet))


async def _serve(session: Session, server: PageServer, host: str, path: Path, quiet: bool) -> None:
    await server.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
    session.print(f"The page is at http://{shown}:{server.port}/; Ctrl-C ends it.")
    if not quiet:
        session.print(f"To submit, cancel and drain there, log in with the token in {path} (`gpugrid page --token`).")
    ended = asyncio.create_task(server.wait())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
    finally:
        stopped.cancel()
        ended.cancel()
        await server.stop()

"""What every command stands on: which broker, which clock, where the run folder is, and how results are printed.

Owns: the order in which the broker is found (`--bootstrap`, GPUGRID_BOOTSTRAP, the running stack's file), running one
coroutine with a spinner, and the two ways out (tables, JSON). Tests hand in a session with a bus of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from services.console.errors import ConsoleError, UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from schemas.records import Message
    from services.console.stack import Stack
    from services.runtime.bus.port import Bus
    from services.runtime.clock import Clock

T = TypeVar("T")

PIPED_WIDTH = 200
"""Columns when the output is no terminal: a job id must not be cut in a pipe."""
CONNECT_WAIT_S = 5.0
"""A broker that doesn't answer by then is not there, as far as a person at a terminal is concerned."""


@dataclass
class Session:
    """One command's surroundings. `make_bus` and `make_clock` are replaced in tests."""

    bootstrap: str | None = None
    stack_name: str | None = None
    make_bus: Callable[[str], Bus] | None = None
    make_clock: Callable[[], Clock] | None = None
    run_root: Path | None = None
    _stack: Stack | None = field(default=None, repr=False)
    _reached: str = field(default="", repr=False)

    # --- surroundings

    def stack(self) -> Stack | None:
        """The stack that runs under this name, from its state file, or None."""
        if self._stack is None and self.make_bus is None:
            from services.console.stack import read_stack

            self._stack = read_stack(self.run_root, self.stack_name)
        return self._stack

    def address(self) -> str:
        """host:port of the broker. ConsoleError says how to get one."""
        if self.bootstrap:
            return self.bootstrap
        stack = self.stack()
        if stack is not None and stack.bootstrap:
            return stack.bootstrap
        raise ConsoleError(
            "No stack is running here: start one with `gpugrid up`, or name a broker with --bootstrap HOST:PORT."
        )

    def bus(self) -> Bus:
        if self.make_bus is not None:
            return self.make_bus(self.bootstrap or "")
        address = self.address()
        if self._reached != address:
            require_answer(address)
            self._reached = address
        from services.runtime.bus.kafka import KafkaBus

        return KafkaBus(address)

    def clock(self) -> Clock:
        """Domain time: the running stack's scaled clock if it has one, else the wall's."""
        if self.make_clock is not None:
            return self.make_clock()
        from services.runtime.config import ConfigError, clock_of

        stack = None if self.bootstrap else self.stack()
        try:
            return clock_of(stack.clock if stack is not None else os.environ.get("GPUGRID_CLOCK", "wall"))
        except ConfigError as error:
            raise ConsoleError(f"The running stack's clock can't be read ({error}).") from None

    # --- doing

    def run(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """Run a coroutine to its end, with a spinner on a terminal. Bus failures become one sentence."""
        from services.runtime.bus.port import BusError

        try:
            with self.spinner(what):
                return asyncio.run(work)
        except BusError as error:
            raise ConsoleError(f"{what} failed: {error}.") from None

    async def publish(self, messages: list[Message]) -> None:
        """Send and wait for the acknowledgements. Nothing is sent twice: whether to repeat is the person's decision."""
        from services.runtime.bus.port import SendUnknownError

        producer = self.bus().producer("gpugrid-console")
        await producer.start()
        try:
            await producer.send_all(messages)
        except SendUnknownError as error:
            raise ConsoleError(
                f"The broker did not acknowledge ({error}), so it may or may not have it: look with `gpugrid jobs`, and"
                " repeat under the same id, which is harmless."
            ) from None
        finally:
            await producer.stop()

    # --- showing

    def print(self, *renderables: RenderableType, end: str = "\n") -> None:
        """To people, on standard output."""
        console = self.console()
        for one in renderables:
            console.print(one, end=end, soft_wrap=isinstance(one, str), highlight=False, markup=False)

    def note(self, text: str) -> None:
        """To people, on standard error: notes that must not end up in a pipe."""
        print(text, file=sys.stderr)

    def json(self, document: Any) -> None:
        """To programs: one JSON document on standard output."""
        print(json.dumps(document, indent=2, ensure_ascii=False))

    def console(self) -> Console:
        """Standard output; wide where it is no terminal."""
        from rich.console import Console

        console = Console()
        if not console.is_terminal:
            console = Console(width=int(os.environ.get("COLUMNS") or PIPED_WIDTH))
        return console

    def spinner(self, what: str) -> Any:
        if not sys.stderr.isatty():
            return nullcontext()
        from rich.console import Console

        return Console(stderr=True).status(what)


def require_answer(address: str) -> None:
    """ConsoleError at once if nobody listens at any of the addresses: the bus itself would wait for a minute."""
    import socket

    failures = []
    for one in address.split(","):
        host, _, port = one.strip().rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"{one!r} is no broker address; write HOST:PORT.")
        try:
            socket.create_connection((host, int(port)), CONNECT_WAIT_S).close()
        except (OSError, OverflowError) as error:
            failures.append(f"{one.strip()}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise ConsoleError(f"No broker answers ({'; '.join(failures)}); `gpugrid status` and `gpugrid doctor` tell more.")


def note_incomplete(session: Session, complete: bool) -> None:
    """Say that a reading ended at its deadline."""
    if not complete:
        session.note("Note: the topics were not read to their end in time; this may be incomplete.")

"""A process around a FaustHop for tests: `python faust_echo.py BOOTSTRAP IN OUT DEAD GROUP DATA_DIR`.

Answers each record with its own bytes, headers and partition; the value "bad" raises, "poison" raises without a dead letter.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

from schemas.records import Message, Now, Record
from services.runtime.clock import WallClock
from services.runtime.faust_hop import FaustConfig, FaustHop


class Echo:
    """Counts what it knows, so that recovery shows: the answer's headers carry the number of different keys seen."""

    def __init__(self, incoming: str, outgoing: str) -> None:
        self.inputs: tuple[str, ...] = (incoming,)
        self.rebuilt_from: tuple[str, ...] = (outgoing,)
        self._outgoing = outgoing
        self._keys: dict[bytes | None, bytes] = {}

    def recover(self, record: Record) -> None:
        self._keys.setdefault(record.key, (record.header("number") or "").encode())

    def handle(self, record: Record, now: Now) -> list[Message]:
        if record.value in (b"bad", b"poison"):
            raise ValueError((record.value or b"").decode())
        number = self._keys.setdefault(record.key, b"%d" % len(self._keys))
        return [
            Message(self._outgoing, record.key, record.value, (*record.headers, ("number", number)), record.partition)
        ]

    def tick(self, now: Now) -> list[Message]:
        return []


async def main() -> None:
    bootstrap, incoming, outgoing, dead, group, data_dir = sys.argv[1:]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    def letter(record: Record, error: Exception, now: Now) -> Message:
        if record.value == b"poison":
            raise error
        return Message(dead, record.key, str(error).encode())

    config = FaustConfig(bootstrap, group, f"{group}-0", Path(data_dir))
    hop = FaustHop(Echo(incoming, outgoing), config, WallClock(), dead_letter=letter)
    await hop.run(stop)


if __name__ == "__main__":
    logging.basicConfig(level="WARNING", stream=sys.stderr)
    asyncio.run(main())

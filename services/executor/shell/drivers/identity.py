"""A process is its pid and the moment it started: a pid alone may belong to somebody else by now.

Owns: looking such a process up, signalling its group, and waiting for its end. Refuses: names and patterns. Read next:
`process.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.1
"""Only where the kernel has no pidfd: how late an end is noticed."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """`ticks`: start time in clock ticks since boot, from /proc."""

    pid: int
    ticks: int

    def alive(self) -> bool:
        """It exists and is no zombie."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return False
        return int(fields[19]) == self.ticks and fields[0] != b"Z"

    def signal_group(self, number: signal.Signals) -> bool:
        """Signal the group it leads; False if it is gone."""
        if not self.alive():
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def catches(self, number: signal.Signals) -> bool:
        """It has installed a handler: the signal's default action, which would end it, is off."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return False
        masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")]
        return bool(masks) and bool(masks[0] >> (number - 1) & 1)

    def signal(self, number: signal.Signals) -> bool:
        """Signal it alone; False if it is gone."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    async def gone(self) -> None:
        """Return once it has ended, whoever its parent is."""
        try:
            fd = os.pidfd_open(self.pid)
        except (OSError, AttributeError):
            while self.alive():
                await asyncio.sleep(POLL_S)
            return
        try:
            if self.alive():  # only now is it sure that the descriptor is of this process and not of a later one
                await readable(fd)
        finally:
            os.close(fd)


async def readable(fd: int) -> None:
    """Return when there is something to read, or the other end is closed."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def machine_boot_id() -> str:
    """Changes with every start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

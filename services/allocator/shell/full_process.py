"""The solver in a process of its own: `python -m services.allocator.shell.full_process` answers tasks from its standard input.

Frames of a length and a pickle, between this process and its parent only. A child that dies, hangs or is killed costs one
answer; it ends by itself when its parent is gone. It runs with lower priority: decisions come first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import struct
import sys
from typing import BinaryIO

from services.allocator.shell.full_mode import Answer, SolverError, Task, answer_of

NICENESS = 10
START_S = 120.0
"""A first answer may take so much longer than its limit: importing the solver, and compiling kernels if nothing is cached."""
OVERDUE_FACTOR = 4.0
"""An answer later than this many times its limit never comes."""
_LENGTH = struct.Struct("!Q")


class ProcessSolver:
    """Started with the first task, and again after it ended. One task at a time."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None

    async def solve(self, task: Task) -> Answer:
        """Raises SolverError if the child ends, says that it failed, or is overdue."""
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S + OVERDUE_FACTOR * task.seconds):
                process.stdin.write(_frame(task))
                await process.stdin.drain()
                size = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))[0]
                answer = pickle.loads(await process.stdout.readexactly(size))  # noqa: S301 - our own child's
        except Exception as error:  # whatever a broken child or a broken frame does: it costs one answer
            await self.stop()
            raise SolverError(f"the solver's process gave no answer ({type(error).__name__})") from None
        except asyncio.CancelledError:
            await self.stop()  # it is in the middle of something nobody waits for
            raise
        if isinstance(answer, Answer):
            return answer
        raise SolverError(str(answer))

    async def stop(self) -> None:
        """Kill it: it holds nothing that anybody needs."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()

    async def _running(self) -> asyncio.subprocess.Process:
        if self.process is not None and self.process.returncode is None:
            return self.process
        try:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise SolverError(f"the solver's process could not be started: {error}") from None
        return self.process


def _frame(content: object) -> bytes:
    packed = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(packed)) + packed


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer tasks until the parent closes its end."""
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        task: Task = pickle.loads(source.read(_LENGTH.unpack(head)[0]))  # noqa: S301 - our own parent's
        try:
            answer: object = answer_of(task)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        sink.write(_frame(answer))
        sink.flush()


def main() -> int:
    """Standard output belongs to the frames: whatever libraries print goes to standard error."""
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the parent, which ends this process
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sink)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

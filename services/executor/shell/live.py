"""The driver's side of one run, while this process lives: its handle, and the tasks that go with it.

Owns: knowing whether the driver has started it yet, and ending its tasks with it. Read next: `node.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from services.executor.shell.drivers.port import Run


class Live:
    """`run` is known once the driver has started or adopted it; None if it could not. `unwanted`: a stop came before the start."""

    def __init__(self) -> None:
        self.run: asyncio.Future[Run | None] = asyncio.get_running_loop().create_future()
        self.saving = asyncio.Lock()
        self.telling = asyncio.Lock()  # of its GPUs: an older list must not overtake a newer one
        self.unwanted = asyncio.Event()
        self.limit: asyncio.Task[Any] | None = None
        self.limit_s = 0.0
        self.began_ms: int | None = None
        """By the steady clock; known once it is held to a limit."""
        self._tasks: list[asyncio.Task[Any]] = []

    def keep(self, task: asyncio.Task[Any]) -> None:
        """A task that makes no sense without the run."""
        self._tasks.append(task)

    def end(self) -> None:
        for task in [*self._tasks, self.limit]:
            if task is not None:
                task.cancel()

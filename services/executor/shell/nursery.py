"""The tasks of one executor: they end together, and a failure of one is the failure of all.

Owns: their lifetime. Refuses: swallowing an exception, and an order of cancellation that depends on addresses (simulation
has to repeat exactly, so asyncio's own task group, which keeps a set, won't do). Read next: `loop.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Nursery:
    """Spawn freely; whoever runs the executor waits in `fails` beside its own work, and calls `close` at the end."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    async def fails(self) -> None:
        """Never returns; raises what a task raised."""
        await asyncio.shield(self._failure)

    async def close(self) -> None:
        """Cancel what is left and wait for it."""
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._failure.done():
            self._failure.exception()  # seen, or about to be raised by whoever waits in `fails`

    def _done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

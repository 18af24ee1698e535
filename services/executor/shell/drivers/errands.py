"""Orders to a batch system that nobody waits for: kept until they are done, so that none is collected half-way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Errands:
    """What is under way, in the order in which it began."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done))

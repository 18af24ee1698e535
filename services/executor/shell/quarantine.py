"""GPUs whose memory is still in use although no run of ours holds them: nothing is started there until they are free.

Owns: looking, keeping the reason, and looking again until it is gone. Short remains of a process that is just being torn down are
waited out silently; what lasts is reported. Refuses: ending foreign processes. Read next: `device_facts.py`, `node.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from services.executor.shell.device_facts import GpuMemory
from services.executor.shell.nursery import Nursery
from services.runtime.clock import Clock

LOOK_S = 0.5
"""Wall seconds between two looks at a GPU that is not free."""
REPORT_AFTER_S = 3.0
"""The driver takes up to a second or two to tear down the context of a killed process with much memory."""


class Quarantine:
    """`blocked`: GPU → reason. `free` is called when one became free, `tell` when what is to be reported changed."""

    def __init__(
        self, memory: GpuMemory, clock: Clock, nursery: Nursery, free: Callable[[], None], tell: Callable[[], None]
    ) -> None:
        self.blocked: dict[int, str] = {}
        self.reported: dict[int, str] = {}
        self._memory = memory
        self._clock = clock
        self._nursery = nursery
        self._free = free
        self._tell = tell
        self._since_s: dict[int, float] = {}
        self._watching: asyncio.Task[Any] | None = None

    def look(self, gpus: Iterable[int], after: str) -> None:
        """Block those of `gpus` that are not free. `after`: what had them last, for the reason."""
        for gpu, who in self._memory.in_use(gpus).items():
            if gpu not in self.blocked:
                self._since_s[gpu] = self._clock.wall_s()
            self.blocked[gpu] = f"{who} {after}"
        if self.blocked and (self._watching is None or self._watching.done()):
            self._watching = self._nursery.spawn(self._watch())

    async def _watch(self) -> None:
        while self.blocked:
            await self._clock.sleep_wall(LOOK_S)
            held = self._memory.in_use(self.blocked)
            freed = [gpu for gpu in self.blocked if gpu not in held]
            for gpu in freed:
                del self.blocked[gpu], self._since_s[gpu]
            now_s = self._clock.wall_s()
            lasting = {gpu: why for gpu, why in self.blocked.items() if now_s - self._since_s[gpu] >= REPORT_AFTER_S}
            if lasting.keys() != self.reported.keys():
                self.reported = lasting
                self._tell()
            if freed:
                self._free()

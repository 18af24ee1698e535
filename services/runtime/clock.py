"""Time as a port: domain time drives arrivals, durations, steps and limits; wall time drives latency and timers.

Adapters: `WallClock` (live, here), `scaled_clock.ScaledClock` (replay: one domain day in minutes, shared by all processes
of a machine through a small mapped file, pausable) and `virtual.VirtualClock` (simulation). Nothing else in gpugrid reads
the time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

WALL_SLEEP_S_MAX = 1.0
"""The system's clock may be set while we sleep; look again at least this often."""


class Clock(Protocol):
    """`now_ms` is domain time (Unix epoch ms), `wall_ms` is wall time (Unix epoch ms). Neither runs backwards in one process."""

    def now_ms(self) -> int: ...

    def wall_ms(self) -> int: ...

    def wall_s(self) -> float:
        """Monotonic wall seconds with sub-millisecond resolution, for latency and time-outs. Arbitrary origin."""
        ...

    def steady_ms(self) -> int:
        """Domain milliseconds of arbitrary origin, for durations: goes on steadily when the system's clock is set."""
        ...

    async def sleep_wall(self, duration_s: float) -> None: ...

    async def sleep_until(self, domain_ms: int) -> None:
        """Return once `now_ms() >= domain_ms` (at once if it already is); follows pauses of a scaled clock."""
        ...


class WallClock:
    """Domain time is the system's time. A system clock that is set back stands still here until it has caught up."""

    def __init__(self) -> None:
        self._latest_ms = 0

    def now_ms(self) -> int:
        return self.wall_ms()

    def wall_ms(self) -> int:
        self._latest_ms = max(self._latest_ms, time.time_ns() // 1_000_000)
        return self._latest_ms

    def wall_s(self) -> float:
        return time.monotonic()

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_wall(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)

    async def sleep_until(self, domain_ms: int) -> None:
        while (left_ms := domain_ms - self.now_ms()) > 0:
            await asyncio.sleep(min(left_ms / 1000, WALL_SLEEP_S_MAX))

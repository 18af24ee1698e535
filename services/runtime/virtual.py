"""Virtual time: an asyncio loop that jumps to the next timer when every task sleeps, and a clock on top of it.

Owns: the loop and its clock. The same coroutines that run in production run here, a day in seconds, the same way every
time. Refuses what would make that untrue: real sockets, threads, executors (each raises at once), and waiting for
something that can't happen (`VirtualDeadlockError` instead of a hang). Iterating sets of strings still breaks
determinism; nothing here can notice that. Read next: `clock.py`, `bus/memory.py`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_TIMER_RESOLUTION_S = 1e-9
"""A timer counts as due when it is this close: adding a float time-out may miss the timer by one rounding step."""

TIMER_STEP_S = 1e-6
"""The shortest time a timer ahead can be ahead; clocks show microseconds rounded, so nobody sees the difference."""


class VirtualDeadlockError(RuntimeError):
    """Every task waits and no timer is left: on a real machine this would hang for ever."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for the next timer, moves the time there. Knows one file only: the loop's own wake-up socket."""

    def __init__(self) -> None:
        super().__init__()
        self.time_s = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self.get_map():
            raise RuntimeError("the virtual loop has no sockets or pipes: use the memory bus and ports in simulation")
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise VirtualDeadlockError("every task waits for something that can't happen any more: no timer is left")
        if timeout > 0:
            self.time_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` starts at 0 and moves only when nothing is left to do."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._clock_resolution = _TIMER_RESOLUTION_S

    def time(self) -> float:
        return self._jumping.time_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        # A timer that lies ahead by a rounding error only would count as due without time moving, and loops that wait for
        # "the rest of the tick" would wake each other for ever: whatever lies ahead lies ahead by a microsecond at least.
        if when > self._jumping.time_s:
            when = max(when, self._jumping.time_s + TIMER_STEP_S)
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError(
            "the virtual loop runs no threads: put the work behind a port and do it inline in simulation"
        )


class VirtualClock:
    """The clock of one simulated process. Domain and wall time may be off by a constant and run at different speeds."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        start_ms: int,
        *,
        speed: float = 1.0,
        domain_skew_ms: int = 0,
        wall_skew_ms: int = 0,
    ) -> None:
        if speed <= 0:
            raise ValueError("speed (domain seconds per wall second) must be positive")
        self._loop = loop
        self._start_ms = start_ms
        self._speed = speed
        self._domain_skew_ms = domain_skew_ms
        self._wall_skew_ms = wall_skew_ms

    def skewed(self, *, domain_ms: int = 0, wall_ms: int = 0) -> VirtualClock:
        """The clock of another process of the same simulation, ahead by the given milliseconds (behind if negative)."""
        return VirtualClock(
            self._loop,
            self._start_ms,
            speed=self._speed,
            domain_skew_ms=self._domain_skew_ms + domain_ms,
            wall_skew_ms=self._wall_skew_ms + wall_ms,
        )

    def now_ms(self) -> int:
        return self._start_ms + self._domain_skew_ms + self._elapsed_ms(self._speed)

    def wall_ms(self) -> int:
        return self._start_ms + self._wall_skew_ms + self._elapsed_ms(1.0)

    def wall_s(self) -> float:
        return self._loop.time()

    def steady_ms(self) -> int:
        return self._elapsed_ms(self._speed)

    async def sleep_wall(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)

    async def sleep_until(self, domain_ms: int) -> None:
        while (left_ms := domain_ms - self.now_ms()) > 0:
            await asyncio.sleep(left_ms / 1000 / self._speed)

    def _elapsed_ms(self, speed: float) -> int:
        # Rounded to microseconds first: a timer set for exactly 5 ms must read 5, not 4.999… cut to 4.
        return round(self._loop.time() * speed * 1e6) // 1000


def run_virtual(
    main: Callable[[VirtualClock], Awaitable[T]],
    start_ms: int,
    *,
    speed: float = 1.0,
) -> T:
    """Run `main(clock)` to its end in virtual time and return its result; tasks it leaves behind are cancelled."""
    loop = VirtualLoop()
    clock = VirtualClock(loop, start_ms, speed=speed)

    async def started() -> T:
        return await main(clock)

    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(started())
    finally:
        try:
            _cancel_the_rest(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_the_rest(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

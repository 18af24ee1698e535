"""While a live day runs: publish, follow, keep the clock honest, show it, and know when it is over.

Owns `play` (one coroutine from the opening to the last observation) and `Pacer` (pauses domain time while the stack is
disturbed). Starting and stopping the stack is `demo.py`'s, drawing is `watch.py`'s.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Container
from typing import Any

from services.allocator.shell.version import code_version
from services.replay.core.catalog import PARTITION
from services.replay.core.day import Day
from services.replay.core.observation import Observation
from services.replay.core.schedule import arrivals, history, registrations
from services.replay.shell.collect import Collector, observed
from services.replay.shell.publisher import Publisher
from services.replay.shell.watch import Watch
from services.runtime.bus.port import Bus, BusError
from services.runtime.scaled_clock import ClockControl, ScaledClock

OPENING_WAIT_S = 90.0
"""Wall seconds until every application of the day has a forecast, and then its first GPUs. It takes two; more means that
something is broken."""
SETTLE_WALL_S = 2.0
"""Wall seconds after the day's end for the last reports to arrive."""
CHECK_S = 0.2


class NotOpenedError(Exception):
    """The stack runs, but the applications never got a forecast or GPUs."""


class Pacer:
    """Lets domain time run only between `begin` and `end`, and only while the stack is whole. Called from two threads."""

    def __init__(self, control: ClockControl) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._running = False
        self.trouble = ""
        """Which process is down, for people; empty if none is."""

    def begin(self) -> None:
        with self._lock:
            self._running = True
            self._apply()

    def end(self) -> None:
        with self._lock:
            self._running = False
            self._apply()

    def disturbed(self, name: str, reason: str) -> None:
        with self._lock:
            self.trouble = f"{name} restarts ({reason.rstrip('.')}); the clock is paused"
            self._apply()

    def recovered(self) -> None:
        with self._lock:
            self.trouble = ""
            self._apply()

    def _apply(self) -> None:
        if self._running and not self.trouble:
            self._control.resume()
        else:
            self._control.pause()


async def play(
    day: Day, bus: Bus, clock: ScaledClock, pacer: Pacer, watch: Watch, check: Callable[[], None]
) -> Observation:
    """Play the day on a stack that is ready and whose clock stands at the day's start. `check` raises if the stack failed."""
    publisher = Publisher(bus, clock)
    collector = Collector(bus, clock, day, also=watch.planner)
    stop = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(collector.follow(stop)),
        asyncio.create_task(watch.run(collector, clock, pacer, stop)),
    ]
    try:
        # Forecasts first: an application without one gets its floor, and may then grow only by its switches per step.
        await publisher.publish(history(day, PARTITION), wait=False)
        await _until_all(day, "forecast", lambda: collector.observation.forecast_apps, tasks, check)
        await publisher.publish(registrations(day), wait=False)
        await _until_all(day, "GPUs", lambda: {hold.app_id for hold in collector.observation.holds}, tasks, check)
        pacer.begin()
        upstream = asyncio.create_task(publisher.publish(arrivals(day, PARTITION)))
        tasks.append(upstream)
        while clock.now_ms() < day.end_ms or not upstream.done():
            await asyncio.sleep(CHECK_S)
            _look(tasks, check)
        await asyncio.sleep(SETTLE_WALL_S)
        pacer.end()
        return await observed(bus, day, code_version())
    finally:
        stop.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await publisher.close()


async def _until_all(
    day: Day, what: str, having: Callable[[], Container[str]], tasks: list[asyncio.Task[Any]], check: Callable[[], None]
) -> None:
    """Wait until every application of the day has `what`."""
    deadline_s = asyncio.get_running_loop().time() + OPENING_WAIT_S
    while missing := [app.app_id for app in day.apps if app.app_id not in having()]:
        if asyncio.get_running_loop().time() > deadline_s:
            raise NotOpenedError(
                f"{', '.join(missing)} got no {what} within {OPENING_WAIT_S:.0f} s: "
                "run again with --keep and look at the logs."
            )
        await asyncio.sleep(CHECK_S)
        _look(tasks, check)


def _look(tasks: list[asyncio.Task[Any]], check: Callable[[], None]) -> None:
    """Raise what a task raised, or what the supervisor has to say."""
    check()
    for task in tasks:
        if task.done() and (error := task.exception()) is not None:
            raise error if isinstance(error, BusError) else RuntimeError(f"the replay failed: {error!r}") from error

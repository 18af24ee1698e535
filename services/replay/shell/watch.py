"""What a person sees of a live day: the processes while they start, then the picture, or plain lines where there is no terminal.

Owns the terminal. Costs about a tenth of a core: two frames a second, a plan every two. Read next: `demo_view.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.live import Live
from rich.status import Status

from schemas.codec import DecodeError, decode_record
from schemas.decisions import DecisionMade
from schemas.records import Record
from services.replay.core.catalog import GPU_MEMORY_MIB
from services.replay.core.day import Day
from services.replay.core.frame import PlannedSpan, frame
from services.replay.core.latency import latencies
from services.replay.shell.collect import Collector
from services.replay.shell.demo_view import draw, grid_columns
from services.runtime.scaled_clock import ScaledClock

if TYPE_CHECKING:
    from services.replay.shell.planned import Planner

FRAME_S = 0.5
PLAN_EVERY = 4
"""Frames between two plans: each costs some ten milliseconds of a core the stack needs."""
LINES = 10
"""Progress lines over the day without a terminal."""


class Trouble(Protocol):
    """What is wrong with the stack just now, for people; empty if nothing is."""

    trouble: str


class Watch:
    """`starting` and `started` around the stack's start, `run` while the day lasts."""

    def __init__(self, console: Console, day: Day, speed: float, *, ui: bool) -> None:
        self._console = console
        self._day = day
        self._speed = speed
        self._ui = ui
        self._planner: Planner | None = None
        self._states: dict[str, str] = {}
        self._status: Status | None = None
        self._lock = threading.Lock()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Show the processes' states until `started`, or until the stack's start failed."""
        if self._ui:
            self._status = self._console.status("Starting Kafka and the services …")
            self._status.start()
        try:
            yield
        finally:
            self.started()

    def started(self) -> None:
        """The stack is up, or won't be."""
        with self._lock:
            status, self._status = self._status, None
        if status is not None:
            status.stop()

    def process_changed(self, name: str, state: str) -> None:
        """From the supervising thread."""
        with self._lock:
            self._states[name] = state
            if self._status is not None:
                ready = sorted(one for one, other in self._states.items() if other == "ready")
                waited = sorted(one for one, other in self._states.items() if other != "ready")
                self._status.update(f"Starting: {', '.join(waited)}" + (f" (up: {', '.join(ready)})" if ready else ""))
        if not self._ui:
            self._console.print(f"{name}: {state}", highlight=False)

    def planner(self) -> Callable[[Record], None] | None:
        """A new follower of decisions for a collector that starts over; None where nothing is drawn."""
        if not self._ui:
            return None
        from services.replay.shell.planned import Planner

        planner = self._planner = Planner(self._day, {self._day.pool: GPU_MEMORY_MIB})

        def follow(record: Record) -> None:
            if record.topic != "decisions":
                return
            try:
                event = decode_record(record).event
            except DecodeError:
                return
            if isinstance(event, DecisionMade):
                planner.follow(event)

        return follow

    async def run(self, collector: Collector, clock: ScaledClock, trouble: Trouble, stop: asyncio.Event) -> None:
        """Show the day until `stop` is set."""
        if self._ui:
            await self._draw(collector, clock, trouble, stop)
        else:
            await self._tell(collector, clock, trouble, stop)

    async def _draw(self, collector: Collector, clock: ScaledClock, trouble: Trouble, stop: asyncio.Event) -> None:
        plan: tuple[PlannedSpan, ...] = ()
        count = 0
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            while not stop.is_set():
                width, height = self._console.size
                now_ms = min(clock.now_ms(), self._day.end_ms)
                if count % PLAN_EVERY == 0 and self._planner is not None:
                    plan = self._planner.plan(now_ms, clock.wall_ms())
                made = frame(collector.observation, now_ms, grid_columns(width), plan, trouble.trouble)
                live.update(draw(made, width, height, clock.speed), refresh=True)
                count += 1
                await asyncio.sleep(FRAME_S)

    async def _tell(self, collector: Collector, clock: ScaledClock, trouble: Trouble, stop: asyncio.Event) -> None:
        told, noticed = 0, ""
        length_ms = self._day.end_ms - self._day.start_ms
        while not stop.is_set():
            if trouble.trouble != noticed:
                noticed = trouble.trouble
                self._console.print(noticed or "the stack is whole again; the clock goes on", highlight=False)
            share = (clock.now_ms() - self._day.start_ms) / length_ms
            reached = min(int(share * LINES), LINES)
            if reached > told:
                told = reached
                self._console.print(self._line(collector, min(clock.now_ms(), self._day.end_ms)), highlight=False)
            await asyncio.sleep(FRAME_S)

    def _line(self, collector: Collector, now_ms: int) -> str:
        made = frame(collector.observation, now_ms, 1)
        decided = latencies(collector.observation.marks.values())["submit → decided"]
        return (
            f"{made.progress:4.0%} of the day: {made.completed} of {made.arrived} jobs done, {made.running} running, "
            f"{len(made.queue)} waiting, {made.utilization_now:.0%} of the GPUs at work, "
            f"{made.so_far.unmet_gpu_hours:.2f} GPU-hours unmet, decided in {decided.p50_ms:.0f} ms (P99 {decided.p99_ms:.0f})"
        )

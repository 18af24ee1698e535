"""Trainings beside the answers: one child process at a time, of the lowest priority, with a limit on its time.

Owns: asking the handler for orders, the child's life, handing the result back. A child that fails, hangs or is killed costs a
training and nothing else: the present model answers on. Refuses: deciding when to train and what to keep (`core/retraining.py`).
Read next: `fitting.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from schemas.records import Now
from services.forecaster.core.handler import ForecasterHandler
from services.forecaster.core.retraining import Order
from services.forecaster.shell.fitting import IDLE, read_fitted, write_order
from services.runtime.clock import Clock

ORDERS_PERIOD_S = 1.0
"""How late a due training may begin."""
TRAINING_S_MAX = 3_600.0
"""A few seconds are usual on a free core; a child that only gets what nobody else wants may take long, and hurts nobody."""
COMMAND = (sys.executable, "-m", "services.forecaster.shell.fitting")
ROOT = Path(__file__).resolve().parents[3]

log = logging.getLogger(__name__)

Watcher = Callable[[ForecasterHandler, Now], None]


class TrainingError(Exception):
    """Why a training came to nothing."""


class Trainer:
    """Carries out what the handler orders, for as long as `run` runs."""

    def __init__(self, handler: ForecasterHandler, clock: Clock, command: tuple[str, ...] = (*COMMAND, IDLE)) -> None:
        self._handler = handler
        self._clock = clock
        self._command = command
        self._watchers: list[Watcher] = []
        self.running_pid: int | None = None

    def add_watcher(self, watcher: Watcher) -> None:
        """Called every second: metrics."""
        self._watchers.append(watcher)

    async def run(self) -> None:
        while True:
            await self._clock.sleep_wall(ORDERS_PERIOD_S)
            now = self._now()
            for watcher in self._watchers:
                watcher(self._handler, now)
            for order in list(self._handler.orders(now)):
                await self._carry_out(order)

    async def stop(self, running: asyncio.Task[None]) -> None:
        """End `run` and the child it waits for."""
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    async def _carry_out(self, order: Order) -> None:
        log.info("training %s on %d runs: %s", order.cluster, int(order.taught.ended.sum()), order.why)
        began_s = self._clock.wall_s()
        try:
            answer = await self._child(await asyncio.to_thread(write_order, order))
            result = read_fitted(answer)
        except (TrainingError, OSError, msgspec.DecodeError) as error:
            log.warning("training %s came to nothing: %s", order.cluster, error)
            self._handler.not_fitted(order.cluster, self._now())
            return
        log.info("trained %s in %.1f s: %s", order.cluster, self._clock.wall_s() - began_s, result.model.version)
        self._handler.fitted(result)

    async def _child(self, data: bytes) -> bytes:
        child = await asyncio.create_subprocess_exec(
            *self._command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self.running_pid = child.pid
        try:
            said, complained = await asyncio.wait_for(child.communicate(data), TRAINING_S_MAX)
        except TimeoutError:
            raise TrainingError(f"not done after {TRAINING_S_MAX:.0f} s") from None
        finally:
            self.running_pid = None
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode != 0:
            raise TrainingError(f"exit code {child.returncode}: {complained.decode(errors='replace')[-500:]}")
        return said

    def _now(self) -> Now:
        return Now(domain_ms=self._clock.now_ms(), wall_ms=self._clock.wall_ms())

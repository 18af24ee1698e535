"""Applications: whether they serve, letting go of GPUs, and coming back after they ended by themselves.

Owns: the probe's rhythm and its reports, the wait before GPUs that were given up are free, and the back-off of restarts. Refuses: ending
and starting them (`node.py`). Read next: `drivers/readiness.py`, `core/journal.py` (`Revived`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from schemas.jobs import Readiness
from services.executor.core import reports
from services.executor.core.journal import NEVER, Moved, Revived, RunKey
from services.executor.core.lifecycle import Event
from services.executor.shell.drivers.port import Run
from services.executor.shell.ledger import Ledger, Surroundings
from services.executor.shell.live import Live

REVIVE_S = 1.0
"""Back-off after the first end that nobody asked for; it doubles with each further one."""
REVIVE_S_MAX = 64.0
"""Short enough that an application heals by itself soon after what it misses is there."""


class Serving:
    """`reconcile` is called when something may start; `renew` ends a run that has not begun to serve in time."""

    def __init__(
        self,
        ledger: Ledger,
        live: dict[RunKey, Live],
        around: Surroundings,
        reconcile: Callable[[], None],
        renew: Callable[[RunKey, Run], Awaitable[None]],
    ) -> None:
        self._ledger = ledger
        self._live = live
        self._around = around
        self._reconcile = reconcile
        self._renew = renew
        self._reviving: dict[RunKey, None] = {}

    def begin(self, key: RunKey, driven: Run, *, adopted: bool) -> None:
        """Watch a run's readiness, if it declares a probe. What an adopted one's was is not known: it is told in any case."""
        readiness = self._ledger.state.runs[key].assignment.readiness
        if readiness is not None:
            told = None if adopted else False
            self._live[key].keep(self._around.nursery.spawn(self._probe(key, driven, readiness, told)))

    def revive_later(self, key: RunKey) -> None:
        """Let an application that ended by itself start again after its back-off."""
        ended = self._ledger.state.ended.get(key)
        if ended is not None and ended.again_after == NEVER and key not in self._reviving:
            self._reviving[key] = None
            self._around.nursery.spawn(self._revive(key, ended.crashes))

    async def release(self, key: RunKey, driven: Run, given_up: list[int]) -> None:
        """Tell an application its GPUs; what it gave up is free once it said so, or its time is over."""
        live = self._live[key]
        async with live.telling:
            run = self._ledger.state.runs.get(key)
            if run is None:
                return
            await driven.rescale(tuple(run.gpus))
        if given_up:
            await driven.let_go(run.assignment.drain_s)
            if key in self._ledger.state.runs:
                self._ledger.record(Moved(key=key, event=Event.RELEASED, gpus=given_up))
                self._reconcile()

    async def _probe(self, key: RunKey, driven: Run, readiness: Readiness, told: bool | None) -> None:
        clock = self._around.clock
        until_s = clock.wall_s() + readiness.wait_s
        while key in self._ledger.state.runs:
            serves = await driven.serves()
            if key in self._ledger.state.runs and serves is not told:
                self._tell(key, serves=serves)
                told = serves
            if serves:
                until_s = clock.wall_s() + readiness.wait_s
            elif clock.wall_s() >= until_s:
                await self._renew(key, driven)
                return
            await clock.sleep_wall(readiness.period_s)

    def _tell(self, key: RunKey, *, serves: bool) -> None:
        run = self._ledger.state.runs[key]
        now_ms = self._around.clock.now_ms()
        report = reports.ready(self._ledger.node, self._around.cluster, run, serves=serves, time_ms=now_ms)
        self._ledger.record(report=report)

    async def _revive(self, key: RunKey, crashes: int) -> None:
        await self._around.clock.sleep_wall(min(REVIVE_S_MAX, REVIVE_S * 2 ** min(max(0, crashes - 1), 16)))
        del self._reviving[key]
        if key in self._ledger.state.ended:
            self._ledger.record(Revived(key=key))
            self._reconcile()

"""The cards of the shared machine: how they are really cut, when they were being cut, and what goes wrong with it.

Owns: the truth about cuts, and the executor's way to them (gated, slow, may fail, hang or die in between: a card is then cut like no
pool's). Read next: `world_slots.py`, `check_slots.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from services.executor.core.journal import RunFacts
from services.executor.shell.drivers.cutting import CutError
from services.executor.shell.drivers.port import Order, Prepared
from services.runtime.virtual import VirtualClock
from tests.simulation.system.life import Life
from tests.simulation.system.machine import MachineDriver, MachineRun

CUT_S_MAX = 20.0
FAIL_SHARE, HANG_SHARE = 0.2, 0.1


@dataclass
class Cutting:
    """One card between two cuts; `until_ms` None: whoever did it died, and the card is left like that until the next."""

    card: int
    from_ms: int
    until_ms: int | None = None


class TrueCards:
    """Per card the pool it is cut for; empty: in between."""

    def __init__(self, cards: int, whole: str, clock: VirtualClock, dice: Random, calm_from_ms: int) -> None:
        self.pools = [whole] * cards
        self.cuttings: list[Cutting] = []
        self.changes: list[tuple[int, int, str]] = [(clock.now_ms(), card, whole) for card in range(cards)]
        """When which card became cut for which pool; empty: for none."""
        self._whole = whole
        self._clock = clock
        self._dice = dice
        self._calm_from_ms = calm_from_ms

    def begin(self, card: int) -> Cutting:
        self._become(card, "")
        cutting = Cutting(card, self._clock.now_ms())
        self.cuttings.append(cutting)
        return cutting

    def end(self, cutting: Cutting, pool: str) -> None:
        cutting.until_ms = self._clock.now_ms()
        self._become(cutting.card, pool)

    def lose_instances(self) -> None:
        """A machine that starts anew has no instances."""
        for card in range(len(self.pools)):
            self._become(card, self._whole)

    def _become(self, card: int, pool: str) -> None:
        self.pools[card] = pool
        self.changes.append((self._clock.now_ms(), card, pool))

    def mishap(self) -> str:
        """What goes wrong with the next step, if anything."""
        if self._clock.now_ms() >= self._calm_from_ms:
            return ""
        drawn = self._dice.random()
        return "fails" if drawn < FAIL_SHARE else "hangs" if drawn < FAIL_SHARE + HANG_SHARE else ""


class MachineCutter:
    """What one life of an executor can do with the cards."""

    def __init__(self, life: Life, cards: TrueCards, dice: Random) -> None:
        self._life = life
        self._cards = cards
        self._dice = dice

    async def cut(self, cards: Sequence[int], pool: str) -> None:
        for card in cards:
            await self._wait()
            before, mishap = self._cards.pools[card], self._cards.mishap()
            cutting = self._cards.begin(card)
            await self._wait()
            if mishap == "hangs":
                await asyncio.Event().wait()
            if mishap == "fails":
                self._cards.end(cutting, before)
                raise CutError(f"card {card}: In use by another client")
            self._cards.end(cutting, pool)

    async def measured(self, card: int, likely: Sequence[str]) -> str | None:
        await self._life.clock.sleep_wall(self._dice.uniform(0.0, 0.5))
        return self._cards.pools[card]

    async def _wait(self) -> None:
        await self._life.clock.sleep_wall(self._dice.uniform(0.0, CUT_S_MAX))


class SharedDriver:
    """The driver of a machine that is several nodes: each node's machine has its own processes and journal."""

    def __init__(self, drivers: Mapping[str, MachineDriver]) -> None:
        self._drivers = drivers

    def boot_id(self) -> str:
        return next(iter(self._drivers.values())).boot_id()

    async def prepare(self, order: Order) -> Prepared:
        return await self._drivers[order.node].prepare(order)

    async def start(self, order: Order) -> MachineRun:
        return await self._drivers[order.node].start(order)

    async def reap(self, node: str, known: Sequence[Order]) -> list[str]:
        return await self._drivers[node].reap(node, known)

    async def adopt(self, order: Order, facts: RunFacts | None) -> MachineRun | None:
        return await self._drivers[order.node].adopt(order, facts)

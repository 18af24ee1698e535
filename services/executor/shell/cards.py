"""The cards of a machine that several pools share: how they are cut, and cutting them anew when nothing of ours is on them.

Owns: which slots exist (a node never starts anything on another pool's card, whatever the allocator says), one cut at a time, its time-out,
and the word about it. The journal of the machine's own node keeps what is believed and what is under way: an executor that finds a cut
begun and not ended measures the cards and says that it was interrupted, so no death of it can leave them in between. Refuses: knowing how
it is done (`drivers/cutting.py`), and trying again by itself. Read next: `node.py`, the allocator's `slots.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from schemas.executions import CardsShaped
from schemas.placements import Reshape
from schemas.sharing import CUT_WAIT_S
from services.executor.core.journal import NodeState, Shaped, Shaping
from services.executor.core.lifecycle import State
from services.executor.core.reports import Report
from services.executor.shell.drivers.cutting import CutError, Cutter, SharedMachine
from services.executor.shell.ledger import Ledger, Surroundings

MEASURE_WAIT_S = 10.0
"""A card that does not say how it is cut within that is taken for what it was left as, if no cut came in between."""
DETAIL_LENGTH_MAX = 256
FOUND_OTHERWISE = "the cards were found cut otherwise than they were left: a restart of the machine, or somebody's hand"
INTERRUPTED = "the executor ended while the cards were being cut"

log = logging.getLogger(__name__)


class Sharing(Protocol):
    """A node that has slots on the cards."""

    @property
    def state(self) -> NodeState: ...

    def reconcile(self) -> None: ...


class Cards:
    """Of one machine. Nodes `join`, then `open` is called once their journals are read. `tell`: after a change, with how they are cut."""

    def __init__(
        self,
        machine: SharedMachine,
        cutter: Cutter,
        around: Surroundings,
        tell: Callable[[list[str]], None] = lambda pools: None,
    ) -> None:
        self.machine = machine
        self._cutter = cutter
        self._around = around
        self._tell = tell
        self._nodes: dict[str, Sharing] = {}
        self._ledger: Ledger | None = None
        self._wanted: Reshape | None = None
        self._said = (-1, -1)
        self._cutting: asyncio.Task[None] | None = None

    @property
    def pools(self) -> list[str]:
        """Per card the pool whose slots it has."""
        cut = self._books.state.cut
        return [self.machine.whole] * self.machine.cards if cut is None else cut.pools

    @property
    def _books(self) -> Ledger:
        """The machine's own node has joined before anything is asked."""
        assert self._ledger is not None
        return self._ledger

    def join(self, pool: str, node: Sharing, ledger: Ledger) -> None:
        """`ledger`: of the machine's own node, which keeps the books of the cards."""
        self._nodes[pool] = node
        if pool == self.machine.whole:
            self._ledger = ledger

    def per_card(self, pool: str) -> int:
        slots = self.machine.slots.get(pool)
        return 1 if slots is None else slots.per_card

    def closed(self, pool: str) -> set[int]:
        """Slots of the pool on which nothing may begin: of cards that are cut otherwise, or being cut."""
        under_way, per_card = self._books.state.shaping, self.per_card(pool)
        busy = () if under_way is None else under_way.cards
        there = {card for card, cut in enumerate(self.pools) if cut == pool and card not in busy}
        return {slot for slot in range(self.machine.cards * per_card) if slot // per_card not in there}

    async def open(self) -> None:
        """Measure the cards, end what a predecessor began, and say how they are cut."""
        state = self._books.state
        before, order = state.cut, state.shaping
        found = await self._measured(order)
        if order is not None:
            done = all(found[card] == order.pool for card in order.cards)
            self._record(found, order.request_id, "" if done else INTERRUPTED)
        elif before is not None and before.pools == found:
            self._record(found, before.request_id, before.detail)
        else:
            answered = None if before is None else before.request_id
            self._record(found, answered, "" if before is None else FOUND_OTHERWISE)

    def want(self, wanted: Reshape | None, placement: tuple[int, int]) -> None:
        """What the newest placement asks for."""
        self._wanted = wanted
        cut = self._books.state.cut
        answered = wanted is not None and cut is not None and cut.request_id == wanted.request_id
        if answered and self._said != placement and cut is not None:
            self._report(cut)  # asked once more: the answer was lost, or the order was given again
        self._said = placement
        self.look()

    def look(self) -> None:
        """Begin to cut if it is wanted and the cards are empty."""
        wanted, cut = self._wanted, self._books.state.cut
        if wanted is None or self._books.state.shaping is not None or cut is None:
            return
        if cut.request_id == wanted.request_id or any(self._is_held(card) for card in wanted.cards):
            return
        known = wanted.pool in (self.machine.whole, *self.machine.slots)
        if not known or any(card >= self.machine.cards for card in wanted.cards):
            self._record(cut.pools, wanted.request_id, "this machine has no such card, or is not set up for that pool")
            return
        if all(cut.pools[card] == wanted.pool for card in wanted.cards):
            self._record(cut.pools, wanted.request_id, "")
            return
        order = Shaping(request_id=wanted.request_id, cards=list(wanted.cards), pool=wanted.pool)
        self._books.record(order)
        self._books.sync()
        self._cutting = self._around.nursery.spawn(self._cut(order))

    async def _cut(self, order: Shaping) -> None:
        detail = ""
        try:
            await asyncio.wait_for(self._cutter.cut(order.cards, order.pool), CUT_WAIT_S)
        except TimeoutError:
            detail = f"not finished within {CUT_WAIT_S:.0f} s"
        except CutError as error:
            detail = str(error)
        found = await self._measured(order, done=not detail)
        if not detail and any(found[card] != order.pool for card in order.cards):
            detail = "the cards are not cut as they should be, although every step said that it succeeded"
        self._record(found, order.request_id, detail)
        for node in self._nodes.values():
            node.reconcile()
        self.look()

    async def _measured(self, order: Shaping | None = None, *, done: bool = False) -> list[str]:
        """Per card what it says of itself. One that doesn't is what it was left as, or nobody's, where a cut began that wasn't `done`."""
        found = []
        for card, before in enumerate(self.pools):
            likely = [before]
            if order is not None and card in order.cards:
                likely = [order.pool] if done else [order.pool, before]
            said: str | None = None
            try:
                said = await asyncio.wait_for(self._cutter.measured(card, likely), MEASURE_WAIT_S)
            except TimeoutError:
                log.warning("card %d does not say how it is cut", card, extra={"node_id": self.machine.name})
            found.append(said if said is not None else likely[0] if len(likely) == 1 else "")
        return found

    def _is_held(self, card: int) -> bool:
        for pool, node in self._nodes.items():
            per_card = self.per_card(pool)
            runs = (run for run in node.state.runs.values() if run.state is not State.WAITING)
            if any(slot // per_card == card for run in runs for slot in run.held):
                return True
        return False

    def _record(self, pools: list[str], request_id: str | None, detail: str) -> None:
        if detail:
            log.warning("cards: %s", detail, extra={"node_id": self.machine.name})
        before = self._books.state.cut
        revision = max(0 if before is None else before.revision + 1, self._around.clock.wall_ms())
        shaped = Shaped(revision=revision, pools=pools, request_id=request_id, detail=detail[:DETAIL_LENGTH_MAX])
        self._books.record(shaped, report=self._said_of(shaped))
        self._books.sync()
        self._tell(pools)

    def _report(self, shaped: Shaped) -> None:
        self._books.record(report=self._said_of(shaped))

    def _said_of(self, shaped: Shaped) -> Report:
        now_ms = self._around.clock.now_ms()
        event = CardsShaped(
            node=self.machine.name,
            cluster=self._around.cluster,
            time_ms=now_ms,
            revision=shaped.revision,
            pools=shaped.pools,
            request_id=shaped.request_id,
            done=not shaped.detail,
            detail=shaped.detail,
        )
        return Report(event, id=f"{self.machine.name}/cards/{shaped.revision}/{now_ms}", key=self.machine.name)

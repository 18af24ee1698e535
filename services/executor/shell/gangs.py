"""The nodes of a gang hear of each other: what was said is collected, what is missing waited for.

Owns: what is known of gangs that are about to start, the repetition of this node's own word until all have been heard, and
listening to `executions` from the moment the first gang with nodes elsewhere is to start. Refuses: the verdict (`core/gang.py`).
Read next: `loop.py`, `node.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from schemas.codec import DecodeError, decode_record
from schemas.executions import JobPrepared
from schemas.records import Record
from schemas.registry import TYPE_OF
from services.executor.core.gang import Missing, Verdict, verdict
from services.executor.core.journal import run_key
from services.executor.shell.live import Live
from services.runtime.clock import Clock

PREPARED_TYPE = TYPE_OF[JobPrepared]
TOLD_AFTER_S = 60.0
"""A gang that still waits after that is worth a line in the log."""
WAIT_S_MAX = 600.0
"""So long a prepared node waits for the others, by the wall: longer than a node takes to boot or to fetch what it runs, and short against
the hours for which all other nodes of the gang would stand idle beside a silent one."""
REPEAT_S = 1.0
"""Wall seconds after which a node that still waits says again that it is prepared: others may have come later."""
GANGS_KEPT_MAX = 1_000
"""Attempts remembered; only those of the last seconds are ever asked for, and what was forgotten is said again."""


log = logging.getLogger(__name__)


class Gangs:
    """One per executor. `mine`: its own nodes, which need no topic to hear each other."""

    def __init__(self, mine: tuple[str, ...], clock: Clock) -> None:
        self._clock = clock
        self._mine = frozenset(mine)
        self._said: dict[str, dict[str, JobPrepared]] = {}
        self._heard = asyncio.Event()
        self.wanted = asyncio.Event()
        """Set once there is a gang with nodes elsewhere: from then on `executions` is listened to."""

    def hear(self, event: JobPrepared) -> None:
        """One node of a gang is prepared."""
        key = run_key(event.job_id, event.attempt)
        self._said.setdefault(key, {})[event.node] = event
        while len(self._said) > GANGS_KEPT_MAX:
            del self._said[next(iter(self._said))]
        self._heard.set()

    def hear_records(self, records: list[Record]) -> None:
        """Take from `executions` what is about gangs; anything unreadable there is its readers' business."""
        for record in records:
            if record.header("ce_type") != PREPARED_TYPE:
                continue
            try:
                event = decode_record(record).event
            except DecodeError:
                continue
            if isinstance(event, JobPrepared) and event.node not in self._mine:
                self.hear(event)

    async def complete(self, mine: JobPrepared, nodes: list[str], live: Live, say: Callable[[], None]) -> Verdict:
        """Wait until all nodes are prepared, or this one must not take part, or is no longer wanted or waited too long (`Missing`)."""
        foreign = not self._mine.issuperset(nodes)
        self.hear(mine)
        key = run_key(mine.job_id, mine.attempt)
        if foreign:
            self.wanted.set()
        unwanted = asyncio.ensure_future(live.unwanted.wait())
        told_s = self._clock.wall_s() + TOLD_AFTER_S
        until_s = self._clock.wall_s() + WAIT_S_MAX
        try:
            while True:
                if foreign:
                    say()
                if self._clock.wall_s() >= told_s:
                    told_s = float("inf")
                    missing = [node for node in nodes if node not in self._said.get(key, {})]
                    log.warning("%s waits for %s to be prepared", key, ", ".join(missing), extra={"node_id": mine.node})
                repeat = asyncio.ensure_future(self._clock.sleep_wall(REPEAT_S))
                while not repeat.done():
                    found = verdict(nodes, mine.node, self._said.get(key, {}))
                    over = live.unwanted.is_set() or self._clock.wall_s() >= until_s
                    if over or not isinstance(found, Missing):
                        repeat.cancel()
                        return found
                    self._heard.clear()
                    heard = asyncio.ensure_future(self._heard.wait())
                    await asyncio.wait((heard, repeat, unwanted), return_when=asyncio.FIRST_COMPLETED)
                    heard.cancel()
        finally:
            unwanted.cancel()

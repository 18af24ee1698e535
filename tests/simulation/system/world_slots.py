"""A machine whose cards two pools share, in some seeds: its jobs for halves of cards, and orders to cut cards anew.

Owns: a stream of draws of its own, so that a seed without it is the world it always was. In the end one card stays cut in halves, so that
all that waits for halves drains. Refuses: what goes wrong with the cards (`machine_cards.py`). Read next: `world.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec

from schemas.base import Event
from schemas.catalog import Pool, SlotKind, Slots
from schemas.commands import RepartitionCards
from schemas.jobs import CheckpointMode, CheckpointPolicy, JobCancelled, JobSpec, JobSubmitted, Kind
from schemas.messages import message
from schemas.records import Message

SHARING_SHARE = 0.3
"""Of all seeds."""
MACHINE, CARDS, HALF = "n90", 2, "h100-half"
HALVES = f"{MACHINE}+{HALF}"
CARD_MIB = 81_920
JOBS = 6
ORDERS_MAX = 6
MINUTE_MS = 60_000
LOOKS_AGAIN_MIN = 90
"""After the span the operator orders the last cuts once more: the longest absence of a machine (67 minutes) is over, and it may have
come back with whole cards after the orders before were found done already."""


def machine_of(node: str) -> str:
    """The machine that a node is a pool's part of, or is (`schemas.sharing.node_name`)."""
    return node.partition("+")[0]


class Sharing:
    """What a seed's shared machine is: `on` False leaves everything as it is."""

    def __init__(self, seed: int, cluster: str, pool: str, partition: int) -> None:
        self._dice = Random(f"{seed}/slots")
        self.on = self._dice.random() < SHARING_SHARE
        self.slots = Slots(of=pool, kind=SlotKind.MIG, per_card=2, profile="3g.40gb")
        self.half = Pool(
            gpus=2 * CARDS, node_gpus=2 * CARDS, gpu_model="H100", memory_mib=CARD_MIB // 2, slots=self.slots
        )
        self._cluster = cluster
        self._pool = pool
        self._partition = partition

    def publications(self, start_ms: int, span_ms: int) -> Iterator[tuple[int, Message]]:
        """Jobs of halves within the span, orders at any time, and the last ones after it."""
        if not self.on:
            return
        for number in range(JOBS):
            yield from self._job(number, start_ms, span_ms)
        dice, until_ms = self._dice, start_ms + span_ms
        yield self._order(0, start_ms + dice.randrange(0, 10 * MINUTE_MS), [1], HALF, dice.choice([0.0, 300.0]))
        for number in range(1, dice.randint(1, ORDERS_MAX) + 1):
            at_ms = start_ms + dice.randrange(0, span_ms)
            cards, pool = dice.choice([[0], [1], [0, 1]]), dice.choice([HALF, self._pool])
            sent = self._order(number, at_ms, cards, pool, dice.choice([0.0, 120.0, 900.0, 86_400.0]))
            yield sent
            if dice.random() < 0.3:  # an operator who is unsure gives the very same order again, as a new command
                again_ms = at_ms + dice.randrange(0, 20 * MINUTE_MS)
                yield self._order(number, again_ms, cards, pool, 300.0, f"again-{again_ms}")
        for number, minutes in enumerate((0, 20, LOOKS_AGAIN_MIN)):
            for later, (card, pool) in enumerate([(1, HALF), (0, self._pool)]):
                at_ms = until_ms + (minutes + 10 * later) * MINUTE_MS
                yield self._order(90 + 2 * number + later, at_ms, [card], pool, 60.0)

    def _job(self, number: int, start_ms: int, span_ms: int) -> Iterator[tuple[int, Message]]:
        dice, job_id = self._dice, f"h{number:02}"
        at_ms = start_ms + dice.randrange(0, span_ms - 15 * MINUTE_MS)
        sizes = dice.choice([[1], [1], [2], [1, 2]])
        run_s = {str(size): round(dice.choice([120.0, 600.0, 1200.0]) / size, 1) for size in sizes}
        saves = CheckpointPolicy(mode=CheckpointMode.SIGNAL, wait_s=5.0) if dice.random() < 0.5 else CheckpointPolicy()
        spec = JobSpec(
            kind=Kind.TRAINING,
            team="blue",
            user="ann",
            priority=dice.randint(1, 5),
            sizes=sizes,
            pools=[HALF],
            memory_mib=dice.choice([0, 20_000, CARD_MIB // 2]),
            time_limit_s=4 * 3600.0,
            checkpoint=saves,
            template="simulated",
            labels={"simulated/run_s": msgspec.json.encode(run_s).decode()},
        )
        yield self._said(at_ms, JobSubmitted(job_id=job_id, submitted_ms=at_ms, spec=spec), job_id, "submitted")
        if dice.random() < 0.15:
            cancel_ms = at_ms + dice.randrange(0, 40 * MINUTE_MS)
            yield self._said(cancel_ms, JobCancelled(job_id=job_id, cancelled_ms=cancel_ms), job_id, "cancelled")

    def _order(
        self, number: int, at_ms: int, cards: list[int], pool: str, deadline_s: float, what: str = "ordered"
    ) -> tuple[int, Message]:
        order = RepartitionCards(
            request_id=f"cut-{number}",
            cluster=self._cluster,
            node=MACHINE,
            cards=cards,
            pool=pool,
            ordered_ms=at_ms,
            deadline_s=deadline_s,
        )
        return self._said(at_ms, order, MACHINE, f"cut-{number}-{what}", partition=self._partition)

    def _said(
        self, due_ms: int, event: Event, key: str, what: str, partition: int | None = None
    ) -> tuple[int, Message]:
        sent = message(
            event,
            key=key,
            id=f"{key}/{what}",
            source="/upstream/simulation",
            time_ms=due_ms,
            traceparent=f"00-{self._dice.getrandbits(128) | 1:032x}-{1:016x}-01",
            partition=partition,
        )
        return due_ms, sent

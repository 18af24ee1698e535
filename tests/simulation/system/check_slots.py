"""Judges the shared machine by what really was: a card is one pool's at a time, is cut only when it is empty, and the log knows how.

Owns: the comparison of slots with cards. Refuses: anybody's state but the log's last. Read next: `checks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.decisions import Effect, Waits
from schemas.executions import CardsShaped
from services.allocator.core.reasons import Reason
from services.allocator.core.state import State
from tests.simulation.system.evidence import Evidence
from tests.simulation.system.machine import Held
from tests.simulation.system.machine_cards import TrueCards
from tests.simulation.system.world import POOL
from tests.simulation.system.world_slots import CARD_MIB, CARDS, HALF, HALVES, MACHINE

FOR_EVER = 2**62


def check_slots(evidence: Evidence, state: State) -> list[str]:
    """Sentences about what must not happen on shared cards."""
    cards = evidence.cards
    if cards is None:
        return []
    found: list[str] = []
    for card in range(CARDS):
        holds = _holds(evidence, card)
        found += _too_much(card, holds)
        found += _on_what_is_not_there(card, holds, cards)
        for cutting in cards.cuttings:
            if cutting.card != card:
                continue
            until_ms = cutting.from_ms if cutting.until_ms is None else cutting.until_ms
            for held, _, _ in holds:
                if held.from_ms <= until_ms and _until(held) > cutting.from_ms:
                    found.append(f"card {card} was being cut while {held.key[0]} was on it")
    return found + (_in_the_end(evidence, state) if evidence.drained else [])


def said_of_orders(state: State, effects: Sequence[Effect]) -> list[str]:
    """Nobody is told to wait for what nobody ordered: to have cards cut, or to keep GPUs for a window."""
    machines = {order.machine for order in state.repartitions.values()}
    cut = {node.pool for node in state.nodes.values() if node.machine in machines}
    withheld = {f"{order}/{node}" for order in state.repartitions for node in state.nodes}
    leaving = {part.node for app in state.apps.values() for part in app.parts if state.nodes[part.node].draining}
    kept = bool(set(state.reservations) - withheld or state.preemptions or leaving)
    found = []
    for effect in effects:
        if not isinstance(effect, Waits):
            continue
        if effect.reason == Reason.TO_BE_CUT.public_name and cut.isdisjoint(state.jobs[effect.job_id].pools):
            found.append(f"{effect.job_id} waits for cards to be cut, and no such order is open")
        if effect.reason == Reason.RESERVED.public_name and not kept:
            found.append(f"{effect.job_id} waits for a reservation, and there is none")
    return found


def _holds(evidence: Evidence, card: int) -> list[tuple[Held, int, str]]:
    """Who was on the card, with how much of its memory, and of which pool."""
    whole = [(held, CARD_MIB, POOL) for held in evidence.machines[MACHINE].held if card in held.gpus]
    halves = [
        (held, CARD_MIB // 2 * sum(slot // 2 == card for slot in held.gpus), HALF)
        for held in evidence.machines[HALVES].held
        if any(slot // 2 == card for slot in held.gpus)
    ]
    return [*whole, *halves]


def _too_much(card: int, holds: list[tuple[Held, int, str]]) -> list[str]:
    """At no moment more memory is given away than the card has: also, no whole job beside halves."""
    found = []
    for held, _, _ in holds:
        at_once = [(other, mib) for other, mib, _ in holds if other.from_ms <= held.from_ms < _until(other)]
        if sum(mib for _, mib in at_once) > CARD_MIB:
            names = sorted(other.key[0] for other, _ in at_once)
            found.append(f"card {card} is given away more than once: {names}")
    return found


def _on_what_is_not_there(card: int, holds: list[tuple[Held, int, str]], cards: TrueCards) -> list[str]:
    """Whatever begins finds the card cut for its own pool."""
    found = []
    for held, _, pool in holds:
        cut = [become for at_ms, changed, become in cards.changes if changed == card and at_ms <= held.from_ms][-1]
        if cut != pool:
            found.append(f"{held.key[0]} began on card {card}, which was cut for {cut or 'nobody'}")
    return found


def _until(held: Held) -> int:
    return FOR_EVER if held.until_ms is None else held.until_ms


def _in_the_end(evidence: Evidence, state: State) -> list[str]:
    """Every order is over, and all know how the cards are cut."""
    cards, found = evidence.cards, []
    assert cards is not None
    told = [entry.event for entry in evidence.said["executions"] if isinstance(entry.event, CardsShaped)]
    last = max(told, key=lambda event: event.revision)
    known = state.cuts[MACHINE].pools if MACHINE in state.cuts else []
    if not last.pools == known == cards.pools:
        found.append(f"cards are {cards.pools}, the executor said {last.pools}, the log knows {known}")
    if state.repartitions:
        found.append(f"an order to cut cards was never over: {state.repartitions}")
    if any(name.startswith("cut-") for name in state.reservations):
        found.append("cards stay withheld although no order is open")
    return found

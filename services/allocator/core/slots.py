"""Cards that several pools share: which slots of a machine's nodes exist at present, and how cards go from one pool to another. Pure.

A machine whose cards are shared is one node per pool; a node's local index is card x slots per card + slot, so no re-partition ever
moves one. Of each card the slots of one pool exist, those of the others are absent: how it is cut is what its executor said last.
A re-partition is a hard row of the grid (reservations of the cards' slots in every pool) from the order on, in the pool that gets them
until they are expected (`coming.py`); when nothing is left on the cards, the placement of the machine's own node asks the executor to
cut them, once, and its answer ends the matter whatever it is.
Refuses: cutting a card that something is on, and knowing how it is done. Read next: `state.py`, the executor's `cards.py`.
"""

from __future__ import annotations

from schemas.commands import RepartitionCards
from schemas.executions import CardsShaped
from schemas.nodes import Health
from schemas.placements import Reshape
from schemas.records import Now
from services.allocator.core.gpu_states import CardState
from services.allocator.core.layout import Layout, slots_on
from services.allocator.core.lifecycle import part_ended
from services.allocator.core.state import (
    PART_LOST,
    PARTS_ALIVE,
    Changes,
    Cut,
    Node,
    Part,
    Repartition,
    Reserved,
    State,
)

FOR_EVER_MS = 4_102_444_800_000
"""Cards under re-partition are withheld until it is over: its executor answers in a stated time, or its node is lost."""
CARD_CAUSE = "card_repartitioned"


def nodes_of_machine(state: State, machine: str) -> list[Node]:
    """A machine's nodes, one per pool; empty for a machine whose cards are not shared."""
    return sorted((node for node in state.nodes.values() if node.machine == machine), key=lambda node: node.node)


def called(state: State, name: str) -> list[Node]:
    """The nodes an operator means by a name: a machine means all of its nodes."""
    return [node for node in state.nodes.values() if name in (node.node, node.machine)]


def mark_absent(state: State, node: Node) -> None:
    """Which of the node's slots don't exist at present: all, until the machine's executor has said how its cards are cut."""
    if not node.machine:
        return
    cut = state.cuts.get(node.machine)
    pools = [] if cut is None else cut.pools
    here = [card for card, pool in enumerate(pools) if pool == node.pool]
    there = set(slots_on(node, here))
    node.absent = [slot for slot in range(node.size) if slot not in there]


def cards_shaped(state: State, event: CardsShaped, traceparent: str, now: Now, changes: Changes) -> None:
    """How the cards are cut now. Whatever is believed to be on a slot that is no more is lost; the order that this answers is over."""
    known = state.cuts.get(event.node)
    if known is not None and event.revision < known.revision:
        return  # from before an executor's restart, sent late
    state.cuts[event.node] = Cut(event.revision, list(event.pools), "" if event.done else event.detail)
    order = state.repartitions.get(event.request_id or "")
    if order is not None and order.machine == event.node:
        _over(state, order)
    for node in nodes_of_machine(state, event.node):
        mark_absent(state, node)
        _vacate(state, node, now, changes)
        changes.nodes[node.node] = None


def repartition_cards(state: State, event: RepartitionCards, traceparent: str, now: Now, changes: Changes) -> None:
    """Withhold the cards from now on; earlier orders lose them, but for the one that its executor was asked for: that may be under way,
    and only its answer ends it. What is cut for the pool already, and stays so, needs nothing; of a machine that is lost nobody knows, as
    a restart may have cut its cards otherwise."""
    nodes, cut = nodes_of_machine(state, event.node), state.cuts.get(event.node)
    if cut is None or event.request_id in state.repartitions or not any(node.pool == event.pool for node in nodes):
        return
    known = [card for card in sorted(set(event.cards)) if card < len(cut.pools)]
    begun: set[int] = set()
    for earlier in [order for order in state.repartitions.values() if order.machine == event.node]:
        if earlier.asked:
            begun.update(earlier.cards)  # what these cards will be nobody knows
            continue
        earlier.cards = [card for card in earlier.cards if card not in known]
        _withhold(state, earlier, now)
    changes.nodes.update(dict.fromkeys(node.node for node in nodes))
    lost = any(node.health is Health.LOST for node in nodes)
    cards = [card for card in known if lost or cut.pools[card] != event.pool or card in begun]
    deadline_ms = min(FOR_EVER_MS, event.ordered_ms + int(event.deadline_s * 1000))
    order = Repartition(event.request_id, event.node, cards, event.pool, deadline_ms)
    state.repartitions[event.request_id] = order
    _withhold(state, order, now)


def ask_for_reshapes(state: State, now: Now, changes: Changes) -> None:
    """Orders whose cards are empty by now, one per machine at a time: its placement says so from this decision on."""
    busy = {order.machine for order in state.repartitions.values() if order.asked}
    for order in state.repartitions.values():
        if order.machine not in busy and not _occupied(state, order):
            order.asked, order.asked_ms = True, now.domain_ms
            busy.add(order.machine)
            changes.nodes[order.machine] = None


def forget_machine(state: State, node: Node) -> list[str]:
    """A node is gone for good: with its machine's own node, orders to cut that machine's cards end; their names. How its cards are cut is
    believed until its executor says it anew, whatever number that word has."""
    if node.machine != node.node:
        return []
    orders = [order for order in state.repartitions.values() if order.machine == node.machine]
    for order in orders:
        _over(state, order)
    if node.machine in state.cuts:
        state.cuts[node.machine].revision = 0
    return [order.request_id for order in orders]


def reshape_of(state: State, node: Node) -> Reshape | None:
    """What the placement of a machine's own node asks for."""
    for order in state.repartitions.values():
        if order.asked and order.machine == node.node:
            return Reshape(request_id=order.request_id, cards=order.cards, pool=order.pool)
    return None


def withheld_on(state: State, node: Node) -> list[int]:
    """Slots of the node on cards that are to be cut anew."""
    orders = (order for order in state.repartitions.values() if node.machine and order.machine == node.machine)
    return slots_on(node, sorted({card for order in orders for card in order.cards}))


def card_states(state: State, layout: Layout) -> list[int]:
    """Per GPU of a pool how its card is cut; empty where all are whole, or cut for it to stay so."""
    if not any(node.absent or (node.machine and state.repartitions) for node in layout.nodes):
        return []
    found: list[int] = []
    for node in layout.nodes:
        withheld, absent = set(withheld_on(state, node)), set(node.absent)
        for slot in range(node.size):
            sound = node.takes_new and node.healthy[slot] and slot not in node.quarantined
            elsewhere = CardState.ELSEWHERE if sound and slot in absent else CardState.HERE
            found.append(CardState.TO_BE_CUT if slot in withheld and slot not in absent else elsewhere)
    return found


def cards_detail(state: State, node: Node) -> str:
    """Why the last cut on a machine failed, for people who look at its own node."""
    cut = state.cuts.get(node.node)
    return "" if cut is None else cut.detail


def is_due_to_leave(state: State, part: Part, now_ms: int) -> bool:
    """Whether a part is on a card under re-partition whose deadline has passed."""
    node = state.nodes.get(part.node)
    return node is not None and any(
        order.machine == node.machine
        and now_ms >= order.deadline_ms
        and not set(part.gpus).isdisjoint(slots_on(node, order.cards))
        for order in state.repartitions.values()
    )


def _withhold(state: State, order: Repartition, now: Now) -> None:
    """A hard row per node of the machine; an order without cards is over."""
    if not order.cards:
        _over(state, order)
        return
    for node in nodes_of_machine(state, order.machine):
        name = _reservation(order, node)
        state.reservations[name] = Reserved(name, node.node, slots_on(node, order.cards), now.domain_ms, FOR_EVER_MS)


def _over(state: State, order: Repartition) -> None:
    del state.repartitions[order.request_id]
    for node in nodes_of_machine(state, order.machine):
        state.reservations.pop(_reservation(order, node), None)


def is_row_of_order(state: State, reservation_id: str) -> bool:
    """Whether a reservation is nobody's but a row of an open order to cut cards."""
    return reservation_id.partition("/")[0] in state.repartitions


def _reservation(order: Repartition, node: Node) -> str:
    return f"{order.request_id}/{node.node}"


def _occupied(state: State, order: Repartition) -> bool:
    on = {(node.node, slot) for node in nodes_of_machine(state, order.machine) for slot in slots_on(node, order.cards)}
    jobs = (part for job in state.jobs.values() for part in job.parts if part.status in PARTS_ALIVE)
    apps = (part for app in state.apps.values() for part in app.parts)
    return any((part.node, gpu) in on for parts in (jobs, apps) for part in parts for gpu in part.gpus)


def _vacate(state: State, node: Node, now: Now, changes: Changes) -> None:
    absent = set(node.absent)
    if not absent:
        return
    for job in list(state.jobs.values()):
        on_it = [part for part in job.parts if part.node == node.node and part.status in PARTS_ALIVE]
        if any(not absent.isdisjoint(part.gpus) for part in on_it):
            part_ended(state, job, node.node, PART_LOST, now.domain_ms, CARD_CAUSE, changes)
    for app in state.apps.values():
        if any(part.node == node.node and not absent.isdisjoint(part.gpus) for part in app.parts):
            changes.app(app)
            for part in app.parts:
                if part.node == node.node:
                    part.gpus = [gpu for gpu in part.gpus if gpu not in absent]
            app.parts = [part for part in app.parts if part.gpus]
            there = {part.node for part in app.parts}
            app.unheard = {name: since_ms for name, since_ms in app.unheard.items() if name in there}

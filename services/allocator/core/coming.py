"""When slots are expected to be there whose cards are being cut for their pool: so jobs that wait for them have a planned start. Pure.

Of an open order to cut cards anew (`slots.py`) the planner sees, in the pool that gets them, slots that are closed until then and usable
afterwards; in the pools that lose them, nothing but a hard row without end. It is a belief like a forecast: what is on the cards leaves
when it is expected to (P50), or at the order's deadline, and a cut takes what its executor gives it at most. No slot is handed out
before it is there: what starts now is checked against how the cards are cut.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.sharing import CUT_WAIT_S
from services.allocator.core.layout import Layout, slots_on
from services.allocator.core.slots import nodes_of_machine
from services.allocator.core.state import PARTS_ALIVE, Job, Node, Repartition, State

LeftS = Callable[[Job, int], tuple[float, float]]
"""(P50, P90) seconds that a placed job still needs: `pose.remaining_s`."""


def coming_ms(state: State, layout: Layout, now_ms: int, left_s: LeftS) -> dict[int, int]:
    """By grid number of the pool, when a slot that is not there yet is expected: only of cards that one order alone is about, and only
    where nothing else keeps new work off the slot."""
    found: dict[int, int] = {}
    for node in layout.nodes if state.repartitions else ():
        for order in state.repartitions.values():
            if not node.machine or order.machine != node.machine or order.pool != node.pool:
                continue
            end_ms = over_ms(state, order, now_ms, left_s)
            for slot in slots_on(node, [card for card in order.cards if _is_alone(state, order, card)]):
                if _is_sound(node, slot):
                    found[layout.first[node.node] + slot] = end_ms
    return found


def over_ms(state: State, order: Repartition, now_ms: int, left_s: LeftS) -> int:
    """When the order is expected to be done; in the future, however late it is."""
    cut_ms = int(CUT_WAIT_S * 1000)
    if order.asked:
        return max(now_ms + 1, order.asked_ms + cut_ms)
    begin_ms = now_ms
    for other in state.repartitions.values():
        if other.asked and other.machine == order.machine:  # one cut at a time
            begin_ms = max(begin_ms, other.asked_ms + cut_ms)
    on = {(node.node, slot) for node in nodes_of_machine(state, order.machine) for slot in slots_on(node, order.cards)}
    for job in state.jobs.values():
        alive = (part for part in job.parts if part.status in PARTS_ALIVE)
        if any((part.node, gpu) in on for part in alive for gpu in part.gpus):
            begin_ms = max(begin_ms, _leaves_ms(job, order, now_ms, left_s))
    return begin_ms + cut_ms


def _leaves_ms(job: Job, order: Repartition, now_ms: int, left_s: LeftS) -> int:
    """As expected, or asked to by the order's deadline: then it may take its checkpoint wait."""
    if job.stop_cause:
        return now_ms
    told_ms = max(now_ms, order.deadline_ms) + int(job.spec.checkpoint.wait_s * 1000)
    return min(told_ms, now_ms + int(left_s(job, now_ms)[0] * 1000))


def _is_alone(state: State, order: Repartition, card: int) -> bool:
    others = (other for other in state.repartitions.values() if other is not order and other.machine == order.machine)
    return not any(card in other.cards for other in others)


def _is_sound(node: Node, slot: int) -> bool:
    return node.takes_new and node.healthy[slot] and slot not in node.quarantined

"""Nodes that leave: lost because nobody hears them, or gone for good because an operator said so.

Owns: what becomes of their jobs, applications, reservations and orders to cut cards, and what is remembered of a node that was forgotten:
enough to tell a late word about its former life from the first one about the next, and to say again that nothing of ours shall run there.
Refuses: deciding who is silent or gone (telemetry's `silence.py`, `forgotten.py`). Read next: `fold.py`, `project.py`.
"""

from __future__ import annotations

from schemas.executions import StopCause
from schemas.nodes import Health, NodeForgotten, NodeStateChanged
from schemas.records import Now
from services.allocator.core.lifecycle import part_ended
from services.allocator.core.slots import forget_machine, is_row_of_order
from services.allocator.core.state import PART_LOST, PARTS_ALIVE, Changes, Forgotten, Node, State

FORGOTTEN_MAX = 1_000
"""Nodes remembered after they were forgotten; the oldest go first, and may then be brought back by a word of their former life."""
NEXT_LIFE_MS = 15 * 86_400_000
"""Half of the time that telemetry remembers a node's last incarnation: what is said so much later is of its next life in any case."""


def release_node(state: State, node: str, now: Now, changes: Changes) -> None:
    """The node is gone: its parts are lost, other nodes' parts of the same gangs are stopped, applications lose its GPUs."""
    for job in [job for job in state.jobs.values() if any(part.node == node for part in job.parts)]:
        if any(part.node == node and part.status in PARTS_ALIVE for part in job.parts):
            part_ended(state, job, node, PART_LOST, now.domain_ms, StopCause.NODE_LOST.value, changes)
    for app in state.apps.values():
        if any(part.node == node for part in app.parts):
            changes.app(app)
            app.parts = [part for part in app.parts if part.node != node]
            app.unheard.pop(node, None)


def node_forgotten(state: State, event: NodeForgotten, traceparent: str, now: Now, changes: Changes) -> None:
    """It leaves the grid with all that names it. Nothing is placed on it any more, and its executor is told so, should it ever ask."""
    node = state.nodes.get(event.node)
    if node is None:
        if not _is_former(state, event.node, event.incarnation, event.time_ms):
            _remember(state, Node(event.node, event.pool, 0, 0, Health.LOST, []), event, [], changes)
        return
    if (event.incarnation, event.time_ms) < (node.incarnation, node.said_ms):
        return  # it came back since
    release_node(state, event.node, now, changes)
    for app in state.apps.values():
        app.ready = [other for other in app.ready if other != event.node]
    state.preemptions = {
        job_id: held
        for job_id, held in state.preemptions.items()
        if all(part.node != event.node for part in held.placed)
    }
    ended = forget_machine(state, node)
    for name in [name for name, reserved in state.reservations.items() if reserved.node == event.node]:
        del state.reservations[name]
        if not is_row_of_order(state, name):
            ended.append(name)
    del state.nodes[event.node]
    _remember(state, node, event, ended, changes)


def is_of_former_life(state: State, event: NodeStateChanged) -> bool:
    """Whether a state of a node that isn't known is from before it was forgotten."""
    return _is_former(state, event.node, event.incarnation, event.time_ms)


def is_ordered_before(state: State, node: str, ordered_ms: int) -> bool:
    """Whether an order about a node that isn't known is from before it was forgotten: topics are read side by side."""
    known = state.forgotten.get(node)
    return known is not None and ordered_ms <= known.ordered_ms


def enrol(state: State, node: Node) -> None:
    """A node comes back after it was forgotten. What its executor said last of the machine still holds, until it says something else."""
    known = state.forgotten.pop(node.node, None)
    if known is not None:
        node.boot_id, node.datasets, node.quarantined = known.node.boot_id, known.node.datasets, known.node.quarantined


def _is_former(state: State, name: str, incarnation: int, time_ms: int) -> bool:
    known = state.forgotten.get(name)
    if known is None:
        return False
    return incarnation <= known.node.incarnation and time_ms < known.node.said_ms + NEXT_LIFE_MS


def _remember(state: State, node: Node, event: NodeForgotten, ended: list[str], changes: Changes) -> None:
    node.incarnation, node.said_ms = event.incarnation, event.time_ms
    state.forgotten.pop(event.node, None)
    state.forgotten[event.node] = Forgotten(node, event.ordered_ms, ended)
    while len(state.forgotten) > FORGOTTEN_MAX:
        del state.forgotten[next(iter(state.forgotten))]
    changes.nodes[event.node] = None

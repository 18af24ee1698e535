"""Judges what applications hold: they lose GPUs by a decision or because their node or its cards are said to be gone, by nothing else.

Starts that nobody confirms are given up, those of applications like those of jobs. Owns: who held what before and after a decision's
inputs. Refuses: what decisions take (`verify_commit`), and whether it really runs there (`check_machines.py`). Read next: `check_log.py`
(who asks), docs/executors.md, docs/lifecycle.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.decisions import DecisionInput, Effect, Scaled
from schemas.executions import CardsShaped
from schemas.jobs import JobRevoked
from schemas.nodes import NodeForgotten, NodeStateChanged
from services.allocator.core.state import State
from tests.simulation.system.evidence import heard
from tests.simulation.system.world_slots import machine_of

Cards = dict[str, tuple[int, ...]]
Held = dict[str, Cards]
"""Cards by node, by application."""


def held_by_applications(state: State) -> Held:
    """What the log leaves them."""
    return {app_id: {part.node: tuple(sorted(part.gpus)) for part in app.parts} for app_id, app in state.apps.items()}


def spoken_of(state: State) -> Held:
    """The same without nodes that never said a word about it."""
    held = held_by_applications(state)
    return {
        app_id: {node: cards for node, cards in held[app_id].items() if node not in app.unheard}
        for app_id, app in state.apps.items()
    }


def taken_without_a_word(before: Held, state: State, inputs: Sequence[DecisionInput]) -> list[str]:
    """Sentences about one decision; `before`: `spoken_of` ahead of its inputs."""
    after, found = held_by_applications(state), []
    lost = [
        (app_id, node)
        for app_id, held in before.items()
        for node, cards in held.items()
        if app_id in after and not set(cards) <= set(after[app_id].get(node, ()))
    ]
    if lost:
        events = [heard(item) for item in inputs]
        cancelled = {event.job_id for event in events if isinstance(event, JobRevoked)}
        gone = {event.node for event in events if isinstance(event, NodeStateChanged | NodeForgotten | CardsShaped)}
        found += [
            f"{app_id} loses its GPUs on {node}, and nobody says anything of that node"
            for app_id, node in lost
            if app_id not in cancelled and not {node, machine_of(node)} & gone
        ]
    return found


def given_otherwise(state: State, effects: Sequence[Effect]) -> list[str]:
    """Sentences about one decision; `state`: after its effects."""
    held, found = held_by_applications(state), []
    for effect in effects:
        if isinstance(effect, Scaled):
            given = {part.node: tuple(sorted(part.gpus)) for part in effect.placed}
            if held.get(effect.app_id) != given:
                found.append(f"{effect.app_id} is given {given} and holds {held.get(effect.app_id)}")
    return found

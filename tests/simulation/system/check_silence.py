"""Judges what an executor's silence takes from applications: nothing once it has said a word about them. Starts that nobody confirms are
given up, those of applications like those of jobs.

Owns: who held what before and after a decision's inputs. Refuses: nodes that these inputs speak of, since those may be gone or cut anew.
Read next: `check_log.py` (who asks), docs/executors.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.decisions import DecisionInput
from services.allocator.core.state import State
from tests.simulation.system.evidence import heard

Held = dict[str, set[str]]


def held_by_applications(state: State) -> Held:
    """Nodes by application, but for those that never said a word about it."""
    return {app_id: {part.node for part in app.parts} - app.unheard.keys() for app_id, app in state.apps.items()}


def taken_in_silence(before: Held, state: State, inputs: Sequence[DecisionInput]) -> list[str]:
    """Sentences about one decision; `before`: ahead of its inputs."""
    after, found = held_by_applications(state), []
    silent = {name for name, node in state.nodes.items() if node.silent_until_ms}
    for app_id, nodes in before.items() if silent else ():
        lost = (nodes - after.get(app_id, nodes)) & silent
        if lost:
            spoken_of = {getattr(heard(item), "node", "") for item in inputs}
            found += [
                f"{app_id} loses its GPUs on {node}, whose executor says nothing" for node in sorted(lost - spoken_of)
            ]
    return found

"""A gang over several nodes starts on all of them or on none: what its nodes have to tell each other first.

Owns: the verdict over what was said. Each node says `prepared` once it could start its part (command, working directory, a
free port), and starts only when all have. Silence is not a failure: whoever lost a node learns it from the allocator, which
then stops the gang. Refuses: waiting and sending (`shell/gangs.py`). Read next: `schemas/executions.py`, `JobPrepared`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.executions import JobPrepared
from schemas.placements import Assignment


@dataclass(frozen=True, slots=True)
class Go:
    """All nodes are prepared; `port` is the master's."""

    port: int | None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """This node must not take part: `detail` says why."""

    detail: str


@dataclass(frozen=True, slots=True)
class Missing:
    """These nodes have not said anything yet."""

    nodes: tuple[str, ...]


Verdict = Go | Mismatch | Missing


def is_gang(assignment: Assignment) -> bool:
    """Its processes have to start together. An application's parts serve each on their own."""
    return len(assignment.nodes) > 1 and not assignment.application


def verdict(nodes: Sequence[str], me: str, said: Mapping[str, JobPrepared]) -> Verdict:
    """`nodes` in rank order. Every node is compared with the first, so that only the odd one out fails."""
    mine, master = said.get(me), said.get(nodes[0])
    if mine is not None and master is not None:
        for what, here, there in (
            ("GPU model", mine.gpu_model, master.gpu_model),
            ("driver", mine.driver, master.driver),
        ):
            if here and there and here != there:
                return Mismatch(f"{what} differs within the gang: {me} has {here}, {nodes[0]} has {there}")
    missing = tuple(node for node in nodes if node not in said)
    if missing or master is None:
        return Missing(missing)
    return Go(master.port)

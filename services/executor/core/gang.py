"""A gang over several nodes starts on all of them or on none: what its nodes have to tell each other first.

Owns: the verdict over what was said. Each node says `prepared` once it could start its part (command, working directory, a
free port), and starts only when all have. Silence is not a failure: whoever lost a node learns it from the allocator, which
then stops the gang; where the allocator knows of nothing, those that are prepared give up after a while and say so. Refuses:
waiting and sending (`shell/gangs.py`). Read next: `schemas/executions.py`, `JobPrepared`.
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
    """These nodes have not said anything yet, or must not take part and say so themselves."""

    nodes: tuple[str, ...]


Verdict = Go | Mismatch | Missing


def is_gang(assignment: Assignment) -> bool:
    """Its processes have to start together. An application's parts serve each on their own."""
    return len(assignment.nodes) > 1 and not assignment.application


def verdict(nodes: Sequence[str], me: str, said: Mapping[str, JobPrepared]) -> Verdict:
    """`nodes` in rank order. Every node is compared with the first, so that the odd one out fails and no other starts."""
    master = said.get(nodes[0])
    if master is None:
        return Missing(tuple(node for node in nodes if node not in said))
    missing = []
    for node in nodes:
        odd = _difference(said[node], master) if node in said else ""
        if odd and node == me:
            return Mismatch(odd)
        if odd or node not in said:
            missing.append(node)
    return Missing(tuple(missing)) if missing else Go(master.port)


def _difference(one: JobPrepared, master: JobPrepared) -> str:
    """Empty where model and driver are equal or not known."""
    for what, here, there in (("GPU model", one.gpu_model, master.gpu_model), ("driver", one.driver, master.driver)):
        if here and there and here != there:
            return f"{what} differs within the gang: {one.node} has {here}, {master.node} has {there}"
    return ""

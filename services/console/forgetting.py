"""`gpugrid forget NODE`: what ends with a node that is gone for good, and the order that says so, one per node of a machine.

Owns: who is meant, what is shown before anything is ordered, and the refusal of a node that still reports. Refuses: deciding; telemetry
carries the order out, or refuses it once more by what it hears. Read next: `orders.py`, telemetry's `forgotten.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.commands import ForgetNode
from schemas.nodes import NodeStateChanged
from services.allocator.core.slots import is_row_of_order
from services.console import queries
from services.console.errors import ConsoleError
from services.console.orders import home, publish_order
from services.console.session import Session
from services.telemetry.core.forgotten import ALIVE

if TYPE_CHECKING:
    from services.allocator.core.state import State

NAMED_MAX = 8
"""So many names of a kind stand in the text; `--json` has all."""


@dataclass(frozen=True, slots=True)
class Departure:
    """What is about to be forgotten, and what ends with it: names, as the decision log has them now."""

    name: str
    cluster: str
    partition: int
    nodes: tuple[NodeStateChanged, ...]
    jobs: list[str]
    applications: list[str]
    planned_starts: list[str]
    reservations: list[str]
    cuts: list[str]

    @property
    def alive(self) -> list[NodeStateChanged]:
        return [node for node in self.nodes if node.health in ALIVE]

    def lines(self) -> list[str]:
        """For a person who is asked."""
        gpus = sum(len(node.gpus) for node in self.nodes)
        healths = ", ".join(f"{node.node} ({node.health.value})" for node in self.nodes)
        found = [f"{healths}: {gpus} GPUs leave the grid for good."]
        words = (
            (self.jobs, "queued again at once, with what they saved"),
            (self.applications, "get other GPUs, as far as there are any"),
            (self.planned_starts, "lose their planned start there and get the next one"),
            (self.reservations, "reservations that end"),
            (self.cuts, "orders to cut cards that end"),
        )
        return found + [f"{_some(names)}: {text}." for names, text in words if names]


async def look(session: Session, name: str) -> Departure:
    """Everything that a name means. ConsoleError for one that nobody has heard of."""
    from services.console.policy_orders import standing_on

    world = await queries.load_world(session)
    cluster, partition = home(world, name)
    nodes = tuple(state for _, state in sorted(world.nodes.items()) if name in (state.node, state.machine))
    standing = await standing_on(session, cluster, partition)
    return departure_of(standing.state, name, partition, nodes)


def departure_of(state: State, name: str, partition: int, nodes: tuple[NodeStateChanged, ...]) -> Departure:
    """What ends with these nodes in this state of their cluster."""
    names = {node.node for node in nodes}
    machines = {node.machine for node in nodes if node.machine}
    cuts = sorted(order.request_id for order in state.repartitions.values() if order.machine in machines & names)
    return Departure(
        name=name,
        cluster=state.cluster,
        partition=partition,
        nodes=nodes,
        jobs=sorted(job.job_id for job in state.jobs.values() if any(part.node in names for part in job.parts)),
        applications=sorted(app.app_id for app in state.apps.values() if any(part.node in names for part in app.parts)),
        planned_starts=sorted(
            job_id
            for job_id, promise in state.promises.items()
            if promise.start_ms is not None and any(part.node in names for part in promise.placed)
        ),
        reservations=sorted(
            one.reservation_id
            for one in state.reservations.values()
            if one.node in names and not is_row_of_order(state, one.reservation_id)
        ),
        cuts=cuts,
    )


def require_gone(departure: Departure) -> None:
    """ConsoleError if a node still reports."""
    if departure.alive:
        who = ", ".join(f"{node.node} ({node.health.value})" for node in departure.alive)
        raise ConsoleError(
            f"Still reporting: {who}. Stop the agent first, or use --force; a node that stays is emptied by"
            f" `gpugrid drain {departure.name}`."
        )


async def forget_nodes(session: Session, departure: Departure, *, force: bool, cause: str) -> dict[str, Any]:
    """Order it for every node that is meant, each in the life that was looked at."""
    now_ms, sent = session.clock().now_ms(), []
    for node in departure.nodes:
        event = ForgetNode(
            node=node.node,
            cluster=departure.cluster,
            ordered_ms=now_ms,
            incarnation=node.incarnation,
            force=force,
            cause=cause,
        )
        one = await publish_order(session, event, node.node, "forget", now_ms, departure.partition)
        sent.append({**one, "health": node.health.value, "incarnation": node.incarnation})
    return {
        "node": departure.name,
        "orders": sent,
        "jobs": departure.jobs,
        "applications": departure.applications,
        "planned_starts": departure.planned_starts,
        "reservations": departure.reservations,
        "cuts": departure.cuts,
    }


def _some(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")

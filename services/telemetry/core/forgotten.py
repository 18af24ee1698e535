"""Nodes that an operator said are gone for good: what is remembered of them, and when such an order is refused.

Owns: the word itself (`node.forgotten`, which replaces the node's state in the topic), whether a sample is from before it, and when
the topic may drop even that. A node that is heard is not forgotten, unless by force; nor is one that came back since the order was
given. Whoever comes back is a new node with a higher incarnation. Refuses: the grid, whose jobs and GPUs the allocator takes back when
it reads the word. Read next: `handler.py`.
"""

from __future__ import annotations

from schemas.commands import ForgetNode
from schemas.nodes import Health, NodeForgotten, NodeStateChanged
from schemas.records import Now
from services.telemetry.core.node import Node

FORGOTTEN_KEPT_MS = 30 * 86_400_000
"""Domain time that the word stays in the topic: as long as `executions` keeps what ran there, so that no report takes it for running."""
LATE_SAMPLES_S = 600.0
"""A sample that isn't newer than the last one, by no more than this, is a late or repeated one; else the agent's clock was set."""
ALIVE = (Health.USABLE, Health.DEGRADED)


def refusal(order: ForgetNode, node: Node, health: Health) -> tuple[str, str] | None:
    """Reason code and sentence if the order must not be carried out."""
    if order.incarnation < node.incarnation:
        return "node_returned", f"{node.name} came back since: incarnation {node.incarnation}, not {order.incarnation}"
    if health in ALIVE and not order.force:
        return "node_alive", f"{node.name} is heard ({health.value}): stop its agent first, or order it with force"
    return None


class Forgotten:
    """`words`: the newest word on each node that has not come back."""

    def __init__(self) -> None:
        self.words: dict[str, NodeForgotten] = {}

    def word(self, order: ForgetNode, node: Node, time_ms: int) -> NodeForgotten:
        """What to publish; it is remembered."""
        said = self.words[node.name] = NodeForgotten(
            node=node.name,
            cluster=node.cluster,
            pool=node.pool,
            time_ms=time_ms,
            ordered_ms=order.ordered_ms,
            incarnation=node.incarnation,
            sampled_ms=max(0, node.sampled_ms),
            cause=order.cause,
        )
        return said

    def repeated(self, order: ForgetNode) -> NodeForgotten | None:
        """The word that this order, or the same one sent twice, has led to already."""
        said = self.words.get(order.node)
        return said if said is not None and said.cluster == order.cluster else None

    def is_late(self, node: str, wall_ms: int) -> bool:
        """Whether a sample tells of the life that is over."""
        said = self.words.get(node)
        return said is not None and 0 <= said.sampled_ms - wall_ms <= LATE_SAMPLES_S * 1000

    def is_over(self, state: NodeStateChanged) -> bool:
        """Whether a state tells of the life that is over, written by a telemetry that was frozen meanwhile."""
        said = self.words.get(state.node)
        return said is not None and state.incarnation <= said.incarnation

    def back(self, node: str) -> NodeForgotten | None:
        """It is heard again: the word about it, which counts no longer."""
        return self.words.pop(node, None)

    def old(self, now: Now) -> list[NodeForgotten]:
        """Words that the topic may drop; they are forgotten here, too."""
        gone = [said for said in self.words.values() if now.domain_ms - said.time_ms >= FORGOTTEN_KEPT_MS]
        for said in gone:
            del self.words[said.node]
        return gone

"""Drains that telemetry orders itself, where the policy allows it: one per node, taken back when what asked for it is over.

Owns: which drains are ours, known from the commands topic, so that an operator's drain is never lifted. Read next: `handler.py`.
"""

from __future__ import annotations

from schemas.commands import DrainNode, UndrainNode
from services.telemetry.core.node import Node

SOURCE = "/gpugrid/telemetry"
DEADLINE_S = 1_800.0
"""Half an hour for jobs on a failing GPU to end or save their work."""

NAMES_MAX = 10_000
"""Names that were drained, kept so that their undrains are not taken for mistakes: as many nodes as a cluster may have, and more."""


class DrainOrders:
    """`take` every command seen, ours included; `due` is the order a node's state asks for."""

    def __init__(self) -> None:
        self._ours: dict[str, bool] = {}
        self._drained: dict[str, None] = {}

    def take(self, order: DrainNode | UndrainNode, source: str) -> None:
        if isinstance(order, DrainNode):
            self._drained[order.node] = None
            if len(self._drained) > NAMES_MAX:
                del self._drained[next(iter(self._drained))]
        if isinstance(order, DrainNode) and source == SOURCE:
            self._ours.setdefault(order.node, True)
        elif isinstance(order, DrainNode):
            self._ours[order.node] = False
        else:
            self._ours.pop(order.node, None)

    def forget(self, node: str) -> None:
        """The node is gone: should it come back, nothing was ordered about it yet."""
        self._ours.pop(node, None)

    def ever(self, node: str) -> bool:
        """Whether it was drained at all, as far as the topic reaches back: nodes can be drained before they are known."""
        return node in self._drained

    def due(self, node: Node, domain_ms: int) -> DrainNode | UndrainNode | None:
        asking = node.asks_for_drain()
        if asking and node.name not in self._ours:
            self._ours[node.name] = True
            cause = f"GPU {', '.join(map(str, asking))}: the health policy asks for it"
            return DrainNode(
                node=node.name, cluster=node.cluster, ordered_ms=domain_ms, deadline_s=DEADLINE_S, cause=cause[:256]
            )
        if not asking and self._ours.get(node.name) and node.seen:
            del self._ours[node.name]
            return UndrainNode(node=node.name, cluster=node.cluster, ordered_ms=domain_ms)
        return None

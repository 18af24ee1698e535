"""A pool's GPUs in order: which number in the grid is which local index on which node. Neighbours share a node, then a rack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.status import NodeGpus
from services.allocator.core.state import Node, State


@dataclass(frozen=True, slots=True)
class Layout:
    """Nodes of one pool in grid order, with the grid number of each node's first GPU."""

    nodes: tuple[Node, ...]
    first: dict[str, int]
    gpus: int

    @property
    def planned_sizes(self) -> list[int]:
        """What the planner takes for nodes: nodes, or single cards where the pool is made of slots, since no block leaves its card."""
        sizes: list[int] = []
        for node in self.nodes:
            cards, rest = divmod(node.size, node.slots_per_card) if node.slots_per_card > 1 else (0, node.size)
            sizes += [node.slots_per_card] * cards + [rest] * (rest > 0)
        return sizes

    @property
    def block_max(self) -> int | None:
        """The largest block of a pool of slots; None: only the pool's own size counts."""
        most = max((node.slots_per_card for node in self.nodes), default=1)
        return most if most > 1 else None

    def numbers(self, node: str, local: list[int]) -> list[int]:
        """Grid numbers of local indices."""
        first = self.first[node]
        return [first + index for index in local]

    def local(self, numbers: list[int]) -> list[NodeGpus]:
        """Local indices per node, in grid order, of ascending grid numbers."""
        placed: list[NodeGpus] = []
        position = 0
        for node in self.nodes:
            first = self.first[node.node]
            mine: list[int] = []
            while position < len(numbers) and numbers[position] < first + node.size:
                mine.append(numbers[position] - first)
                position += 1
            if mine:
                placed.append(NodeGpus(node=node.node, gpus=mine))
        return placed


def slots_on(node: Node, cards: Iterable[int]) -> list[int]:
    """Local indices of the node's slots on these cards of its machine."""
    per_card = node.slots_per_card
    return [slot for card in cards for slot in range(card * per_card, (card + 1) * per_card) if slot < node.size]


def layout_of(state: State, pool: str) -> Layout:
    """The layout of one pool. Order: the nodes' own order, then their names; those of a rack together, from its first node on."""
    nodes = sorted(
        (node for node in state.nodes.values() if node.pool == pool), key=lambda node: (node.order, node.node)
    )
    racks = {rack: at for at, rack in enumerate(dict.fromkeys(node.rack for node in nodes))}
    nodes.sort(key=lambda node: racks[node.rack])
    first: dict[str, int] = {}
    total = 0
    for node in nodes:
        first[node.node] = total
        total += node.size
    return Layout(nodes=tuple(nodes), first=first, gpus=total)


def pools_of(state: State) -> list[str]:
    """Pools that have nodes, sorted."""
    return sorted({node.pool for node in state.nodes.values()})

"""The shape of what is free: is a wait caused by fragmentation or by total shortage? Pure.

A block lies inside one node, or is made of consecutive whole nodes (see `mission.md`'s legal grid). Counts here are what
a person checks by hand; the planner has its own, faster ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from schemas.nodes import Health
from services.allocator.core.free_runs import longest_run
from services.console.facts import World


class Cause(Enum):
    """Why GPUs don't fit. NEITHER: a fitting block is free, so something else holds the job back."""

    SHORTAGE = "shortage"
    FRAGMENTATION = "fragmentation"
    NEITHER = "neither"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class NodeShape:
    """One node: its usable GPUs, and which of them are free, as local indices."""

    node: str
    gpus: int
    free: tuple[int, ...]
    usable: bool
    absent: int = 0
    """Slots of shared cards that are cut for another pool at present."""

    @property
    def largest_run(self) -> int:
        """Longest run of neighbouring free GPUs."""
        return longest_run(self.free)

    @property
    def whole(self) -> bool:
        return self.usable and len(self.free) == self.gpus > 0 and not self.absent


@dataclass(frozen=True, slots=True)
class PoolShape:
    """A pool's nodes in order. `held`: GPUs in use."""

    pool: str | None
    nodes: tuple[NodeShape, ...]

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    @property
    def usable(self) -> int:
        return sum(node.gpus for node in self.nodes if node.usable)

    @property
    def free(self) -> int:
        return sum(len(node.free) for node in self.nodes if node.usable)

    @property
    def schedulability(self) -> int:
        """Whole nodes that could be handed out now."""
        return sum(node.whole for node in self.nodes)

    def largest_block(self) -> int:
        """The largest power of two that fits: inside a node, or over consecutive whole nodes."""
        largest = 0
        size = 1
        while size <= self.gpus:
            if self.fits(size):
                largest = size
            size *= 2
        return largest

    def fits(self, size: int) -> bool:
        """Whether a block of this size is free now."""
        if any(node.usable and node.largest_run >= size for node in self.nodes):
            return True
        return _whole_nodes(self.nodes, size, lambda node: node.whole)

    def could_ever_fit(self, size: int) -> bool:
        """Whether an empty pool would have such a block, with all of its cards cut for it."""
        nodes = [replace(node, gpus=node.gpus + node.absent) for node in self.nodes]
        return any(node.gpus >= size for node in nodes) or _whole_nodes(nodes, size, lambda _: True)

    def possible_sizes(self) -> list[int]:
        """Sizes of which an empty pool would have a block, ascending."""
        return [1 << power for power in range(self.gpus.bit_length()) if self.could_ever_fit(1 << power)]

    def cause(self, sizes: Sequence[int]) -> Cause:
        """Why the smallest of these sizes does not fit now."""
        if not sizes or self.gpus == 0:
            return Cause.SHORTAGE
        if not any(self.could_ever_fit(size) for size in sizes):
            return Cause.IMPOSSIBLE
        if any(self.fits(size) for size in sizes):
            return Cause.NEITHER
        return Cause.FRAGMENTATION if self.free >= min(sizes) else Cause.SHORTAGE


def _whole_nodes(nodes: Sequence[NodeShape], size: int, available: Callable[[NodeShape], bool]) -> bool:
    """Whether consecutive available nodes add up to exactly `size`."""
    for start in range(len(nodes)):
        total = 0
        for node in nodes[start:]:
            if not available(node):
                break
            total += node.gpus
            if total >= size:
                break
        if total == size:
            return True
    return False


def pool_shape(world: World, pool: str | None = None) -> PoolShape:
    """The free GPUs of a pool (None: of all nodes) from node states and placements."""
    held = world.holder_of()
    shapes = []
    for node in world.pool_nodes(pool):
        usable = node.health in (Health.USABLE, Health.DEGRADED) and not world.is_draining(node)
        absent = world.absent(node.node)
        gpus = sorted(gpu.index for gpu in node.gpus if gpu.index not in absent)
        free = tuple(
            gpu.index
            for gpu in sorted(node.gpus, key=lambda one: one.index)
            if usable and gpu.healthy and (node.node, gpu.index) not in held and gpu.index not in absent
        )
        shapes.append(NodeShape(node.node, len(gpus), free, usable, len(absent)))
    return PoolShape(pool, tuple(shapes))


def shape_sentence(shape: PoolShape, sizes: Sequence[int]) -> str:
    """One sentence that tells fragmentation from shortage for a job that can use these sizes."""
    smallest = min(sizes) if sizes else 1
    where = f"pool {shape.pool}" if shape.pool else "the pool"
    if shape.gpus == 0 and shape.nodes:
        return f"No card is cut for {where} at present; `gpugrid partition` orders that."
    if shape.gpus == 0:
        return f"No node of {where} has reported yet, so nothing is known about free GPUs."
    counts = f"{shape.free} of {shape.usable} usable GPUs in {where} are free"
    cause = shape.cause(sizes)
    if cause is Cause.IMPOSSIBLE:
        found = ", ".join(str(size) for size in shape.possible_sizes())
        never = f"{where.capitalize()} can never form a block of {smallest} GPUs, even when it is empty"
        return f"{never}; its blocks have {found}."
    if cause is Cause.SHORTAGE:
        return f"{counts}; the job needs at least {smallest}: a shortage, not fragmentation."
    whole = f"{shape.schedulability} whole node{'' if shape.schedulability == 1 else 's'}"
    if cause is Cause.FRAGMENTATION:
        return (
            f"{counts}, but the largest free block has {shape.largest_block()} ({whole} free)"
            f" and the job needs {smallest}: fragmentation, not a shortage."
        )
    return f"{counts} and a block of {smallest} would fit now ({whole} free): neither shortage nor fragmentation."

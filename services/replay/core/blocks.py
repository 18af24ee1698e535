"""Which GPUs of a pool are free, for the simple policies: blocks inside a node, or consecutive whole nodes.

Deliberately plain and not shared with gpugrid's allocator, so that the comparison rests on nothing of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FreeBlocks:
    """GPUs 0…gpus−1 in order, the uppermost `reserved` of them never given to anybody."""

    gpus: int
    node_gpus: int
    reserved: int
    taken: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.taken = [index >= self.gpus - self.reserved for index in range(self.gpus)]

    def lowest(self, size: int) -> int | None:
        """The lowest first GPU of a free block of `size`, or None."""
        stride = 1 if size <= self.node_gpus else self.node_gpus
        for first in range(0, self.gpus - size + 1, stride):
            inside_node = size > self.node_gpus or first % self.node_gpus + size <= self.node_gpus
            if inside_node and not any(self.taken[first : first + size]):
                return first
        return None

    def take(self, first: int, size: int) -> None:
        self._set(first, size, True)

    def release(self, first: int, size: int) -> None:
        self._set(first, size, False)

    def _set(self, first: int, size: int, taken: bool) -> None:
        for index in range(first, first + size):
            if self.taken[index] is taken:
                raise ValueError(f"GPU {index} is {'already taken' if taken else 'not taken'}")
            self.taken[index] = taken

"""Which GPUs of a pool are free, for the simple policies: blocks inside a node, or consecutive whole nodes.

Deliberately plain and not shared with gpugrid's allocator, so that the comparison rests on nothing of its own. One bit per
GPU of a Python integer: looking for a block is a few shifts, whatever the size of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FreeBlocks:
    """GPUs 0…gpus−1 in order, the uppermost `reserved` of them never given to anybody. `free`: one bit per free GPU."""

    gpus: int
    node_gpus: int
    reserved: int
    free: int = field(init=False)
    _legal: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.free = (1 << max(self.gpus - self.reserved, 0)) - 1

    def lowest(self, size: int) -> int | None:
        """The lowest first GPU of a free block of `size`, or None."""
        return self.lowest_in(self.free, size)

    def lowest_in(self, free: int, size: int) -> int | None:
        """The same where `free` are the free GPUs."""
        starts, length = free, 1
        while length < size and starts:
            step = min(length, size - length)
            starts &= starts >> step
            length += step
        starts &= self._firsts(size)
        return (starts & -starts).bit_length() - 1 if starts else None

    def take(self, first: int, size: int) -> None:
        block = block_of(first, size)
        if self.free & block != block:
            raise ValueError(f"GPUs {first} to {first + size - 1} are not all free")
        self.free ^= block

    def release(self, first: int, size: int) -> None:
        block = block_of(first, size)
        if self.free & block:
            raise ValueError(f"GPUs {first} to {first + size - 1} are not all taken")
        self.free ^= block

    def _firsts(self, size: int) -> int:
        """First GPUs at which a block of `size` is legal."""
        if size not in self._legal:
            stride = 1 if size <= self.node_gpus else self.node_gpus
            self._legal[size] = sum(
                1 << first
                for first in range(0, self.gpus - size + 1, stride)
                if size > self.node_gpus or first % self.node_gpus + size <= self.node_gpus
            )
        return self._legal[size]


def block_of(first: int, size: int) -> int:
    """The bits of GPUs first … first + size − 1."""
    return ((1 << size) - 1) << first

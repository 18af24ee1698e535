"""The shape of a pool: node borders and every block a job of a given size could hold.

A block of a size lies inside one node at any offset, or is a run of consecutive whole nodes whose sizes add up to
exactly that size. Sizes are powers of two, so a *size class* is the exponent. A topology depends on node sizes only,
is built once and shared by every problem of the pool. Read `problem.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

BITS_MAX = 66  # of any int64, and one more
TOPOLOGIES_CACHED_MAX = 32  # one per pool shape a process has seen lately; a shape changes only with the inventory


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """Node borders and candidate blocks. `block_first[block_ptr[k]:block_ptr[k+1]]` are first GPUs of size 2**k,
    ascending.

    Blocks of several nodes once more: `multi_node[multi_ptr[k]:multi_ptr[k+1]]` are their first nodes, `multi_nodes`
    how many they span. Sizes below class `node_classes` may fit inside a node.
    """

    node_sizes: tuple[int, ...]
    node_first: NDArray[np.int64]  # nodes + 1 borders
    gpu_node: NDArray[np.int64]
    block_ptr: NDArray[np.int64]
    block_first: NDArray[np.int64]
    multi_ptr: NDArray[np.int64]
    multi_node: NDArray[np.int64]
    multi_nodes: NDArray[np.int64]
    node_classes: int
    class_of_bits: NDArray[np.int64]  # by bit length of a size: its class where the pool has such a block, else -1
    packed: NDArray[np.int64]  # all of the above in one array, see kernels/shape.py

    @property
    def gpus(self) -> int:
        return int(self.node_first[-1])

    @property
    def classes(self) -> int:
        return len(self.block_ptr) - 1

    def blocks(self, level: int) -> NDArray[np.int64]:
        """First GPUs of the candidate blocks of size 2**level, ascending."""
        return self.block_first[self.block_ptr[level] : self.block_ptr[level + 1]]

    def node_of(self, gpu: int) -> int:
        return int(self.gpu_node[gpu])


def size_class(gpus: int) -> int:
    """The exponent of a power of two, or -1 for anything else."""
    return gpus.bit_length() - 1 if gpus > 0 and gpus & (gpus - 1) == 0 else -1


@lru_cache(maxsize=TOPOLOGIES_CACHED_MAX)
def topology_of(node_sizes: tuple[int, ...]) -> Topology:
    """Build the topology of nodes of these sizes, in pool order."""
    if any(size < 1 for size in node_sizes):
        raise ValueError("a node has at least one GPU")
    node_first = np.concatenate(([0], np.cumsum(node_sizes, dtype=np.int64))).astype(np.int64)
    gpus = int(node_first[-1])
    gpu_node = np.repeat(np.arange(len(node_sizes), dtype=np.int64), node_sizes)
    blocks: list[list[tuple[int, int, int]]] = []
    size = 1
    while size <= gpus:
        blocks.append(_blocks(node_sizes, node_first, size))
        size *= 2
    several = [[block for block in row if block[2] > 1] for row in blocks]
    multi_ptr, multi_node, multi_nodes = _pointers(several), _flat(several, 1), _flat(several, 2)
    node_classes = max(node_sizes, default=0).bit_length()
    head = np.array([len(node_sizes), gpus, len(blocks), node_classes, len(multi_node)], dtype=np.int64)
    return Topology(
        node_sizes=node_sizes,
        node_first=node_first,
        gpu_node=gpu_node,
        block_ptr=_pointers(blocks),
        block_first=_flat(blocks, 0),
        multi_ptr=multi_ptr,
        multi_node=multi_node,
        multi_nodes=multi_nodes,
        node_classes=node_classes,
        class_of_bits=_class_of_bits(blocks),
        packed=np.concatenate((head, node_first, gpu_node, multi_ptr, multi_node, multi_nodes)),
    )


def _pointers(rows: list[list[tuple[int, int, int]]]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)


def _flat(rows: list[list[tuple[int, int, int]]], column: int) -> NDArray[np.int64]:
    return np.array([block[column] for row in rows for block in row], dtype=np.int64)


def _class_of_bits(blocks: list[list[tuple[int, int, int]]]) -> NDArray[np.int64]:
    classes = np.full(BITS_MAX, -1, np.int64)
    for k, row in enumerate(blocks):
        if row:
            classes[k + 1] = k
    return classes


def _blocks(node_sizes: tuple[int, ...], node_first: NDArray[np.int64], size: int) -> list[tuple[int, int, int]]:
    """(first GPU, first node, nodes) of every legal block of `size`, ascending."""
    blocks: list[tuple[int, int, int]] = []
    for node, node_size in enumerate(node_sizes):
        first = int(node_first[node])
        if node_size >= size:
            blocks.extend((first + offset, node, 1) for offset in range(node_size - size + 1))
            continue
        end = node
        while end < len(node_sizes) and node_first[end] - first < size:
            end += 1
        if node_first[end] - first == size:
            blocks.append((first, node, end - node))
    return blocks

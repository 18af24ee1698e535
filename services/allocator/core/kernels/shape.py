"""Reading a topology packed into one array: head (nodes, GPUs, classes, node classes, multi blocks), then the lists.

One array instead of five, because numba counts references for every array it passes to a kernel.
"""

from __future__ import annotations

from numba import njit

HEAD = 5


@njit(cache=True)
def node_begin(shape, node):
    """First GPU of a node; for node = number of nodes the end of the pool."""
    return shape[HEAD + node]


@njit(cache=True)
def node_of(shape, gpu):
    return shape[HEAD + shape[0] + 1 + gpu]


@njit(cache=True)
def multi_range(shape, k):
    """Range of candidate indices of class k among blocks of several nodes."""
    at = HEAD + shape[0] + 1 + shape[1] + k
    return shape[at], shape[at + 1]


@njit(cache=True)
def multi_block(shape, c):
    """(first node, nodes) of candidate c."""
    at = HEAD + shape[0] + 1 + shape[1] + shape[2] + 1 + c
    return shape[at], shape[at + shape[4]]

"""How far apart a block's GPUs are, and how much of a job's data its nodes lack: what decides between equally early places.

Two kinds of rows behind the grid's scratch rows. *Domains*: numbers that never fall along the pool, so what a block spans is the
difference between its ends. *Lacking*: running sums, so what a block lacks is a difference, too. Pools that know of neither have no
such rows, and all blocks are at distance 0.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FARTHEST = 1 << 62
DOMAIN_SHIFT = 30  # a domain more weighs more than any data: sums of lacking data stay below 2**30, see core/near.py


@njit(cache=True)
def fill_near(f, bits, domains, lacking):
    """Copy the rows of the problem into those of a grid."""
    for i in range(len(f.domains)):
        bits[domains, i] = np.uint64(f.domains[i])
    for r in range(f.lacking.shape[0]):
        for i in range(f.lacking.shape[1]):
            bits[lacking + r, i] = np.uint64(f.lacking[r, i])


@njit(cache=True)
def farness(g, first, size, data):
    """Domains that the block spans beyond its first, then what its nodes lack of the job's data."""
    far = np.int64(0)
    last = first + size - 1
    if g.domains >= 0:
        far = np.int64(g.bits[g.domains, last] - g.bits[g.domains, first]) << DOMAIN_SHIFT
    if data >= 0:
        row = g.lacking + data
        far += np.int64(g.bits[row, last])
        if first > 0:
            far -= np.int64(g.bits[row, first - 1])
    return far

"""A machine whose cards several pools share is one node per pool: what its agent, its executor and the allocator have to agree on."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.catalog import Cluster

CUT_WAIT_S = 300.0
"""An executor gives up cutting the cards of one order after so long, so the order is over by then. A change of MIG mode resets a card,
tens of seconds; longer is a driver that hangs."""


def whole_pool(cluster: Cluster, slot_pools: Sequence[str]) -> str:
    """The pool of whole cards that all these pools of slots are cut from. Raises ValueError."""
    found = []
    for name in slot_pools:
        pool = cluster.pools.get(name)
        if pool is None or pool.slots is None:
            raise ValueError(f"{name!r} is no pool of slots in the catalog")
        found.append(pool.slots.of)
    if len(set(found)) != 1:
        raise ValueError(
            f"pools of slots of one machine are cut from one pool of whole cards, these from {sorted(set(found))}"
        )
    return found[0]


def node_name(machine: str, pool: str, whole: str) -> str:
    """The node of a machine in one of its pools: that of its whole cards has the machine's own name."""
    return machine if pool == whole else f"{machine}+{pool}"

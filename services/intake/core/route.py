"""Where a job or application may run: its cluster, and the pools of it that could ever hold it.

Owns the choice; refuses nothing (an empty answer is judged by `validate.py`). What is free right now is the allocator's
business: here counts only what a pool is built of.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.catalog import Catalog, Cluster, Pool
from schemas.jobs import ApplicationSpec, JobSpec


def cluster_name(spec: JobSpec | ApplicationSpec, catalog: Catalog) -> str:
    """The named cluster, else the default one."""
    return spec.cluster if spec.cluster is not None else catalog.default_cluster


def named_pools(spec: JobSpec | ApplicationSpec) -> tuple[str, ...]:
    """Pools the submitter named, without repetitions, in their order; empty = any."""
    if isinstance(spec, JobSpec):
        return tuple(dict.fromkeys(spec.pools))
    return () if spec.pool is None else (spec.pool,)


def open_pools(spec: JobSpec | ApplicationSpec, cluster: Cluster) -> list[tuple[str, Pool]]:
    """The named pools that exist, or all pools of the cluster in the catalog's order."""
    names: Iterable[str] = named_pools(spec) or cluster.pools
    return [(name, cluster.pools[name]) for name in names if name in cluster.pools]


def forms_block(pool: Pool, gpus: int) -> bool:
    """Whether the pool can ever form a contiguous block: inside one node, or of whole nodes."""
    if gpus > pool.gpus:
        return False
    return gpus <= pool.node_gpus or gpus % pool.node_gpus == 0


def pools_for_job(spec: JobSpec, cluster: Cluster) -> list[str]:
    """Pools in which at least one offered size and the memory per GPU fit."""
    return [
        name
        for name, pool in open_pools(spec, cluster)
        if spec.memory_mib <= pool.memory_mib and any(forms_block(pool, gpus) for gpus in spec.sizes)
    ]


def pool_for_application(spec: ApplicationSpec, cluster: Cluster) -> str | None:
    """The first pool, in the catalog's order, that has the memory per GPU and as many GPUs as the peak."""
    for name, pool in open_pools(spec, cluster):
        if spec.memory_mib <= pool.memory_mib and spec.peak_gpus <= pool.gpus:
            return name
    return None

"""Where a job or application may run: its cluster, and the pools of it that could ever hold it.

Owns the choice; refuses nothing (an empty answer is judged by `validate.py`). What is free right now is the allocator's
business: here counts only what a pool is built of.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.catalog import Catalog, Cluster, Pool
from schemas.jobs import ApplicationSpec, JobSpec
from services.intake.core.speeds import Measured, names_model, speeds_of, told_speed


def cluster_name(spec: JobSpec | ApplicationSpec, catalog: Catalog) -> str:
    """The named cluster, else the default one."""
    return spec.cluster if spec.cluster is not None else catalog.default_cluster


def named_pools(spec: JobSpec | ApplicationSpec) -> tuple[str, ...]:
    """Pools the submitter named, without repetitions, in their order; empty = any."""
    if isinstance(spec, JobSpec):
        return tuple(dict.fromkeys(spec.pools))
    return () if spec.pool is None else (spec.pool,)


def open_pools(spec: JobSpec | ApplicationSpec, cluster: Cluster) -> list[tuple[str, Pool]]:
    """The named pools that exist, then those of the named GPU models; if it names neither, those it has a speed for, else all pools
    of the cluster, in the catalog's order. A pool of slots only by its own name: whoever asks for GPUs gets no parts of them."""
    names: Iterable[str] = named_pools(spec)
    if isinstance(spec, JobSpec):
        names = dict.fromkeys([*names, *_of_models(spec.gpu_models, cluster)])
        if not names:
            names = [
                name
                for name, pool in cluster.pools.items()
                if told_speed(spec, name, pool) is not None and (pool.slots is None or name in spec.speeds)
            ]
    names = names or [name for name, pool in cluster.pools.items() if pool.slots is None]
    return [(name, cluster.pools[name]) for name in names if name in cluster.pools]


def _of_models(models: Iterable[str], cluster: Cluster) -> list[str]:
    """Pools of these GPU models, in the order of the models."""
    return [
        name
        for model in models
        for name, pool in cluster.pools.items()
        if pool.slots is None and names_model(model, pool.gpu_model)
    ]


def forms_block(pool: Pool, gpus: int) -> bool:
    """Whether the pool can ever form a contiguous block: inside one node, or of whole nodes. Of slots: on one card."""
    if gpus > pool.gpus or (pool.slots is not None and gpus > pool.slots.per_card):
        return False
    return gpus <= pool.node_gpus or gpus % pool.node_gpus == 0


def pools_for_job(spec: JobSpec, cluster: Cluster) -> list[str]:
    """Pools in which at least one offered size and the memory per GPU fit."""
    return [
        name
        for name, pool in open_pools(spec, cluster)
        if spec.memory_mib <= pool.memory_mib and any(forms_block(pool, gpus) for gpus in spec.sizes)
    ]


def speeds_in(spec: JobSpec, names: list[str], cluster: Cluster, measured: Measured) -> tuple[dict[str, float], str]:
    """How fast the job runs in each of these pools beside the first, and who says so."""
    return speeds_of(spec, [(name, cluster.pools[name]) for name in names], measured)


def pool_for_application(spec: ApplicationSpec, cluster: Cluster) -> str | None:
    """The first pool, in the catalog's order, that has the memory per GPU and as many GPUs as the peak."""
    for name, pool in open_pools(spec, cluster):
        if spec.memory_mib <= pool.memory_mib and spec.peak_gpus <= pool.gpus:
            return name
    return None

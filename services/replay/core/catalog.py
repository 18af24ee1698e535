"""The catalog of a day: one cluster, one pool of its size. As a struct for simulation, as TOML for the live stack."""

from __future__ import annotations

from schemas.catalog import Catalog, Cluster, Pool
from services.replay.core.day import Day

PARTITION = 0
GPU_MODEL = "NVIDIA H100 80GB HBM3"
GPU_MEMORY_MIB = 81_559


def catalog_of(day: Day) -> Catalog:
    """One cluster on PARTITION. Any team may submit."""
    pool = Pool(gpus=day.gpus, node_gpus=day.node_gpus, gpu_model=GPU_MODEL, memory_mib=GPU_MEMORY_MIB)
    cluster = Cluster(partition=PARTITION, pools={day.pool: pool})
    return Catalog(clusters={day.cluster: cluster}, default_cluster=day.cluster)


def node_names(day: Day) -> list[str]:
    """Nodes in pool order."""
    return [f"n{number:02d}" for number in range(day.gpus // day.node_gpus)]


def toml_of(catalog: Catalog) -> str:
    """The catalog as `schemas.catalog.read_catalog` reads it (clusters and pools; limits stay at their defaults)."""
    lines = [f'default_cluster = "{catalog.default_cluster}"', ""]
    for cluster_id, cluster in catalog.clusters.items():
        lines += [f"[clusters.{cluster_id}]", f"partition = {cluster.partition}", ""]
        for pool_id, pool in cluster.pools.items():
            lines += [
                f"[clusters.{cluster_id}.pools.{pool_id}]",
                f"gpus = {pool.gpus}",
                f"node_gpus = {pool.node_gpus}",
                f'gpu_model = "{pool.gpu_model}"',
                f"memory_mib = {pool.memory_mib}",
                "",
            ]
    return "\n".join(lines)

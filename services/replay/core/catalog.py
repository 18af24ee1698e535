"""The catalog of a day: one cluster, one pool of its size. As a struct for simulation, as TOML for the live stack."""

from __future__ import annotations

import json

from msgspec import Struct, to_builtins

from schemas.catalog import Catalog, Cluster, Limits, Pool
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
    """The catalog as `schemas.catalog.read_catalog` reads it; what is as by default is left out. Any catalog comes back as it was."""
    lines = [f"default_cluster = {_text(catalog.default_cluster)}"]
    if catalog.teams:
        lines.append(f"teams = [{', '.join(map(_text, catalog.teams))}]")
    if catalog.limits != Limits():
        lines += ["", "[limits]", *_lines(catalog.limits)]
    for cluster_id, cluster in catalog.clusters.items():
        lines += ["", f"[clusters.{_text(cluster_id)}]", f"partition = {cluster.partition}"]
        for pool_id, pool in cluster.pools.items():
            lines += ["", f"[clusters.{_text(cluster_id)}.pools.{_text(pool_id)}]", *_lines(pool)]
            if pool.slots is not None:
                lines.append(f"slots = {{ {', '.join(_lines(pool.slots))} }}")
    return "\n".join((*lines, ""))


def _lines(struct: Struct) -> list[str]:
    """`field = value` per plain field that isn't None."""
    return [
        f"{name} = {_text(value) if isinstance(value, str) else value}"
        for name, value in to_builtins(struct).items()
        if isinstance(value, str | int | float)
    ]


def _text(text: str) -> str:
    """A basic string of TOML: JSON's escapes are TOML's, but for DEL, which JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

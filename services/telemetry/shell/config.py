"""What telemetry and the node agent are configured with.

Owns: their environment variables. Read next: `services/telemetry/__main__.py`, `services/telemetry/agent.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from schemas.base import Identifier
from schemas.catalog import Catalog
from schemas.sharing import node_name, whole_pool
from services.runtime.clock import Clock
from services.runtime.config import ConfigError, ServiceConfig
from services.telemetry.core.health_policy import Policy, read_overrides
from services.telemetry.shell.agent import PERIOD_S, AgentSettings
from services.telemetry.shell.nvml import NvmlSource
from services.telemetry.shell.simulated import SimulatedSource
from services.telemetry.shell.source import Source, SourceError


class TelemetryConfig(ServiceConfig, frozen=True, kw_only=True):
    """`catalog`: which clusters and pools exist."""

    catalog: str
    health_overrides: tuple[str, ...] = ()
    """Lines of the health policy that this site judges otherwise: `xid 94=count, ecc uncorrected=count`."""
    health_drains: bool = False
    """Whether telemetry may order drains itself, and take its own back; otherwise it only asks for them."""


class AgentConfig(ServiceConfig, frozen=True, kw_only=True):
    """`GPUGRID_CLUSTERS` names the one cluster that all `GPUGRID_NODES` belong to."""

    catalog: str
    nodes: Annotated[tuple[Identifier, ...], Meta(min_length=1)]
    """The machine's own name; several only where the source is simulated."""
    pool: str = ""
    """Empty: the cluster's only pool."""
    slot_pools: tuple[Identifier, ...] = ()
    """Pools of slots that this machine's cards may be cut into, as its executor's (docs/sharing.md)."""
    rack: Identifier = "r0"
    source: Literal["nvml", "simulated"] = "nvml"
    period_s: Annotated[float, Meta(gt=0.1, le=3600)] = PERIOD_S


def policy_of(config: TelemetryConfig) -> Policy:
    """Raises ConfigError."""
    try:
        return Policy(read_overrides(config.health_overrides), drains=config.health_drains)
    except ValueError as error:
        raise ConfigError(f"GPUGRID_HEALTH_OVERRIDES: {error}.") from None


def agent_settings(config: AgentConfig, catalog: Catalog) -> AgentSettings:
    """Raises ConfigError."""
    if len(config.clusters) != 1:
        raise ConfigError(
            "GPUGRID_CLUSTERS must name exactly one cluster for a node agent: all its nodes belong to it."
        )
    name = config.clusters[0]
    cluster = catalog.clusters.get(name)
    if cluster is None:
        raise ConfigError(f"GPUGRID_CLUSTERS is {name!r}, which the catalog doesn't know.")
    try:
        whole = whole_pool(cluster, config.slot_pools) if config.slot_pools else ""
    except ValueError as error:
        raise ConfigError(f"GPUGRID_SLOT_POOLS: {error}.") from None
    pool = config.pool or whole or (next(iter(cluster.pools)) if len(cluster.pools) == 1 else "")
    if pool not in cluster.pools:
        raise ConfigError(
            f"GPUGRID_POOL must be one of {', '.join(cluster.pools)}: cluster {name} has several or others."
        )
    if whole not in ("", pool):
        raise ConfigError(f"GPUGRID_POOL is {pool}, but GPUGRID_SLOT_POOLS are cut from cards of {whole}.")
    if config.source == "nvml" and len(config.nodes) > 1:
        raise ConfigError(
            "GPUGRID_NODES must name one node where GPUGRID_SOURCE is nvml: a machine's cards are one node's."
        )
    return AgentSettings(
        nodes=config.nodes,
        cluster=name,
        pool=pool,
        partition=cluster.partition,
        rack=config.rack,
        period_s=config.period_s,
        client_id=config.instance_id or "agent",
        slots={name: cluster.pools[name] for name in config.slot_pools},
    )


def source_of(config: AgentConfig, settings: AgentSettings, catalog: Catalog, clock: Clock) -> Source:
    """Raises ConfigError."""
    if config.source == "simulated":
        source = SimulatedSource(catalog.clusters[settings.cluster].pools[settings.pool], clock.now_ms)
        for node in settings.nodes if settings.slots else ():
            source.slots[node] = {
                node_name(node, name, settings.pool): pool.slots_per_card for name, pool in settings.slots.items()
            }
        return source
    try:
        return NvmlSource()
    except SourceError as error:
        raise ConfigError(str(error)) from None

"""What an allocator is configured with, and the settings that follow: shared with whoever decides again what it decided.

Light on purpose: the console reads it without starting anything.
"""

from __future__ import annotations

import os

from schemas.catalog import Catalog
from services.allocator.core.config import Policy
from services.allocator.core.decide import Settings
from services.allocator.shell.version import code_version
from services.runtime.config import ServiceConfig


class AllocatorConfig(ServiceConfig, frozen=True, kw_only=True):
    """`GPUGRID_CATALOG` names the catalog; the rest is the planner's grid and budget (see core/config.py).

    `full_s`: what full mode gets for one answer (wall), 0 switches it off; `full_every_s`: between two questions at least.
    """

    catalog: str
    step_s: int = Policy().step_s
    steps: int = Policy().steps
    iterations: int = Policy().iterations
    penalty_ratio: float = Policy().penalty_ratio
    replan_s: int = Policy().replan_s
    full_s: float = 2.0
    full_every_s: float = 60.0


def settings_of(config: AllocatorConfig, catalog: Catalog) -> dict[str, Settings]:
    """Settings per cluster."""
    policy = Policy(
        step_s=config.step_s,
        steps=config.steps,
        iterations=config.iterations,
        penalty_ratio=config.penalty_ratio,
        replan_s=config.replan_s,
    )
    version = code_version()
    return {
        name: Settings(
            policy=policy,
            memory_mib={pool: facts.memory_mib for pool, facts in cluster.pools.items()},
            code_version=version,
            writer=f"{config.instance_id or 'allocator'}-{os.getpid()}",
        )
        for name, cluster in catalog.clusters.items()
    }

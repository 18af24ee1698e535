"""The settings a cluster's allocator decides with, so that a plan or a replay made here is the same one.

They come from where the allocator has them: its `GPUGRID_*` variables (of the running stack's process, or set here, which
wins) and the catalog those name. Without a catalog the planner's defaults hold and no pool has a memory size.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from services.console.errors import ConsoleError
from services.console.session import Session

if TYPE_CHECKING:
    from services.allocator.core.decide import Settings


def environment_of(session: Session) -> dict[str, str]:
    """`GPUGRID_*` variables of the stack's allocator, overruled by those set here."""
    stack = session.stack()
    own = {name: value for name, value in os.environ.items() if name.startswith("GPUGRID_")}
    return (dict(stack.environment) if stack is not None else {}) | own


def settings_of(session: Session, cluster: str) -> Settings:
    """What the cluster's allocator decides with. ConsoleError if a variable or the catalog is broken."""
    from schemas.catalog import read_catalog
    from services.allocator.core.config import Policy
    from services.allocator.core.decide import Settings
    from services.allocator.shell import settings
    from services.runtime.config import ConfigError, load

    environment = environment_of(session)
    path = environment.get("GPUGRID_CATALOG")
    if not path:
        return Settings(policy=Policy(), memory_mib={}, code_version="", writer="gpugrid-console")
    try:
        config = load(settings.AllocatorConfig, environment)
        catalog = read_catalog(Path(path).read_bytes())
    except (ConfigError, OSError, ValueError) as error:
        raise ConsoleError(f"The allocator's settings can't be read ({error}).") from None
    known = settings.settings_of(config, catalog)
    if cluster not in known:
        raise ConsoleError(
            f"Cluster {cluster} is not in the catalog {path}; set GPUGRID_CATALOG to the one it was decided with."
        )
    return known[cluster]

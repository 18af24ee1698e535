"""The settings a cluster's allocator decides with, so that a plan or a replay made here is the same one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from services.console.errors import ConsoleError
from services.console.session import Session

if TYPE_CHECKING:
    from schemas.catalog import Catalog
    from services.allocator.core.decide import Settings


def catalog_of(session: Session) -> Catalog | None:
    """The catalog that GPUGRID_CATALOG or the running stack names; None if neither does. ConsoleError if it is broken."""
    from schemas.catalog import read_catalog

    stack = session.stack()
    path = os.environ.get("GPUGRID_CATALOG") or (str(stack.catalog_path) if stack and stack.catalog_path else "")
    if not path:
        return None
    try:
        return read_catalog(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ConsoleError(f"The catalog {path} can't be read ({error}).") from None


def settings_of(session: Session, cluster: str) -> Settings:
    """Policy and memory sizes of a cluster's pools."""
    from services.allocator.core.config import Policy
    from services.allocator.core.decide import Settings

    catalog = catalog_of(session)
    pools = catalog.clusters[cluster].pools if catalog is not None and cluster in catalog.clusters else {}
    memory_mib = {name: pool.memory_mib for name, pool in pools.items()}
    return Settings(policy=Policy(), memory_mib=memory_mib, code_version="", writer="gpugrid-console")

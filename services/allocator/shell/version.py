"""The code version written into every decision: the release and a hash of the sources a decision depends on."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def code_version() -> str:
    """For example `0.1.0+3f2a9c01d4e5`. Equal versions replay each other's decisions to the same bytes."""
    try:
        release = version("gpugrid")
    except PackageNotFoundError:
        release = "0"
    digest = hashlib.sha256()
    core = Path(__file__).parent.parent / "core"
    for path in sorted(core.rglob("*.py")):
        digest.update(path.relative_to(core).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{release}+{digest.hexdigest()[:12]}"

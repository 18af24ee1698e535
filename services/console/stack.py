"""The running stack as its state file tells it: broker, clock, catalog, run folder, processes.

The file is written by `deploy.local.supervisor`; here it is only read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stack:
    """What the console needs of it."""

    name: str
    run_dir: Path
    bootstrap: str
    clock_path: Path | None = None
    catalog_path: Path | None = None


def read_stack(run_root: Path | None, name: str) -> Stack | None:
    """The stack of that name, or None if none runs."""
    del run_root, name
    return None

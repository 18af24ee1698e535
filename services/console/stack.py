"""The running stack as its run folder tells it: broker, clock, catalog, processes and their health endpoints.

The files are written by `deploy.local.supervisor` and by every process (`services.runtime.health`); here they are read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from deploy.local import background
from deploy.local.stack_file import FILE_NAME, StackState
from services.console.errors import ConsoleError

ROOT_VARIABLE = "GPUGRID_RUN_ROOT"
KAFKA = "kafka"
CLOCK_FILE = "clock"
CATALOG_FILE = "catalog.toml"
_CLONE = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Stack:
    """What the console needs of a running stack. `clock_path` only where it runs on a scaled clock."""

    name: str
    run_dir: Path
    bootstrap: str
    state: StackState
    clock_path: Path | None = None
    catalog_path: Path | None = None


def run_root(given: Path | None = None) -> Path:
    """Where run folders are: as given, GPUGRID_RUN_ROOT, `run` here if it exists, else `run` in the clone."""
    if given is not None:
        return given
    if named := os.environ.get(ROOT_VARIABLE):
        return Path(named)
    here = Path.cwd() / "run"
    return here if here.is_dir() else _CLONE / "run"


def running_stacks(root: Path) -> list[Stack]:
    """Every stack that runs under a root, by name."""
    found = []
    for file in sorted(root.glob(f"*/{FILE_NAME}")):
        state = background.status(file.parent)
        if state is not None:
            found.append(_stack(file.parent, state))
    return found


def read_stack(root: Path | None, name: str | None) -> Stack | None:
    """The stack of that name, or the only one; None if none runs. ConsoleError if several run and none is named."""
    folder = run_root(root)
    if name is not None:
        state = background.status(folder / name)
        return None if state is None else _stack(folder / name, state)
    found = running_stacks(folder)
    if len(found) > 1:
        names = ", ".join(stack.name for stack in found)
        raise ConsoleError(f"Several stacks run here ({names}): say which with --stack NAME.")
    return found[0] if found else None


def _stack(run_dir: Path, state: StackState) -> Stack:
    ports = {name: port for process in state.processes for name, port in process.ports.items()}
    clock, catalog = run_dir / CLOCK_FILE, run_dir / CATALOG_FILE
    return Stack(
        name=state.name,
        run_dir=run_dir,
        bootstrap=f"127.0.0.1:{ports[KAFKA]}" if KAFKA in ports else "",
        state=state,
        clock_path=clock if clock.exists() else None,
        catalog_path=catalog if catalog.exists() else None,
    )

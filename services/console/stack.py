"""The running stack as its run folder tells it: broker, clock, catalog, processes and their health endpoints.

The files are written by `deploy.local.supervisor` and by every process (`services.runtime.health`); here they are read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from deploy.local import background
from deploy.local.stack_file import FILE_NAME, StackState
from services.console.errors import ConsoleError

ROOT_VARIABLE = "GPUGRID_RUN_ROOT"
KAFKA = "kafka"
_CLONE = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Stack:
    """What the console needs of a running stack. `environment`: the `GPUGRID_*` variables of its allocator."""

    name: str
    run_dir: Path
    bootstrap: str
    state: StackState
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def clock(self) -> str:
        """The clock its services run on, as their configuration names it."""
        return self.environment.get("GPUGRID_CLOCK", "wall")


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
    return Stack(
        name=state.name,
        run_dir=run_dir,
        bootstrap=f"127.0.0.1:{ports[KAFKA]}" if KAFKA in ports else "",
        state=state,
        environment=_environment(state),
    )


def _environment(state: StackState) -> dict[str, str]:
    """Variables of the allocator's process, or of any other one of the stack while the allocator is down."""
    for process in sorted(state.processes, key=lambda one: (not one.name.startswith("allocator"), one.name)):
        try:
            variables = psutil.Process(process.pid).environ() if process.pid else {}
        except psutil.Error:
            continue
        found = {name: value for name, value in variables.items() if name.startswith("GPUGRID_")}
        if "GPUGRID_BOOTSTRAP" in found:
            return found
    return {}

"""`stack.json` in a run folder: which processes and ports a running stack has, for `down`, `status` and the curious.

Owns that file. Refuses to believe it blindly: a process counts only if it started when the file says so.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec
import psutil

FILE_NAME = "stack.json"
START_TOLERANCE_S = 1.0  # psutil derives start times from clock ticks and boot time, which clock corrections move


class ProcessState(msgspec.Struct, kw_only=True, frozen=True):
    """One process: `state` is waiting, starting, ready, backing-off, done, failed or stopped."""

    name: str
    state: str
    pid: int = 0
    started_s: float = 0.0
    guard_pid: int = 0
    guard_started_s: float = 0.0
    restarts: int = 0
    log: str = ""
    ports: dict[str, int] = {}


class StackState(msgspec.Struct, kw_only=True, frozen=True):
    """One stack: `state` is starting, ready, disturbed, stopping or failed."""

    name: str
    state: str
    supervisor_pid: int
    supervisor_started_s: float
    processes: tuple[ProcessState, ...] = ()
    failure: str = ""


def started_s(pid: int) -> float:
    """When the process started, Unix seconds; 0 if it is gone."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0


def is_alive(pid: int, start_s: float) -> bool:
    """Whether this very process, not a later one with its number, still runs."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - start_s) <= START_TOLERANCE_S
        return pid > 0 and same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def write(run_dir: Path, state: StackState) -> None:
    """Replace the file at once; a full disk costs `status` its freshness, never the stack its life."""
    unfinished = run_dir / f".{FILE_NAME}.{os.getpid()}"
    try:
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
        unfinished.replace(run_dir / FILE_NAME)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def read(run_dir: Path) -> StackState | None:
    """The state last written, or None without a (readable) file."""
    try:
        return msgspec.json.decode((run_dir / FILE_NAME).read_bytes(), type=StackState)
    except (OSError, msgspec.DecodeError):
        return None


def remove(run_dir: Path) -> None:
    """The stack is gone."""
    with contextlib.suppress(OSError):
        (run_dir / FILE_NAME).unlink(missing_ok=True)

"""Why a process could not start or how it ended, as a cause and a sentence that says what to look at.

Owns: reading errno, stage, exit code and signal. Read next: `run_folder.py`, `process.py`.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from schemas.executions import FailureCause
from schemas.placements import Assignment
from services.executor.core.reports import Exit
from services.executor.shell.drivers.port import StartRefusedError
from services.executor.shell.drivers.run_folder import Ended

FULL = (errno.ENOSPC, errno.EDQUOT)
FREE_BYTES_MIN = 64 * 1024
"""A disk with less than that is full, as far as a job's output is concerned."""


def preflight(assignment: Assignment) -> None:
    """Raises StartRefusedError for what can't start here, whatever is free."""
    if not assignment.command:
        hint = (
            "start this node's executor with GPUGRID_DRIVER=simulated"
            if assignment.template == "simulated"
            else "submit it with a command"
        )
        raise StartRefusedError(
            FailureCause.PREFLIGHT, f"template {assignment.template!r} names no command for the process driver: {hint}"
        )
    directory = assignment.working_directory
    if directory is not None and not Path(directory).is_dir():
        raise StartRefusedError(FailureCause.WORKING_DIRECTORY, f"working directory {directory} doesn't exist here")


def refused(error: OSError, folder: Path) -> StartRefusedError:
    """The run folder could not be prepared, or the runner not be started."""
    cause = FailureCause.DISK_FULL if error.errno in FULL else FailureCause.SPAWN
    return StartRefusedError(cause, f"{folder}: {error.strerror or error}")


def spawn_failure(noted: Ended, assignment: Assignment) -> StartRefusedError:
    """The runner was there, but the job's process could not begin."""
    number = noted.errno or 0
    if number in FULL:
        return StartRefusedError(FailureCause.DISK_FULL, f"disk full while starting ({noted.stage})")
    if noted.stage == "directory":
        detail = f"{assignment.working_directory}: {os.strerror(number)}"
        return StartRefusedError(FailureCause.WORKING_DIRECTORY, detail)
    command = (assignment.command or [""])[0]
    return StartRefusedError(FailureCause.SPAWN, f"{command}: {os.strerror(number)} ({noted.stage})")


def never_began(folder: Path) -> StartRefusedError:
    """The runner ended, or took too long, before it was the job's."""
    if _full(folder):
        return StartRefusedError(
            FailureCause.DISK_FULL, f"the disk of {folder} is full: No space left for the job's end"
        )
    return StartRefusedError(FailureCause.SPAWN, f"the runner didn't get the job to begin; see {folder}/runner.log")


def exit_of(noted: Ended, time_ms: int, folder: Path) -> Exit:
    """What the runner noted, as the end of a run. A failure on a full disk is put down to the disk."""
    if noted.errno is not None:
        return Exit(time_ms, FailureCause.SPAWN, detail=f"{os.strerror(noted.errno)} ({noted.stage})")
    if noted.signal is not None:
        return Exit(time_ms, FailureCause.SIGNAL, signal=noted.signal, detail=f"ended by signal {noted.signal}")
    if not noted.code:
        return Exit(time_ms)
    if _full(folder):
        detail = f"exit code {noted.code}, and the disk of {folder} is full"
        return Exit(time_ms, FailureCause.DISK_FULL, exit_code=noted.code, detail=detail)
    return Exit(time_ms, FailureCause.EXIT_CODE, exit_code=noted.code, detail=f"exit code {noted.code}")


def _full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < FREE_BYTES_MIN
    except OSError:
        return False

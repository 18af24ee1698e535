"""What is in the folder of one attempt, and how it is read and written: each file whole or not at all.

Owns: the files of the runner (`claim`, `job.json`, `exit.json`) as structs, where a job's folders are, writing in one step, and taking an
attempt away from a runner that has not begun. Refuses: knowing what is done with them. Read next: `runner.py`, `process.py`,
`conversation.py`.
"""

from __future__ import annotations

import contextlib
import os
from hashlib import sha256
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from services.executor.shell.drivers.port import Order
from services.executor.shell.runner import EXIT_NOTE, JOB_NOTE

LOG_FILE = "output.log"
OVER_FILE = "over"
FOLDER_NAME_LENGTH_MAX = 200
T = TypeVar("T")


class Claim(Struct):
    """Whose the attempt is: the runner's. An empty one is that of an executor that gave it up."""

    pid: int
    ticks: int


class Began(Struct):
    """The job's process (`job.json`)."""

    pid: int
    ticks: int
    wall_ms: int


class Ended(Struct):
    """How it ended (`exit.json`). `errno` and `stage`: it never began."""

    wall_ms: int
    code: int | None = None
    signal: int | None = None
    errno: int | None = None
    stage: str = ""


def folder_of(root: Path, order: Order) -> Path:
    """Where everything about one attempt is."""
    return root / order.node / folder_name(order.assignment.job_id) / f"{order.assignment.attempt}-{order.spawn}"


def folder_name(job_id: str) -> str:
    """A job's folder on each of its nodes."""
    name = quote(job_id, safe="")
    return name if len(name) <= FOLDER_NAME_LENGTH_MAX else sha256(job_id.encode()).hexdigest()


def read(path: Path, struct: type[T]) -> T | None:
    """None if it isn't there or not (yet) whole."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=struct)
    except (OSError, msgspec.MsgspecError):
        return None


def began_in(folder: Path) -> Began | None:
    """The runner's note of the job's process, once there is one."""
    return read(folder / JOB_NOTE, Began)


def ended_in(folder: Path) -> Ended | None:
    """The runner's note of how it ended, once there is one."""
    return read(folder / EXIT_NOTE, Ended)


def write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


def mark_over(folder: Path) -> None:
    """Whoever follows the output learns that no more will come, although no runner noted an end (`exit.json`)."""
    with contextlib.suppress(OSError):  # the folder is gone, or somebody made it read-only: nobody follows that
        (folder / OVER_FILE).touch()


def abandon(folder: Path) -> bool:
    """Take the attempt away from a runner that has not begun; False if a runner (or an earlier executor) has the claim.

    An empty file, because on a full disk there is room for no more, and the question must be answered there, too."""
    try:
        os.close(os.open(folder / "claim", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    return True

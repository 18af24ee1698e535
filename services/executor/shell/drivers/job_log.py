"""A job's output does not fill the disk: a log that has grown too long is copied away and cut off.

Owns: rotation of `output.log` to `output.log.1` and so on. The job keeps its open file (it appends, so cutting off is safe); what it
writes between the last copied byte and the cut is lost: microseconds, and only at a rotation. Refuses: pipes, which would die with
whoever reads them. Read next: `process.py`.
"""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

LOG_BYTES_MAX = 64 * 1024 * 1024
LOGS_KEPT = 3
"""The current one and two older: 192 MiB per attempt at most."""
COPY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogLimits:
    """`bytes_max` per file, `kept` files in all."""

    bytes_max: int = LOG_BYTES_MAX
    kept: int = LOGS_KEPT


def is_long(path: Path, limits: LogLimits) -> bool:
    try:
        return path.stat().st_size > limits.bytes_max
    except OSError:
        return False


def rotate(path: Path, limits: LogLimits) -> None:
    """Move the older files up, copy the current one, cut it off. Raises OSError where there is no room for the copy: nothing is cut then,
    and no half of a copy takes the room that is left."""
    for number in range(limits.kept - 1, 1, -1):
        older = path.with_name(f"{path.name}.{number - 1}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number}"))
    if limits.kept < 2:
        os.truncate(path, 0)
        return
    if shutil.disk_usage(path.parent).free < path.stat().st_size + COPY_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    fresh = path.with_name(f"{path.name}.new")
    try:
        _copy_and_cut(path, fresh)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _copy_and_cut(path: Path, fresh: Path) -> None:
    with path.open("rb") as source, fresh.open("wb") as target:
        while chunk := source.read(COPY_BYTES):
            target.write(chunk)
        target.flush()
        fresh.replace(path.with_name(f"{path.name}.1"))
        while chunk := source.read(COPY_BYTES):  # what came meanwhile
            target.write(chunk)
        target.flush()
        os.truncate(path, 0)

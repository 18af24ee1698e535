"""Where downloads live between runs, and the lock that lets two processes fill that place at once.

Owns the cache root and directory locks. Refuses to hold anything that cannot be downloaded or computed again.
Read next: `kafka_jars`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_POLL_S = 0.1  # short enough that Ctrl-C and a released lock are noticed at once


class CacheUnusableError(RuntimeError):
    """The cache folder cannot be used; the message says what to do."""


def cache_root() -> Path:
    """The folder for downloads: `GPUGRID_CACHE`, else the platform's cache folder."""
    override = os.environ.get("GPUGRID_CACHE")
    if override:
        return Path(override).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "gpugrid"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpugrid"


def write_failure(folder: Path, error: OSError, elsewhere: str) -> str:
    """One sentence for a failed write; `elsewhere` says how to use another place."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"The disk of {folder} is full: free some space, or {elsewhere}."
    return f"Writing to {folder} failed ({error.strerror or error}): fix the folder, or {elsewhere}."


def usable_folder(path: Path) -> Path:
    """Create `path` and prove that a file can be written there, or say in one sentence why not."""
    probe = path / f".write-test-{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise CacheUnusableError(
            f"The cache folder {path} cannot be written ({error.strerror}): free or fix it, or set GPUGRID_CACHE to "
            "a folder that you can write to."
        ) from error
    return path


@contextmanager
def directory_lock(path: Path, wait_s: float, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold `path` (a folder) exclusively among processes; the lock dies with its holder and leaves no file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + wait_s
    told = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"Another process has held {path} for {wait_s:.0f} s.") from None
                if on_wait is not None and not told:
                    on_wait()
                    told = True
                time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)

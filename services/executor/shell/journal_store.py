"""Where a node's journal is kept: a port, a store in memory (simulation) and an append-only file (production).

Owns: durability. `append` survives the death of the process, `sync` the death of the machine. A line that a crash left
half-written is cut off on opening; a damaged line before the last is an error. Refuses: two executors on one journal.
Read next: `core/journal.py` for what the entries mean.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from services.executor.core.journal import Entry

COMPACT_BYTES = 16 * 1024 * 1024
"""A longer file is rewritten as one snapshot: about 20,000 placements and reports, read back in well under a second."""

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Entry)


class JournalError(Exception):
    """The journal can't be opened or is damaged; the message says what to do."""


class JournalStore(Protocol):
    """One node's journal."""

    def read(self) -> list[Entry]:
        """All entries, oldest first."""
        ...

    def append(self, entries: Sequence[Entry]) -> None:
        """All or, after a crash in between, a part of them from the front."""
        ...

    def sync(self) -> None:
        """Return when everything appended survives a power cut."""
        ...

    def replace(self, entries: Sequence[Entry]) -> None:
        """Keep only these, in one step."""
        ...

    @property
    def oversized(self) -> bool:
        """Time to `replace` it by a snapshot."""
        ...

    def close(self) -> None: ...


class MemoryJournal:
    """Keeps encoded entries, so that whoever reads them back gets copies, as from a file. Survives a simulated crash."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def read(self) -> list[Entry]:
        return [_DECODER.decode(line) for line in self._lines]

    def append(self, entries: Sequence[Entry]) -> None:
        self._lines.extend(_ENCODER.encode(entry) for entry in entries)

    def sync(self) -> None:
        pass

    def replace(self, entries: Sequence[Entry]) -> None:
        self._lines = [_ENCODER.encode(entry) for entry in entries]

    @property
    def oversized(self) -> bool:
        return False

    def close(self) -> None:
        pass


class FileJournal:
    """One line per entry: checksum, space, JSON. `durable=False` skips the disk flush (a demo doesn't outlive its machine)."""

    def __init__(self, path: Path, *, durable: bool = True, compact_bytes: int = COMPACT_BYTES) -> None:
        self._path = path
        self._durable = durable
        self._compact_bytes = compact_bytes
        self._unsynced = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(path.with_suffix(".lock"))
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._bytes = 0

    def read(self) -> list[Entry]:
        content = self._path.read_bytes()
        entries, good_bytes = _parsed(content, self._path)
        if good_bytes < len(content):
            os.ftruncate(self._fd, good_bytes)
        self._bytes = good_bytes
        return entries

    def append(self, entries: Sequence[Entry]) -> None:
        content = b"".join(_line(entry) for entry in entries)
        _write(self._fd, content)
        self._bytes += len(content)
        self._unsynced = True

    def sync(self) -> None:
        if self._unsynced and self._durable:
            os.fdatasync(self._fd)
        self._unsynced = False

    def replace(self, entries: Sequence[Entry]) -> None:
        fresh = self._path.with_suffix(".new")
        content = b"".join(_line(entry) for entry in entries)
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        _write(fd, content)
        os.fsync(fd)
        fresh.replace(self._path)
        if self._durable:
            _sync_folder(self._path.parent)  # or a power cut brings the old file back, without what follows
        os.close(self._fd)
        self._fd, self._bytes, self._unsynced = fd, len(content), False

    @property
    def oversized(self) -> bool:
        return self._bytes > self._compact_bytes

    def close(self) -> None:
        self.sync()
        os.close(self._fd)
        os.close(self._lock)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _line(entry: Entry) -> bytes:
    encoded = _ENCODER.encode(entry)
    return b"%08x %s\n" % (zlib.crc32(encoded), encoded)


def _parsed(content: bytes, path: Path) -> tuple[list[Entry], int]:
    """Entries, and the length of the part that is whole."""
    entries: list[Entry] = []
    good_bytes = 0
    while good_bytes < len(content):
        end = content.find(b"\n", good_bytes)
        line = content[good_bytes:end] if end >= 0 else b""
        entry = _entry(line)
        if entry is None:
            if 0 <= end < len(content) - 1:
                raise JournalError(
                    f"{path} is damaged at byte {good_bytes}. Nothing is started here, because what ran before is unknown: "
                    "make sure that no job of this node is alive, then move the file away"
                )
            break
        entries.append(entry)
        good_bytes = end + 1
    return entries, good_bytes


def _entry(line: bytes) -> Entry | None:
    checksum, _, encoded = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(encoded):
            return None
        return _DECODER.decode(encoded)
    except (ValueError, msgspec.MsgspecError):
        return None


def _locked(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise JournalError(
            f"another executor already serves this node ({path} is locked): stop it first, or give this one other nodes"
        ) from None
    return fd

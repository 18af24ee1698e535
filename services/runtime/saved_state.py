"""A handler's state in a file on this machine, so that a restart reads only what has come since.

    saved = SavedState(folder / "state", handler)
    await saved.restore(bus, "forecaster-0")   # False: everything has to be read
    saved.save()                               # from time to time, where the handler is between two records

Owns: the file (written beside the process by a forked child, whole or not at all), and when it may be believed: made by the same code, the
same interpreter and a handler made with the same things, and folded from the very topics that are there. Refuses: being needed. The topics
are the truth; whatever is wrong with the file, everything is read from them again. Whoever can write to the run folder can run code here
(it is a pickle), as with the programs in it. Read next: `hop.py`.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import os
import pickle
import platform
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import schemas
from services.runtime.bus.port import Bus, Consumer, TopicPartition
from services.runtime.handler import Mark, Savable

SAVE_WAIT_S = 120.0
"""A child that takes longer is killed; the next one tries again. Its like takes two seconds per 100,000 kept jobs."""
CHECK_WAIT_S = 10.0
"""Longest wait for the records that show whether the topics are the same."""
CHECK_BATCH_RECORDS = 100
CHILD_NICENESS = 10
SOURCES = (Path(__file__).parents[1], Path(schemas.__file__).parent)
"""All code that may have a say in what a state means; reading it takes some 20 ms."""

log = logging.getLogger(__name__)


class SavedState:
    """One file, in a folder of this instance. `save` returns at once; at most one child writes at a time."""

    def __init__(self, path: Path, handler: Savable) -> None:
        self._path = path
        self._handler = handler
        self._child = 0
        self._begun_s = 0.0
        self._fingerprint = fingerprint(handler)

    def save(self) -> bool:
        """Begin to write the present state, in a child that has it as it is now; False if the last one isn't done, or none can be made."""
        if self.busy():
            return False
        self._begun_s = time.monotonic()
        try:
            self._child = os.fork()
        except OSError as error:
            log.warning("the state can't be saved: %s", error)
            return False
        if self._child == 0:
            os._exit(self._write_and_leave())
        return True

    def busy(self) -> bool:
        """Whether a child still writes; one that takes too long is ended."""
        if not self._child:
            return False
        ended, status = os.waitpid(self._child, os.WNOHANG)
        if ended:
            self._child = 0
            if status:
                log.warning(
                    "the state was not saved (a full disk, or too little memory?): a restart reads more of the topics"
                )
            return False
        if time.monotonic() - self._begun_s > SAVE_WAIT_S:
            os.kill(self._child, signal.SIGKILL)
        return True

    def marks(self) -> Mapping[TopicPartition, Mark]:
        """How far the handler has folded."""
        return self._handler.marks()

    def wait(self) -> None:
        """Until no child writes."""
        if self._child:
            os.waitpid(self._child, 0)
            self._child = 0

    async def restore(self, bus: Bus, client_id: str) -> bool:
        """Put what the newest file says into the handler, if it may be believed: one's own, or that of another instance beside."""
        for left in self._path.parent.glob(f"{self._path.name}.*.new"):  # of children that died with their process
            left.unlink(missing_ok=True)
        for path in _newest_first(self._path):
            try:
                with path.open("rb") as file:
                    kept, marks = pickle.load(file)  # noqa: S301 - our own file
                    if kept == self._fingerprint and await _same_topics(bus, client_id, marks):
                        self._handler.use_state(pickle.load(file))  # noqa: S301
                        log.info("going on from the state in %s", path)
                        return True
            except Exception as error:  # a pickle of other code or a damaged one may raise anything
                log.warning("the state in %s can't be read: %r", path, error)
            else:
                log.info("the state in %s is of another version, catalog or model, or of other topics", path)
        return False

    def _write_and_leave(self) -> int:
        """The child's whole life. It owns no connection: were its parent killed, the other ends must notice."""
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            gc.disable()  # a collection would copy every page
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _close_all()
            os.nice(CHILD_NICENESS)
            with fresh.open("wb") as file:
                state = self._handler.state()  # it may fold first what was kept back
                pickle.dump((self._fingerprint, dict(self._handler.marks())), file, protocol=pickle.HIGHEST_PROTOCOL)
                pickle.dump(state, file, protocol=pickle.HIGHEST_PROTOCOL)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                fresh.unlink()
            return 1
        return 0


def _close_all() -> None:
    """All but the standard streams. The limit of open files may be a thousand million: only what is open is named."""
    for path in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the listing's own
            if int(path.name) > 2:
                os.close(int(path.name))


def _newest_first(own: Path) -> list[Path]:
    """The files of all instances that run beside: each in a folder of its own."""
    found = [(path.stat().st_mtime, path) for path in own.parent.parent.glob(f"*/{own.name}")]
    return [path for _, path in sorted(found, reverse=True)]


def fingerprint(handler: Savable) -> str:
    """Of everything that a state depends on besides records."""
    import numpy as np  # whoever has a state worth saving has it loaded; other services needn't

    digest = hashlib.sha256()
    for part in (sys.version, platform.machine(), np.__version__):
        digest.update(part.encode())
    for folder in SOURCES:
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(path.read_bytes())
    digest.update(handler.made_with())
    return digest.hexdigest()


async def _same_topics(bus: Bus, client_id: str, marks: Mapping[TopicPartition, Mark]) -> bool:
    """Whether the marked records are there as they were. One that retention or compaction took says nothing; some have to be there."""
    if not marks:
        return True
    reader = bus.reader(f"{client_id}-marks", sorted(marks))
    await reader.start()
    try:
        return await _agree(reader, marks)
    finally:
        await reader.stop()


async def _agree(reader: Consumer, marks: Mapping[TopicPartition, Mark]) -> bool:
    begins, ends = await reader.beginning_offsets(sorted(marks)), await reader.end_offsets(sorted(marks))
    if any(mark.offset >= ends[part] for part, mark in marks.items()):
        return False
    open_parts = {part for part, mark in marks.items() if mark.offset >= begins[part]}
    for part, mark in marks.items():
        await reader.seek(part, mark.offset if part in open_parts else ends[part])
    agreed = 0
    give_up_s = time.monotonic() + CHECK_WAIT_S
    while open_parts and time.monotonic() < give_up_s:
        for record in await reader.poll(max_records=CHECK_BATCH_RECORDS, timeout_s=1.0):
            part = (record.topic, record.partition)
            if part not in open_parts:
                continue
            open_parts.discard(part)
            reader.pause([part])
            if record.offset == marks[part].offset:
                if record.timestamp_ms != marks[part].timestamp_ms:
                    return False
                agreed += 1
    return agreed > 0 and not open_parts

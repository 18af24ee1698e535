"""The talk with one job: requests to it and answers from it, as files of its run folder; a socket fills the same files.

Owns: which file was heard already, the socket at which a job may send lines instead of writing files, and the wait for an
answer. A file counts as new when its inode, time or size changed, so a job writes elsewhere and renames. Because lines end up in
files, they survive this process, and everything else looks at files only. Refuses: believing nonsense (a wrong line or file is as
none). Read next: `docs/jobs.md`, `process.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from services.executor.core.reports import Progress
from services.executor.shell.drivers.environment import (
    ANSWER_FILE,
    GPUS_ANSWER_FILE,
    GPUS_FILE,
    PROGRESS_FILE,
    REQUEST_FILE,
)
from services.executor.shell.drivers.port import Answer
from services.executor.shell.drivers.run_folder import read, write
from services.runtime.clock import Clock

ANSWER_POLL_S = 0.05
"""How late an answer that is awaited may be noticed."""
NEWS_POLL_S = 0.5
"""How late something that nobody asked for is noticed. Two `stat` calls per job and poll."""
PROGRESS_PERIOD_S = 10.0
"""One report per job and period at most: people and forecasts need no more, the broker has other things to store."""
LINE_BYTES_MAX = 64 * 1024
"""A longer line ends the connection."""


class _Answer(Struct):
    fraction: Annotated[float, Meta(ge=0, le=1)]
    location: Annotated[str, Meta(max_length=4096)] = ""


class _Progress(Struct):
    step: Annotated[int, Meta(ge=0)] | None = None
    fraction: Annotated[float, Meta(ge=0, le=1)] | None = None
    samples_per_s: Annotated[float, Meta(ge=0, le=1e12)] | None = None


class _Line(Struct):
    """One line at the socket: exactly what would be the content of the file of that name."""

    checkpoint: _Answer | None = None
    progress: _Progress | None = None
    gpus: str | None = None


T = TypeVar("T")
_Identity = tuple[int, int, int]


class Conversation:
    """Files and socket of one run. `open` before the job begins, `close` after its end."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._heard: dict[str, _Identity | None] = {}
        self._progress_s = float("-inf")
        self._asking = False
        self._server: asyncio.Server | None = None

    # --- what the job says by itself

    def by_itself(self) -> Answer | Progress | None:
        """As `unheard`, but an answer that `ask` waits for is left to it: taken here, it would wait in vain."""
        return self._progress() if self._asking else self.unheard()

    def unheard(self) -> Answer | Progress | None:
        """The next thing nobody has taken yet."""
        answer = self._new(ANSWER_FILE, _Answer)
        if answer is not None:
            return Answer(answer.fraction, answer.location)
        return self._progress()

    def _progress(self) -> Progress | None:
        if self._clock.wall_s() - self._progress_s < PROGRESS_PERIOD_S:
            return None
        progress = self._new(PROGRESS_FILE, _Progress)
        if progress is None:
            return None
        self._progress_s = self._clock.wall_s()
        return Progress(progress.step, progress.fraction, progress.samples_per_s)

    # --- what it is asked

    async def ask(self, signal_job: Callable[[], Awaitable[bool]], wait_s: float, gone: asyncio.Event) -> Answer | None:
        """Request a checkpoint and wait for the answer; None if there was none in time. `signal_job`: False as long as the job could not
        be told, it is tried again then (a job that has only just begun does not handle its signal yet)."""
        request = self._folder / REQUEST_FILE
        try:
            request.touch()
        except OSError:
            return None  # a full disk: the job could not save its work either
        before = self._identity(ANSWER_FILE)
        self._asking = True
        try:
            until_s = self._clock.wall_s() + wait_s
            told = False
            while True:
                told = told or await signal_job()
                ended = gone.is_set()  # looked at before the file: an answer given with the last breath counts
                if self._identity(ANSWER_FILE) != before:
                    found = self._new(ANSWER_FILE, _Answer)
                    if found is not None:
                        return Answer(found.fraction, found.location)
                if ended or self._clock.wall_s() >= until_s:
                    return None
                await self._clock.sleep_wall(ANSWER_POLL_S)
        finally:
            self._asking = False
            with contextlib.suppress(OSError):
                request.unlink(missing_ok=True)

    def tell_gpus(self, devices: str) -> None:
        """The application reads its file; nobody is signalled, because an unprepared process would die of it."""
        write(self._folder / GPUS_FILE, devices.encode())

    async def gpus_acknowledged(self, wait_s: float, gone: asyncio.Event) -> None:
        """Return when the application repeated its newest list of GPUs, has ended, or the wait is over."""
        until_s = self._clock.wall_s() + wait_s
        while not gone.is_set() and self._clock.wall_s() < until_s:
            with contextlib.suppress(OSError):
                wanted = (self._folder / GPUS_FILE).read_text().strip()
                if (self._folder / GPUS_ANSWER_FILE).read_text().strip() == wanted:
                    return
            await self._clock.sleep_wall(ANSWER_POLL_S)

    # --- the socket

    async def open(self) -> str:
        """The socket's path; empty where there can be none (files still work)."""
        path = socket_path(self._folder)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if path.parent.stat().st_uid != os.getuid():
                return ""
            path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._lines, str(path), limit=LINE_BYTES_MAX)
        except OSError:
            return ""
        return str(path)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            socket_path(self._folder).unlink(missing_ok=True)

    async def _lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self._take(line)
        except (OSError, ValueError):
            pass  # the job is gone, or its line too long
        finally:
            writer.close()

    def _take(self, line: bytes) -> None:
        try:
            said = msgspec.json.decode(line, type=_Line)
        except msgspec.MsgspecError:
            return
        contents = (
            (ANSWER_FILE, said.checkpoint, msgspec.json.encode(said.checkpoint)),
            (PROGRESS_FILE, said.progress, msgspec.json.encode(said.progress)),
            (GPUS_ANSWER_FILE, said.gpus, (said.gpus or "").encode()),
        )
        for name, given, content in contents:
            if given is not None:
                with contextlib.suppress(OSError):
                    write(self._folder / name, content)

    # --- files

    def _new(self, name: str, struct: type[T]) -> T | None:
        identity = self._identity(name)
        if identity is None or identity == self._heard.get(name):
            return None
        found = read(self._folder / name, struct)
        if found is not None:
            self._heard[name] = identity
        return found

    def _identity(self, name: str) -> _Identity | None:
        try:
            status = (self._folder / name).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def socket_path(folder: Path) -> Path:
    """Short, because the kernel allows 107 bytes, in a folder that is this user's alone."""
    name = sha256(str(folder).encode()).hexdigest()[:24]
    return Path(tempfile.gettempdir()) / f"gpugrid-{os.getuid()}" / name

"""Finished spans as JSON lines in a bounded local file, so that a trace can be read without any back end.

Owns: the line's form, the file `RUN_DIR/spans/NAME.jsonl`, its one rotation (`NAME.jsonl.1`), and reading a trace back
from all of a run's files. One file per process; a span is one write, so kill -9 loses at most the span being written.
Refuses to grow: the older half is dropped. Read next: `tracing.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

SPOOL_BYTES_MAX = 32 * 1024 * 1024
"""Per file; with its rotated predecessor a process keeps 64 MiB at most: about 150,000 spans, a replayed day."""
FOLDER = "spans"

log = logging.getLogger(__name__)


class SpanLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finished span. Times are wall clock, nanoseconds since the Unix epoch; ids lower-case hex; `parent_id` "" for a
    root; `links` are the trace ids this span also belongs to; `error` "" unless it failed."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str
    service: str
    instance_id: str = ""
    kind: str = "internal"
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = {}
    links: tuple[str, ...] = ()
    error: str = ""


_ENCODE = msgspec.json.Encoder(enc_hook=str).encode
_DECODER = msgspec.json.Decoder(SpanLine)


class SpanSpool:
    """Appends spans to one process's file. A full disk costs spans, never the caller."""

    def __init__(self, run_dir: str | Path, name: str, *, bytes_max: int = SPOOL_BYTES_MAX) -> None:
        self._path = Path(run_dir) / FOLDER / f"{name}.jsonl"
        self._bytes_max = bytes_max
        self._broken = False
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._opened()
        self._size_bytes = os.fstat(self._file).st_size

    def write(self, line: SpanLine) -> None:
        data = _ENCODE(line) + b"\n"
        try:
            if self._size_bytes + len(data) > self._bytes_max:
                self._rotate()
            self._size_bytes += os.write(self._file, data)
        except OSError as error:
            if not self._broken:
                log.warning("spans can't be written to %s any more (%s); tracing goes on without", self._path, error)
            self._broken = True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _opened(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _rotate(self) -> None:
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        os.close(self._file)
        self._file = self._opened()
        self._size_bytes = 0


def read_spans(run_dir: str | Path, trace_id: str) -> list[SpanLine]:
    """All spans of a trace (its own, and those that link to it) in a run's files, by start. A torn last line is skipped."""
    wanted = trace_id.encode()
    found = [line for data in _lines(Path(run_dir) / FOLDER) if wanted in data and (line := _decoded(data)) is not None]
    mine = [line for line in found if line.trace_id == trace_id or trace_id in line.links]
    return sorted(mine, key=lambda line: (line.start_ns, line.end_ns, line.span_id))


def _lines(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.glob("*.jsonl*")):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # rotated away meanwhile
            yield from file


def _decoded(data: bytes) -> SpanLine | None:
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError:
        return None


def recent_spans(run_dir: str | Path, since_ns: int) -> Iterator[SpanLine]:
    """All spans of a run that ended since then, file by file. A torn last line is skipped."""
    for data in _lines(Path(run_dir) / FOLDER):
        line = _decoded(data)
        if line is not None and line.end_ns >= since_ns:
            yield line

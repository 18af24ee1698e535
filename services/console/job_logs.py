"""A job's output as its executor keeps it on this machine: found in the run folder, shown, followed.

Owns: finding the newest attempt's file and following it over rotations until the attempt has ended. Refuses: other machines' files
(it says which node has them). Read next: `cli_runs.py`, `docs/jobs.md`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from services.console.errors import ConsoleError
from services.executor.shell.drivers.run_folder import LOG_FILE, OVER_FILE, folder_name
from services.executor.shell.runner import EXIT_NOTE

FOLLOW_POLL_S = 0.2
READ_BYTES = 1024 * 1024
ENDS = (EXIT_NOTE, OVER_FILE)
"""Either lies in the folder of an attempt that has ended: its runner's note, or its executor's word where there is none."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """One attempt's output. `attempt`-`spawn` is its folder's name."""

    node: str
    attempt: int
    spawn: int
    path: Path

    @property
    def ended(self) -> bool:
        return any((self.path.parent / name).exists() for name in ENDS)


def find_logs(run_dir: Path, job_id: str, *, node: str | None = None, attempt: int | None = None) -> list[RunLog]:
    """All attempts of the job that have output here, oldest first."""
    found = []
    for nodes in sorted((run_dir / "nodes").glob(node or "*")):
        for path in (nodes / folder_name(job_id)).glob(f"*-*/{LOG_FILE}"):
            number, _, spawn = path.parent.name.partition("-")
            if number.isdigit() and spawn.isdigit() and attempt in (None, int(number)):
                found.append(RunLog(nodes.name, int(number), int(spawn), path))
    return sorted(found, key=lambda log: (log.attempt, log.spawn, log.node))


def newest(run_dir: Path, job_id: str, *, node: str | None, attempt: int | None) -> RunLog:
    """The attempt to show; of a gang its first node in order of name. ConsoleError if there is none here."""
    logs = find_logs(run_dir, job_id, node=node, attempt=attempt)
    if not logs:
        raise ConsoleError(
            f"No output of {job_id} is kept in {run_dir / 'nodes'}: it has not started, its executor runs on another machine"
            " (`gpugrid jobs` names the node), or its folder was removed after the retention."
        )
    last = [log for log in logs if (log.attempt, log.spawn) == (logs[-1].attempt, logs[-1].spawn)]
    return last[0]


def tail(path: Path, lines: int) -> tuple[bytes, int]:
    """The last lines, and the offset behind them."""
    size = path.stat().st_size
    begin = size
    content = b""
    with path.open("rb") as file:
        while begin > 0 and content.count(b"\n") <= lines:
            begin = max(0, begin - READ_BYTES)
            file.seek(begin)
            content = file.read(size - begin)
    kept = content.splitlines(keepends=True)[-lines:] if lines else []
    return b"".join(kept), size


def follow(log: RunLog, offset: int, pause: Callable[[float], None] = time.sleep) -> Iterator[bytes]:
    """What comes after `offset`, until the attempt has ended. A file that became shorter was rotated: first what was not read of the
    copy, then the file from its start."""
    rotated = log.path.with_name(f"{log.path.name}.1")
    while True:
        ended = log.ended  # looked at before the file: what was written before the end is shown
        try:
            size = log.path.stat().st_size
        except OSError:
            return
        if size < offset:
            yield from _pieces(rotated, offset)
            offset = 0
        for content in _pieces(log.path, offset, size):
            offset += len(content)
            yield content
        if ended:
            return
        pause(FOLLOW_POLL_S)


def _pieces(path: Path, begin: int, end: int | None = None) -> Iterator[bytes]:
    """The file from `begin` on, to `end` at least or as far as it goes; nothing where there is no such file."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        file.seek(begin)
        while (end is None or file.tell() < end) and (content := file.read(READ_BYTES)):
            yield content

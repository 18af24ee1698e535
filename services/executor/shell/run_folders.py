"""Run folders of attempts that ended long ago are removed, with the output in them.

Owns: which folders are old enough, and removing them: at the start and once an hour. Refuses: touching what is alive here, and
whatever doesn't look like a run folder. Checkpoints are the jobs' own and live where jobs put them, not here. Read next:
`drivers/run_folder.py`, `loop.py`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Container
from pathlib import Path

from services.executor.shell.drivers.run_folder import LOG_FILE
from services.executor.shell.runner import EXIT_NOTE

SWEEP_S = 3600.0
"""Wall seconds between two sweeps: retention is counted in hours."""
_ATTEMPT = re.compile(r"\d+-\d+")


def sweep(root: Path, alive: Container[Path], now_s: float, retention_s: float) -> None:
    """Remove what is older than the retention. `now_s`: wall seconds since the epoch, as files' times are."""
    remove(old_folders(root, alive, now_s, retention_s))


def old_folders(root: Path, alive: Container[Path], now_s: float, retention_s: float) -> list[Path]:
    """Attempt folders under `root` (`<node>/<job>/<attempt>-<spawn>`) that ended, or were last written, before the retention."""
    found = []
    for folder in sorted(root.glob("*/*/*-*")):
        if not _ATTEMPT.fullmatch(folder.name) or not (folder / "spec.json").exists() or folder in alive:
            continue
        newest_s = max(
            path.stat().st_mtime for path in (folder, folder / EXIT_NOTE, folder / LOG_FILE) if path.exists()
        )
        if now_s - newest_s > retention_s:
            found.append(folder)
    return found


def remove(folders: list[Path]) -> None:
    """Remove them, and job folders that became empty. What can't be removed stays for the next sweep."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.parent.is_dir() and not any(folder.parent.iterdir()):
            folder.parent.rmdir()

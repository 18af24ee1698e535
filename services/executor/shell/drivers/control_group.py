"""A control group per run, where the machine lets us have one: no process leaves it, so ending it ends all that a job ever started.

Owns: where the groups of our runs are (cgroup v2, below our own). The run's runner makes, fills, ends and removes it (`runner.py`, which
also serves whoever has to end one from outside). Refuses: limits of memory or processor. Without a group (cgroup v1 alone, no right to
make one) runs end by their process group and their runner, which misses only what sits in a session of its own when the runner itself
is killed by force. Read next: `process.py`.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path


def group_of(folder: Path) -> str:
    """Where the control group of the run in `folder` shall be; "" where this machine has none for us."""
    parent = _own_group()
    return "" if parent is None else str(parent / f"gpugrid-{sha256(str(folder).encode()).hexdigest()[:24]}")


@cache
def _own_group() -> Path | None:
    """The group of this process in the cgroup v2 hierarchy. Remembered: it is asked for at every start."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    found = [fields for fields in mounts if "cgroup2" in fields[fields.index("-") + 1 :][:1]]
    own = next((line[3:] for line in groups if line.startswith("0::/")), None)
    if not found or own is None:
        return None
    root, mounted = found[0][3], Path(found[0][4])
    inside = own if root == "/" else own.removeprefix(root) or "/"
    return mounted / inside.lstrip("/")

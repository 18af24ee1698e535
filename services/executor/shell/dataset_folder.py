"""Which datasets a node keeps: the names in one folder, looked at now and then. Whoever fills the folder is no concern of ours.

Refuses: bringing data, judging whether it is complete (a name is there once it was moved into place), and names the contract can't carry.
Read next: `node.py`, docs/policy.md.
"""

from __future__ import annotations

import re
from pathlib import Path

LOOK_PERIOD_S = 60.0
"""Wall seconds between two looks: what was brought a minute ago is soon enough for the next placement."""
NAMES_MAX = 4096
"""As many as a report may carry; the first by name."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


class DatasetFolder:
    """`path` empty: nothing is kept here."""

    def __init__(self, path: str = "") -> None:
        self._path = path

    @property
    def is_watched(self) -> bool:
        return bool(self._path)

    def names(self) -> list[str]:
        """Sorted names; none where the folder can't be read: then no node is preferred for it."""
        if not self._path:
            return []
        try:
            found = [entry.name for entry in Path(self._path).iterdir()]
        except OSError:
            return []
        return sorted(name for name in found if _NAME.fullmatch(name))[:NAMES_MAX]

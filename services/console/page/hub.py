"""Versions of what the page shows, and the deltas between them. Pure: it is told the time and asks nobody.

A browser starts from a snapshot of some version and then gets every later delta once. Deltas are kept for a short while; who
is too far behind, or comes from another life of this process (`epoch`), is told to take a snapshot again.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from services.console.page.board import Board
from services.console.page.rows import snapshot_rows, take_changes

DELTAS_KEPT = 240
"""Two minutes at two a second: a phone that was in a tunnel; longer absences start over."""
DELTA_BYTES_KEPT = 32 * 1024 * 1024
"""All kept deltas together; a replayed day at full speed changes a lot."""


class Hub:
    """`advance` after folding; `snapshot` and `since` answer browsers. Sections are small parts replaced as a whole."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.version = 0
        self.board = Board()
        self.sections: dict[str, Any] = {}
        self._fresh: dict[str, Any] = {}
        self._deltas: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def restart(self, board: Board, epoch: str) -> None:
        """A board that was read anew from the topics' beginning: every browser starts over, too."""
        self.board, self.epoch, self.version = board, epoch, 0
        self.sections.clear()
        self._fresh.clear()
        self._deltas.clear()
        self._bytes = 0

    def put(self, name: str, section: Any) -> None:
        """Replace a section; goes out with the next delta if it differs."""
        if self.sections.get(name) != section:
            self.sections[name] = self._fresh[name] = section

    def advance(self, now_ms: int) -> bytes | None:
        """The delta since the last call, or None if nothing changed."""
        changes = take_changes(self.board)
        if not changes and not self._fresh:
            return None
        self.version += 1
        changes |= {"version": self.version, "now": now_ms}
        if self._fresh:
            changes["sections"] = dict(self._fresh)
            self._fresh.clear()
        delta = msgspec.json.encode(changes)
        self._deltas.append((self.version, delta))
        self._bytes += len(delta)
        while len(self._deltas) > DELTAS_KEPT or (self._bytes > DELTA_BYTES_KEPT and len(self._deltas) > 1):
            self._bytes -= len(self._deltas.popleft()[1])
        return delta

    def snapshot(self, now_ms: int) -> bytes:
        """Everything as of the newest version. What changed since is in the next delta, too, which does no harm."""
        return msgspec.json.encode(
            {
                "epoch": self.epoch,
                "version": self.version,
                "now": now_ms,
                **snapshot_rows(self.board),
                "sections": self.sections,
            }
        )

    def since(self, epoch: str, version: int) -> list[bytes] | None:
        """The deltas after `version`, or None if they are not all kept: start over."""
        if epoch != self.epoch or version > self.version:
            return None
        if version == self.version:
            return []
        oldest = self._deltas[0][0] if self._deltas else self.version + 1
        if version + 1 < oldest:
            return None
        return [delta for number, delta in self._deltas if number > version]

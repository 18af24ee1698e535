"""A minute of believed values of one GPU, and their mean.

Owns: a bounded ring buffer in agent time. Refuses: growing. Read next: `node.py`.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0
SAMPLES_MAX = 64
"""A minute at one sample per second; agents that sample faster get a shorter window rather than more memory."""


class Window:
    """(agent wall ms, value) of the last minute, oldest first."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: deque[tuple[int, float]] = deque(maxlen=SAMPLES_MAX)

    def add(self, wall_ms: int, value: float) -> None:
        self._values.append((wall_ms, value))

    def mean(self, wall_ms: int) -> float | None:
        """Over the minute before `wall_ms`; None if nothing believed was read in it."""
        oldest_ms = wall_ms - WINDOW_S * 1000
        while self._values and self._values[0][0] <= oldest_ms:
            self._values.popleft()
        if not self._values:
            return None
        return sum(value for _, value in self._values) / len(self._values)

    def clear(self) -> None:
        """The agent's clock was set: old times mean nothing any more."""
        self._values.clear()

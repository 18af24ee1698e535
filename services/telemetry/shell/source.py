"""Where an agent's readings come from: a port with two adapters, real cards and played ones.

Read next: `nvml.py`, `simulated.py`, `agent.py`.
"""

from __future__ import annotations

from typing import Protocol

from schemas.nodes import GpuSample


class SourceError(Exception):
    """Nothing can be read here; the message says what to do."""


class Source(Protocol):
    """`name` goes into every sample, so that nobody takes played readings for real ones."""

    name: str
    driver: str

    async def read(self, node: str) -> list[GpuSample]:
        """One sample per GPU of the node, always all of them: one that can't be read has an `error`."""
        ...

"""Where an agent's readings come from: a port with two adapters, real cards and played ones.

Read next: `nvml.py`, `simulated.py`, `agent.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from schemas.nodes import GpuSample, HostSample, Topology


class SourceError(Exception):
    """Nothing can be read here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One sample per GPU of the node, always all of them: one that can't be read has an `error`. `topology` now and then."""

    gpus: list[GpuSample] = field(default_factory=list)
    host: HostSample | None = None
    topology: Topology | None = None


class Source(Protocol):
    """`name` goes into every sample, so that nobody takes played readings for real ones."""

    name: str
    driver: str

    async def read(self, node: str) -> NodeReading: ...

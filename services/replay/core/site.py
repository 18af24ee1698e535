"""What nodes are besides their GPUs: in which rack, with which data; and what each job really reads, told to the planner or not.

No trace has any of it: whoever plays a day states it (`declared.py`). Read next: `rolling.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas.jobs import Dataset

RACK = "r0"


@dataclass(frozen=True, slots=True)
class Site:
    """`racks`, `kept`: by node; `reads`: by job. Nodes bring what they lack side by side, and keep none of it."""

    racks: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, frozenset[str]] = field(default_factory=dict)
    reads: Mapping[str, tuple[Dataset, ...]] = field(default_factory=dict)
    mib_per_s: float = 1000.0

    def rack_of(self, node: str) -> str:
        return self.racks.get(node, RACK)

    def staging_s(self, job_id: str, nodes: Sequence[str]) -> float:
        """How long the job waits on these nodes until the slowest has its data."""
        reads = self.reads.get(job_id, ())
        nothing: frozenset[str] = frozenset()
        lacks = [sum(one.size_mib for one in reads if one.name not in self.kept.get(node, nothing)) for node in nodes]
        return max(lacks, default=0) / self.mib_per_s


PLAIN = Site()
"""One rack, no data."""

"""Who holds which GPU, from the allocator's placements: what usage and findings are charged to.

Owns: the newest placement per node, and since when each GPU is held, in wall time of the record that said so.
Read next: `usage.py`, `findings.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.placements import Desired, NodePlaced


@dataclass(frozen=True, slots=True)
class Holder:
    """`since_ms`: wall time of the record that gave the GPU to it."""

    job_id: str
    application: bool
    since_ms: int


@dataclass
class NodeHolders:
    """Per GPU index."""

    epoch: int = -1
    sequence: int = -1
    held: dict[int, Holder] = field(default_factory=dict)


class Holders:
    """`jobs` counts the nodes on which a job holds something."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeHolders] = {}
        self.jobs: dict[str, int] = {}

    def take(self, placed: NodePlaced, wall_ms: int) -> list[str]:
        """Fold one placement in; returns jobs that hold nothing anywhere any more."""
        node = self._nodes.setdefault(placed.node, NodeHolders())
        if (placed.epoch, placed.sequence) < (node.epoch, node.sequence):
            return []
        node.epoch, node.sequence = placed.epoch, placed.sequence
        before = node.held
        node.held = {}
        # What is told to stop holds its GPUs until it is gone; should one be listed twice, who shall run there counts.
        for assignment in sorted(placed.assignments, key=lambda each: each.desired is Desired.RUN):
            for gpu in assignment.gpus:
                known = before.get(gpu)
                since_ms = known.since_ms if known is not None and known.job_id == assignment.job_id else wall_ms
                node.held[gpu] = Holder(assignment.job_id, assignment.application, since_ms)
        return self._count(before, node.held)

    def on(self, node: str) -> dict[int, Holder]:
        known = self._nodes.get(node)
        return {} if known is None else known.held

    def _count(self, before: dict[int, Holder], now: dict[int, Holder]) -> list[str]:
        old = dict.fromkeys(holder.job_id for holder in before.values())
        new = dict.fromkeys(holder.job_id for holder in now.values())
        for job_id in new:
            if job_id not in old:
                self.jobs[job_id] = self.jobs.get(job_id, 0) + 1
        ended = []
        for job_id in old:
            if job_id not in new:
                self.jobs[job_id] -= 1
                if self.jobs[job_id] == 0:
                    del self.jobs[job_id]
                    ended.append(job_id)
        return ended

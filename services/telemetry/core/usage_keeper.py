"""Usage as the handler needs it: what placements, progress and samples mean for it, and which records are due.

Owns: when a node's or job's usage is published, and how long an ended job's record is kept. Refuses: health.
Read next: `usage.py`, `holders.py`, `throughput.py`.
"""

from __future__ import annotations

from schemas.base import Event
from schemas.catalog import Catalog
from schemas.codec import DecodeError, decode_record
from schemas.executions import JobProgressed
from schemas.jobs import JobAccepted
from schemas.nodes import Finding, FindingCode
from schemas.placements import NodePlaced
from schemas.records import Now, Record
from schemas.usage import JobUsage, NodeUsage
from services.telemetry.core.holders import Holders
from services.telemetry.core.node import Node
from services.telemetry.core.throughput import SLOW_SHARE, Throughput
from services.telemetry.core.usage import GpuMoment, Usage

USAGE_PERIOD_S = 10.0
"""What a crash may lose of the windows; at 1,250 nodes with a sample every 10 s this is every sample."""
ENDED_KEPT_S = 86_400.0
"""Wall seconds that an ended job's usage stays in the topic for reports to pick up."""
OLD_PERIOD_S = 60.0
"""How often ended jobs are looked through."""

Told = list[tuple[str, Event | None]]


class UsageKeeper:
    """`holders`: who holds what. Records are keyed `node/NAME` and `job/ID`; None in place of a record removes it."""

    def __init__(self) -> None:
        self.holders = Holders()
        self.throughput = Throughput()
        self.usage = Usage()
        self._clusters: dict[str, str] = {}
        self._ended: dict[str, int] = {}
        self._looked_ms = 0

    def restore(self, record: Record) -> None:
        """Fold one of our own records in."""
        key = (record.key or b"").decode("utf-8", "replace")
        if record.value is None:
            self._forget(key)
            return
        try:
            event = decode_record(record).event
        except DecodeError:
            return
        self.remember_cluster(key, event)
        if isinstance(event, NodeUsage):
            self.usage.restore_node(event)
        elif isinstance(event, JobUsage):
            self.usage.restore_job(event)
            if event.samples_per_s is not None:
                gpus, per_card = event.gpus, event.slots_per_card
                self.throughput.restored(event.job_id, event.model, gpus, event.samples_per_s, per_card)
            if event.ended_ms is not None:
                self._ended[event.job_id] = record.timestamp_ms

    def learn(self, event: Event, wall_ms: int, domain_ms: int) -> list[str]:
        """What others say; returns jobs that hold nothing any more."""
        if isinstance(event, NodePlaced):
            ended = self.holders.take(event, wall_ms)
            for job_id in ended:
                self.usage.ended(job_id, domain_ms)
                self._ended[job_id] = wall_ms
            return ended
        if isinstance(event, JobAccepted):
            self.throughput.named(event.job_id, event.spec)
        elif isinstance(event, JobProgressed):
            gpus = sum(holder.job_id == event.job_id for holder in self.holders.on(event.node).values())
            self.throughput.reported(event.job_id, gpus, event.samples_per_s, self.usage.per_card(event.node))
        return []

    def sampled_ms(self, node: str) -> int:
        """Up to which sample a node's usage counts; -1 if it is not known."""
        return self.usage.sampled_ms(node)

    def charge(self, node: Node) -> None:
        """Charge the sample that the node has just taken."""
        self.usage.cut(node.name, node.slots_per_card)
        moments = [
            GpuMoment(
                index=seen.sample.index,
                uuid=seen.sample.uuid,
                utilization_pct=seen.utilization_pct if seen.sample.error is None else None,
                energy_j=seen.sample.energy_j if seen.trusted else None,
                memory_mib=seen.memory_used_mib,
            )
            for seen in node.seen
        ]
        self.usage.take(node.name, node.cluster, node.sampled_ms, node.period_s, moments, self.holders.on(node.name))

    def slow_jobs(self, node: str) -> list[Finding]:
        found = []
        for gpu, holder in sorted(self.holders.on(node).items()):
            if self.throughput.slow(holder.job_id):
                detail = f"below {SLOW_SHARE:.0%} of the samples per second usual for its model"
                found.append(Finding(code=FindingCode.SLOW_JOB, gpu=gpu, job_id=holder.job_id, detail=detail))
        return found

    def due(self, node: str, now: Now) -> Told:
        """Records of a node and the jobs on it that are old enough to be renewed."""
        period_ms = round(USAGE_PERIOD_S * 1000)
        told: Told = []
        if (mine := self.usage.node_due(node, now.wall_ms, period_ms)) is not None:
            told.append((f"node/{node}", mine))
        for job_id in dict.fromkeys(holder.job_id for holder in self.holders.on(node).values()):
            self._ended.pop(job_id, None)
            job = self.usage.job_due(job_id, now.wall_ms, period_ms, self.throughput)
            if job is not None:
                told.append((f"job/{job_id}", job))
        return told

    def forget_node(self, node: str) -> list[str]:
        """A node is gone for good: the keys of the records to remove."""
        return [f"node/{node}"] if self.usage.forget_node(node) else []

    def final(self, ended: list[str], now: Now) -> Told:
        """The last records of jobs that have just ended."""
        return [
            (f"job/{job_id}", job)
            for job_id in ended
            if (job := self.usage.job_due(job_id, now.wall_ms, 0, self.throughput)) is not None
        ]

    def old(self, now: Now) -> Told:
        """Removals of what ended long ago."""
        if now.wall_ms - self._looked_ms < OLD_PERIOD_S * 1000:
            return []
        self._looked_ms = now.wall_ms
        gone = [job_id for job_id, at_ms in self._ended.items() if now.wall_ms - at_ms >= ENDED_KEPT_S * 1000]
        for job_id in gone:
            self.usage.forget_job(job_id)
            del self._ended[job_id]
        return [(f"job/{job_id}", None) for job_id in gone]

    def remember_cluster(self, key: str, event: Event) -> str:
        """Removals need the partition, too."""
        cluster = event.cluster if isinstance(event, NodeUsage | JobUsage) else ""
        self._clusters[key] = cluster
        return cluster

    def partition(self, key: str, catalog: Catalog) -> int:
        return catalog.partition_of(self._clusters.pop(key, catalog.default_cluster))

    def _forget(self, key: str) -> None:
        self._clusters.pop(key, None)
        if key.startswith("node/"):
            self.usage.forget_node(key.removeprefix("node/"))
        if key.startswith("job/"):
            self.usage.forget_job(key.removeprefix("job/"))
            self._ended.pop(key.removeprefix("job/"), None)

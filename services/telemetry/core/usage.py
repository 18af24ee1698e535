"""What GPUs and jobs made of their time: windows per GPU, and per job GPU-seconds held, busy, idle and unseen.

Owns: charging each believed sample once (per node, by the sample's time, so that a repeated or re-read sample counts for
nothing), and rebuilding from its own published records. A slot of a shared card is charged as its part of a GPU. Time without a
believed reading is `unseen`, never idle. Refuses: billing, which counts from `executions` and needs no samples. Read next:
`windows.py`, `handler.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.usage import GpuUsage, JobUsage, NodeUsage
from services.telemetry.core.holders import Holder
from services.telemetry.core.readings import POWER_W_MAX
from services.telemetry.core.throughput import Throughput
from services.telemetry.core.windows import UsageWindows

IDLE_PCT = 5.0
"""Below it a GPU does nothing worth holding it for; a loop that only polls stays below, too."""
US_PER_S = 1_000_000
GAP_PERIODS_MAX = 3
"""A reading stands for the time since the last one, for at most so many periods; the rest is unseen."""


@dataclass(frozen=True, slots=True)
class GpuMoment:
    """One believed moment of one GPU; `utilization_pct` None: nothing believed."""

    index: int
    uuid: str
    utilization_pct: float | None
    energy_j: float | None
    memory_mib: float | None


@dataclass
class _Gpu:
    uuid: str
    windows: UsageWindows = field(default_factory=UsageWindows)
    energy_j: float | None = None


@dataclass
class JobLedger:
    """The running sums of one job, in GPU-microseconds (an eighth of a card for a millisecond is whole in them) and joules."""

    cluster: str
    held_us: int = 0
    busy_us: int = 0
    idle_us: int = 0
    unseen_us: int = 0
    energy_j: float = 0.0
    memory_mib_peak: float = 0.0
    windows: UsageWindows = field(default_factory=UsageWindows)
    sampled_ms: dict[str, int] = field(default_factory=dict)
    told_ms: int = 0
    ended_ms: int | None = None


@dataclass
class _Node:
    cluster: str
    sampled_ms: int = 0
    told_ms: int = 0
    gpus: dict[int, _Gpu] = field(default_factory=dict)


class Usage:
    """`take` charges a sample; `node_told` and `job_told` are the records to publish."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._per_card: dict[str, int] = {}
        self.jobs: dict[str, JobLedger] = {}

    def cut(self, node: str, per_card: int) -> None:
        """How many slots of the node are one card."""
        self._per_card[node] = per_card

    def per_card(self, node: str) -> int:
        return self._per_card.get(node, 1)

    def take(
        self, node: str, cluster: str, wall_ms: int, period_s: float, moments: list[GpuMoment], held: dict[int, Holder]
    ) -> None:
        """Charge the time since the node's last sample to its GPUs and their holders."""
        known = self._nodes.setdefault(node, _Node(cluster))
        if wall_ms <= known.sampled_ms:
            known.sampled_ms = wall_ms  # the agent's clock was set: nothing can be said about the time between
            return
        passed_ms = wall_ms - known.sampled_ms if known.sampled_ms else round(period_s * 1000)
        seen_ms = min(passed_ms, round(GAP_PERIODS_MAX * period_s * 1000))
        known.sampled_ms = wall_ms
        for moment in moments:
            gpu = known.gpus.get(moment.index)
            if gpu is None or gpu.uuid != moment.uuid:
                gpu = known.gpus[moment.index] = _Gpu(moment.uuid)
            energy_j = _increase(gpu, moment.energy_j, POWER_W_MAX * passed_ms / 1000)
            busy_ms = 0
            if moment.utilization_pct is not None:
                busy_ms = round(seen_ms * moment.utilization_pct / 100)
                gpu.windows.add(wall_ms, seen_ms, busy_ms)
            holder = held.get(moment.index)
            if holder is not None:
                self._charge(holder, node, cluster, wall_ms, seen_ms, busy_ms, energy_j, moment)
        for job_id in dict.fromkeys(holder.job_id for holder in held.values()):
            if job_id in self.jobs:
                self.jobs[job_id].sampled_ms[node] = wall_ms

    def _charge(
        self,
        holder: Holder,
        node: str,
        cluster: str,
        wall_ms: int,
        seen_ms: int,
        busy_ms: int,
        energy_j: float,
        moment: GpuMoment,
    ) -> None:
        job = self.jobs.setdefault(holder.job_id, JobLedger(cluster))
        last_ms = job.sampled_ms.get(node, holder.since_ms)
        passed_ms = wall_ms - max(last_ms, holder.since_ms)
        if passed_ms <= 0:
            return
        seen_ms, busy_ms = min(seen_ms, passed_ms), min(busy_ms, passed_ms)
        per_card = self.per_card(node)
        passed_us, seen_us, busy_us = (1000 * ms // per_card for ms in (passed_ms, seen_ms, busy_ms))
        job.held_us += passed_us
        job.ended_ms = None
        if moment.utilization_pct is None:
            job.unseen_us += passed_us
            return
        job.unseen_us += passed_us - seen_us
        job.busy_us += busy_us
        job.idle_us += seen_us if moment.utilization_pct < IDLE_PCT else 0
        job.energy_j += energy_j
        job.memory_mib_peak = max(job.memory_mib_peak, moment.memory_mib or 0.0)
        job.windows.add(wall_ms, seen_us // 1000, busy_us // 1000)

    def sampled_ms(self, node: str) -> int:
        """-1 for a node never charged."""
        known = self._nodes.get(node)
        return -1 if known is None else known.sampled_ms

    def ended(self, job_id: str, domain_ms: int) -> None:
        if job_id in self.jobs:
            self.jobs[job_id].ended_ms = domain_ms

    def node_due(self, node: str, wall_ms: int, period_ms: int) -> NodeUsage | None:
        """The node's record, if the last one is `period_ms` old."""
        known = self._nodes.get(node)
        if known is None or wall_ms - known.told_ms < period_ms:
            return None
        known.told_ms = wall_ms
        gpus = [
            GpuUsage(index=index, uuid=gpu.uuid, windows=gpu.windows.told(known.sampled_ms))
            for index, gpu in sorted(known.gpus.items())
        ]
        return NodeUsage(node=node, cluster=known.cluster, wall_ms=known.sampled_ms, gpus=gpus)

    def job_due(self, job_id: str, wall_ms: int, period_ms: int, throughput: Throughput) -> JobUsage | None:
        """The job's record, if the last one is `period_ms` old."""
        job = self.jobs.get(job_id)
        if job is None or wall_ms - job.told_ms < period_ms:
            return None
        job.told_ms = wall_ms
        rate, gpus, per_card = throughput.rate(job_id)
        sampled_ms = max(job.sampled_ms.values(), default=0)
        return JobUsage(
            job_id=job_id,
            cluster=job.cluster,
            wall_ms=sampled_ms,
            held_gpu_s=job.held_us / US_PER_S,
            busy_gpu_s=job.busy_us / US_PER_S,
            idle_gpu_s=job.idle_us / US_PER_S,
            unseen_gpu_s=job.unseen_us / US_PER_S,
            energy_j=round(job.energy_j, 3),
            memory_mib_peak=round(job.memory_mib_peak),
            windows=job.windows.told(sampled_ms),
            model=throughput.model(job_id),
            gpus=gpus,
            slots_per_card=per_card,
            samples_per_s=rate,
            usual_samples_per_s=throughput.usual(job_id),
            sampled_ms=dict(sorted(job.sampled_ms.items())),
            ended_ms=job.ended_ms,
        )

    # --- rebuilding

    def restore_node(self, told: NodeUsage) -> None:
        known = self._nodes.setdefault(told.node, _Node(told.cluster))
        if told.wall_ms <= known.sampled_ms:
            return
        known.sampled_ms = known.told_ms = told.wall_ms
        for each in told.gpus:
            gpu = known.gpus[each.index] = _Gpu(each.uuid)
            gpu.windows.restore(each.windows)

    def restore_job(self, told: JobUsage) -> None:
        known = self.jobs.get(told.job_id)
        if known is not None and max(known.sampled_ms.values(), default=0) >= told.wall_ms:
            return
        job = self.jobs[told.job_id] = JobLedger(
            told.cluster,
            held_us=round(told.held_gpu_s * US_PER_S),
            busy_us=round(told.busy_gpu_s * US_PER_S),
            idle_us=round(told.idle_gpu_s * US_PER_S),
            unseen_us=round(told.unseen_gpu_s * US_PER_S),
            energy_j=told.energy_j,
            memory_mib_peak=float(told.memory_mib_peak),
            sampled_ms=dict(told.sampled_ms),
            told_ms=told.wall_ms,
            ended_ms=told.ended_ms,
        )
        job.windows.restore(told.windows)

    def forget_node(self, node: str) -> bool:
        """Whether there was anything to forget."""
        self._per_card.pop(node, None)
        return self._nodes.pop(node, None) is not None

    def forget_job(self, job_id: str) -> None:
        self.jobs.pop(job_id, None)


def _increase(gpu: _Gpu, energy_j: float | None, most_j: float) -> float:
    """Joules since the last counter; 0 where it began anew, is unknown, or grew by more than any card can use."""
    last, gpu.energy_j = gpu.energy_j, gpu.energy_j if energy_j is None else energy_j
    more_j = energy_j - last if energy_j is not None and last is not None else 0.0
    return more_j if 0 <= more_j <= most_j else 0.0

"""Wall-clock moments of every job's first way through the services, and the latencies between them. Pure.

From record times (the broker's, 1 ms) and the executors' own. Queueing is not latency: the ways from the placing decision
on are measured from that decision. `services.replay.core.latency` does the same for a replayed day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.codec import Envelope
from schemas.decisions import DecisionMade, Placed, Waits
from schemas.executions import JobStarted
from schemas.forecasts import DurationForecast
from schemas.jobs import JobAccepted, JobSubmitted
from schemas.placements import NodePlaced
from schemas.records import Record
from services.replay.core.outcome import percentile

JOBS_MAX = 20_000
"""Newest jobs whose moments are kept: percentiles of more don't differ."""
HOPS: tuple[tuple[str, str, str], ...] = (
    ("submit → let in", "submitted", "accepted"),
    ("let in → forecast", "accepted", "forecast"),
    ("submit → first decision", "submitted", "decided"),
    ("placing decision → placement", "placed", "placement"),
    ("placement → running", "placement", "running"),
    ("placing decision → running", "placed", "running"),
)
"""(name, from, to)."""


@dataclass(frozen=True, slots=True)
class HopLatency:
    """Milliseconds between two moments over `jobs` jobs."""

    hop: str
    jobs: int
    p50_ms: float
    p90_ms: float
    p99_ms: float


@dataclass(slots=True)
class Marks:
    """Job → moment → wall ms. The first of each counts; the first attempt only."""

    jobs: dict[str, dict[str, int]] = field(default_factory=dict)

    def fold(self, envelope: Envelope, record: Record) -> None:
        """Take in a record of job-events, jobs, forecasts, placements or executions; decisions only if accepted."""
        at_ms = record.timestamp_ms
        match envelope.event:
            case JobSubmitted(job_id=name):
                self._mark(name, "submitted", at_ms)
            case JobAccepted(job_id=name):
                self._mark(name, "accepted", at_ms)
            case DurationForecast(job_id=name):
                if name in self.jobs:
                    self._mark(name, "forecast", at_ms)
            case NodePlaced(assignments=assignments):
                for one in assignments:
                    if one.attempt == 1 and one.job_id in self.jobs:
                        self._mark(one.job_id, "placement", at_ms)
            case JobStarted(job_id=name, attempt=1) as started:
                if name in self.jobs:
                    self._mark(name, "running", started.wall_ms)
            case DecisionMade(effects=effects):
                for effect in effects:
                    if isinstance(effect, Placed | Waits) and effect.job_id in self.jobs:
                        self._mark(effect.job_id, "decided", at_ms)
                    if isinstance(effect, Placed) and effect.attempt == 1 and effect.job_id in self.jobs:
                        self._mark(effect.job_id, "placed", at_ms)

    def _mark(self, name: str, moment: str, at_ms: int) -> None:
        own = self.jobs.get(name)
        if own is None:
            own = self.jobs[name] = {}
            if len(self.jobs) > JOBS_MAX:
                del self.jobs[next(iter(self.jobs))]
        own[moment] = min(at_ms, own.get(moment, at_ms))

    def latencies(self, since_wall_ms: int) -> list[HopLatency]:
        """Per hop over jobs that arrived at its end since then. A moment before its cause counts as 0: clocks differ."""
        found = []
        for name, first, last in HOPS:
            spans = [
                float(max(0, own[last] - own[first]))
                for own in self.jobs.values()
                if first in own and last in own and own[last] >= since_wall_ms
            ]
            found.append(latency_of(name, spans))
        return found


def latency_of(name: str, spans_ms: Sequence[float]) -> HopLatency:
    """The percentiles of some spans; zeros for none."""
    ordered = sorted(spans_ms)
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return HopLatency(name, len(ordered), p50, p90, p99)

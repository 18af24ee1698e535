"""The metrics every service exposes, named once and documented here; each process has a registry of its own.

Owns: names, units, buckets. A service may add metrics of its own to `Metrics.registry`. Refuses global registries (two
services in one process would collide) and job ids as labels (unbounded). Read next: `health.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from schemas.records import Now, Record
from services.runtime.bus.port import TopicPartition
from services.runtime.traceparent import parse_traceparent

LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Dense around the promises: 35 ms and 150 ms from submission to decision."""
DECISION_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
WAIT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 43200, 86400)
LAG_PERIOD_S = 5.0
"""How often services refresh the lag gauges."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = openmetrics.CONTENT_TYPE_LATEST
"""Asked for by Prometheus itself; only this form carries exemplars, the way from a slow bucket to a trace."""


class Metrics:
    """One process's metrics. Durations in seconds; `domain` in a name means domain time, everything else is wall time."""

    def __init__(self, service: str, instance_id: str) -> None:
        registry = self.registry = CollectorRegistry(auto_describe=True)
        info = Gauge("gpugrid_service", "1 while this process runs.", ["service", "instance_id"], registry=registry)
        info.labels(service, instance_id).set(1)
        started = Gauge(
            "gpugrid_start_time_seconds",
            "When this process started, Unix time: a change is a restart.",
            ["service", "instance_id"],
            registry=registry,
        )
        started.labels(service, instance_id).set_to_current_time()
        self.decision_s = Histogram(
            "gpugrid_decision_seconds",
            "Pure decision time: from a polled batch to the decision, without publishing it.",
            ["mode"],
            buckets=DECISION_BUCKETS_S,
            registry=registry,
        )
        self._add_jobs(registry)
        self.hop_latency_s = Histogram(
            "gpugrid_hop_latency_seconds",
            "From the record's time at the broker until its answers were acknowledged.",
            ["topic"],
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.queue_length = Gauge("gpugrid_queue_length", "Jobs that wait.", ["cluster", "reason"], registry=registry)
        self.consumer_lag = Gauge(
            "gpugrid_consumer_lag_records", "Records not yet read.", ["topic", "partition"], registry=registry
        )
        self._lagging: dict[TopicPartition, None] = {}
        self.events = Counter("gpugrid_events", "Records handled.", ["topic"], registry=registry)
        self.rejected = Counter(
            "gpugrid_events_rejected", "Events refused, by reason code.", ["topic", "reason"], registry=registry
        )
        self.full_mode_answers = Counter(
            "gpugrid_full_mode_answers",
            "Answers of full mode: followed, outdone by fast mode's plan of that moment, no_better, stale, failed.",
            ["outcome"],
            registry=registry,
        )
        self.dead_letters = Counter("gpugrid_dead_letters", "Dead letters written.", ["reason"], registry=registry)

    def _add_jobs(self, registry: CollectorRegistry) -> None:
        """What happens to jobs; the allocator fills these."""
        self.submit_to_running_s = Histogram(
            "gpugrid_submit_to_running_seconds",
            "From the submission of a job to its first start, domain time.",
            ["size_class"],
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self.submit_to_placed_s = Histogram(
            "gpugrid_submit_to_placed_seconds",
            "From the submission of a job to its first placement, domain time.",
            ["size_class"],
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self.placed_to_running_s = Histogram(
            "gpugrid_placed_to_running_seconds",
            "From a placement to its start, domain time.",
            ["size_class"],
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self.forecast_durations = Counter(
            "gpugrid_forecast_durations",
            "Completed jobs by the tightest bound of their duration's forecast that held: p50, p90 or beyond.",
            ["within"],
            registry=registry,
        )
        self.ended = Counter(
            "gpugrid_job_parts_ended",
            "Ends that executors reported, one per node of a job.",
            ["outcome"],
            registry=registry,
        )
        self.restarts = Counter(
            "gpugrid_job_restarts", "Placements of jobs that had been placed before.", ["size_class"], registry=registry
        )

    def observe_batch(self, records: Sequence[Record], now: Now) -> None:
        """A hop's `observe`: counts records and how long each took to be answered."""
        for record in records:
            self.events.labels(record.topic).inc()
            self.hop_latency_s.labels(record.topic).observe(max(0, now.wall_ms - record.timestamp_ms) / 1000)

    def set_lag(self, lag: Mapping[TopicPartition, int]) -> None:
        """Of all partitions this process reads; those it has given away since are no longer told."""
        for topic, partition in self._lagging:
            if (topic, partition) not in lag:
                self.consumer_lag.remove(topic, str(partition))
        self._lagging = dict.fromkeys(lag)
        for (topic, partition), records in lag.items():
            self.consumer_lag.labels(topic, str(partition)).set(records)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics and their content type: OpenMetrics for whoever asks for it, else the Prometheus text format."""
        if "application/openmetrics-text" in accept:
            return openmetrics.generate_latest(self.registry), OPENMETRICS_CONTENT_TYPE
        return generate_latest(self.registry), CONTENT_TYPE


def exemplar(traceparent: str) -> dict[str, str] | None:
    """What joins an observation to its trace; None without one."""
    context = parse_traceparent(traceparent)
    return None if context is None else {"trace_id": context.trace_id}

"""The whole stack on a real Kafka, exporting to a real collector with a real trace store behind it. Shared by the tests here."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.backends.running import TraceStore
from deploy.local.broker import EmbeddedBroker
from deploy.local.broker_process import broker_process
from deploy.local.service_processes import Surroundings, service_processes
from deploy.local.supervisor import Supervisor
from schemas.codec import decode_record
from schemas.jobs import JobSpec, JobSubmitted, Kind
from schemas.messages import message
from schemas.status import FINAL_STATES, JobStatusChanged
from services.console.read import read_topics
from services.runtime.bus.kafka import KafkaBus
from services.runtime.tracing import Tracing

READY_S_MAX = 400.0
"""A first start compiles the planner's kernels."""
PATIENCE_S = 90.0
POLL_S = 0.2
CATALOG = """
default_cluster = "c0"
[clusters.c0]
partition = 0
[clusters.c0.pools.h100]
gpus = 16
node_gpus = 8
gpu_model = "H100"
memory_mib = 81920
"""


@dataclass
class ObservedStack:
    """`publish` is the upstream: its span is the root of the job's trace. `lose_collector` ends the collector for good."""

    run_dir: Path
    address: str
    supervisor: Supervisor
    upstream: Tracing
    lose_collector: Callable[[], None]

    def publish(self, job_id: str, run_s: float, gpus: int = 1, **labels: str) -> str:
        """Publish a job; returns its trace id."""
        return asyncio.run(self._publish(job_id, run_s, gpus, labels))

    async def _publish(self, job_id: str, run_s: float, gpus: int, labels: dict[str, str]) -> str:
        attributes = {"messaging.system": "kafka", "messaging.destination.name": "job-events"}
        span = self.upstream.begin("publish job-events", "", attributes, kind="producer")
        told = {"simulated/run_s": json.dumps({str(gpus): run_s})} | {
            f"simulated/{key}": v for key, v in labels.items()
        }
        spec = JobSpec(
            kind=Kind.TRAINING, team="blue", user="ann", priority=5, sizes=[gpus], template="simulated", labels=told
        )
        wall_ms = time.time_ns() // 1_000_000
        event = JobSubmitted(job_id=job_id, submitted_ms=wall_ms, spec=spec)
        producer = KafkaBus(self.address).producer("upstream")
        await producer.start()
        await producer.send(
            message(
                event, key=job_id, id=f"{job_id}/1", source="/upstream", time_ms=wall_ms, traceparent=span.traceparent
            )
        )
        await producer.stop()
        span.end()
        return span.traceparent[3:35]

    def finished(self, job_id: str) -> JobStatusChanged:
        """The job's final status, waited for."""
        found: list[JobStatusChanged] = []

        def final() -> bool:
            reading = asyncio.run(read_topics(KafkaBus(self.address), ["job-status"], wall_s=time.monotonic))
            events = [decode_record(record).event for record in reading.of("job-status")]
            mine = [one for one in events if isinstance(one, JobStatusChanged) and one.job_id == job_id]
            found[:] = mine[-1:]
            return bool(mine) and mine[-1].state in FINAL_STATES

        until(final, f"{job_id} never ended")
        return found[0]

    def log_lines(self, service: str) -> list[dict[str, Any]]:
        """A service's log; every line must be JSON."""
        return [json.loads(line) for line in (self.run_dir / f"{service}.log").read_text().splitlines() if line]


@contextmanager
def observed_stack(run_dir: Path, otlp: str, *, lose_collector: Callable[[], None]) -> Iterator[ObservedStack]:
    run_dir.mkdir(parents=True)
    catalog = run_dir / "catalog.toml"
    catalog.write_text(CATALOG)
    broker = EmbeddedBroker(run_dir / "kafka")
    kafka = broker_process(broker)
    exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp}
    around = Surroundings(
        run_dir=run_dir,
        bootstrap=broker.address,
        catalog=catalog,
        cluster="c0",
        pool="h100",
        nodes=("n00", "n01"),
        extra=exporting,
    )
    supervisor = Supervisor("observed", run_dir, [kafka, *service_processes(around)])
    with supervisor:
        upstream = upstream_tracing(run_dir, otlp)
        try:
            yield ObservedStack(run_dir, broker.address, supervisor, upstream, lose_collector)
        finally:
            upstream.stop()


def upstream_tracing(run_dir: Path, otlp: str) -> Tracing:
    """The exporter reads the process's own environment."""
    import os

    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = otlp
    try:
        return Tracing("upstream", "upstream", run_dir=run_dir, environ=os.environ)
    finally:
        del os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]


def until(condition: Callable[[], bool], what: str, wait_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(POLL_S)


def names(store: TraceStore, trace_id: str) -> set[tuple[str, str]]:
    return {(span["service"], span["operationName"]) for span in store.trace(trace_id)}

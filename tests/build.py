"""Builders for tests: small, valid events with only the interesting fields named."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from schemas.base import Event
from schemas.catalog import Catalog, Cluster, Pool
from schemas.codec import encode_payload
from schemas.decisions import DecisionInput
from schemas.executions import HeldGpus, JobCompleted, JobFailed, JobStarted, JobStopped, NodeReported, QuarantinedGpu
from schemas.forecasts import DurationForecast, SizeForecast
from schemas.jobs import ApplicationAccepted, ApplicationSpec, JobAccepted, JobSpec, Kind
from schemas.nodes import GpuState, Health, NodeStateChanged
from schemas.registry import TYPE_OF, topic_of
from schemas.topics import TOPICS

START_MS = 1_800_000_000_000
CLUSTER = "c0"
POOL = "h100"


def catalog(clusters: int = 1, gpus: int = 16, node_gpus: int = 8) -> Catalog:
    """Clusters c0, c1, … with one pool each, cluster i on partition i."""
    pool = Pool(gpus=gpus, node_gpus=node_gpus, gpu_model="H100", memory_mib=81_920)
    return Catalog(
        clusters={f"c{i}": Cluster(partition=i, pools={POOL: pool}) for i in range(clusters)}, default_cluster=CLUSTER
    )


def topic_partitions() -> dict[str, int]:
    """All topics with their partition counts, for a memory bus."""
    return {topic.name: topic.partitions for topic in TOPICS}


def spec(*sizes: int, **changed) -> JobSpec:
    """A training job of these sizes."""
    fields = {
        "kind": Kind.TRAINING,
        "team": "blue",
        "user": "ann",
        "priority": 3,
        "sizes": list(sizes) or [1],
        "template": "simulated",
    }
    return JobSpec(**(fields | changed))


def accepted(job_id: str, *sizes: int, at_ms: int = START_MS, cluster: str = CLUSTER, **changed) -> JobAccepted:
    """The job as intake lets it in."""
    return JobAccepted(
        job_id=job_id,
        cluster=cluster,
        pools=[POOL],
        submitted_ms=at_ms,
        accepted_ms=at_ms,
        digest=f"digest-{job_id}",
        spec=spec(*sizes, **changed),
    )


def forecast(job_id: str, seconds: dict[int, float], cluster: str = CLUSTER, stretch: float = 1.5) -> DurationForecast:
    """P50 as given per size, P90 `stretch` times that."""
    sizes = [SizeForecast(gpus=gpus, p50_s=p50, p90_s=p50 * stretch) for gpus, p50 in seconds.items()]
    return DurationForecast(job_id=job_id, cluster=cluster, made_ms=START_MS, model="test", sizes=sizes)


def application(
    app_id: str, *, floor: int = 1, peak: int = 4, cluster: str = CLUSTER, **changed
) -> ApplicationAccepted:
    """An application as intake lets it in."""
    fields = {"team": "blue", "user": "ann", "priority": 5, "floor_gpus": floor, "peak_gpus": peak, "switch_max": 2}
    return ApplicationAccepted(
        app_id=app_id,
        cluster=cluster,
        pool=POOL,
        accepted_ms=START_MS,
        digest=f"digest-{app_id}-{floor}-{peak}",
        spec=ApplicationSpec(**(fields | changed)),
    )


def node(
    name: str, *, gpus: int = 8, order: int = 0, health: Health = Health.USABLE, cluster: str = CLUSTER, **changed
) -> NodeStateChanged:
    """A node's state; `unhealthy` lists local indices of broken GPUs."""
    unhealthy = changed.pop("unhealthy", ())
    return NodeStateChanged(
        node=name,
        cluster=cluster,
        pool=POOL,
        time_ms=START_MS,
        health=health,
        gpus=[
            GpuState(index=i, uuid=f"GPU-{name}-{i}", healthy=i not in unhealthy, memory_total_mib=81_920)
            for i in range(gpus)
        ],
        order=order,
        **changed,
    )


def started(job_id: str, name: str, at_ms: int, attempt: int = 1, cluster: str = CLUSTER) -> JobStarted:
    """The executor's report of a start."""
    return JobStarted(
        job_id=job_id, attempt=attempt, node=name, cluster=cluster, time_ms=at_ms, wall_ms=at_ms, gpus=[0], sequence=1
    )


def completed(job_id: str, name: str, at_ms: int, attempt: int = 1, cluster: str = CLUSTER) -> JobCompleted:
    """The executor's report of a success."""
    return JobCompleted(job_id=job_id, attempt=attempt, node=name, cluster=cluster, time_ms=at_ms, run_s=60.0)


def failed(job_id: str, name: str, at_ms: int, attempt: int = 1, cluster: str = CLUSTER, **changed) -> JobFailed:
    """The executor's report of a failure."""
    from schemas.executions import FailureCause

    return JobFailed(
        job_id=job_id,
        attempt=attempt,
        node=name,
        cluster=cluster,
        time_ms=at_ms,
        cause=FailureCause.EXIT_CODE,
        **changed,
    )


def stopped(
    job_id: str, name: str, at_ms: int, cause, attempt: int = 1, cluster: str = CLUSTER, **changed
) -> JobStopped:
    """The executor's report of a stop on request."""
    return JobStopped(job_id=job_id, attempt=attempt, node=name, cluster=cluster, time_ms=at_ms, cause=cause, **changed)


def reported(
    name: str,
    at_ms: int,
    *,
    applied: int,
    boot_id: str = "b",
    epoch: int = 1,
    running: Sequence[HeldGpus] = (),
    quarantined: Sequence[int] = (),
    datasets: Sequence[str] = (),
    cluster: str = CLUSTER,
) -> NodeReported:
    """What an executor says of its node."""
    return NodeReported(
        node=name,
        cluster=cluster,
        time_ms=at_ms,
        applied=applied,
        epoch=epoch,
        boot_id=boot_id,
        running=list(running),
        quarantined=[QuarantinedGpu(gpu=gpu, reason="somebody's") for gpu in quarantined],
        datasets=list(datasets),
    )


def decision_input(event: Event, offset: int = 0, *, id: str | None = None, traceparent: str = "") -> DecisionInput:
    """The event as a decision takes it in, from its own topic; `id` is by its place if not given."""
    topic = topic_of(event)
    return DecisionInput(
        topic=topic,
        partition=0,
        offset=offset,
        type=TYPE_OF[type(event)],
        id=id or f"{topic}-{offset}",
        payload=msgspec.Raw(encode_payload(event)),
        traceparent=traceparent,
    )

"""Builders for intake's tests: a small catalog, specifications, and records of job-events as a broker would hand them out."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from schemas.base import Event
from schemas.catalog import Catalog, Cluster, Limits, Pool
from schemas.codec import decode_payload, encode
from schemas.jobs import ApplicationRegistered, ApplicationSpec, JobSpec, JobSubmitted, Kind
from schemas.records import Message, Now, Record

NOW_MS = 1_700_000_000_000
NOW = Now(domain_ms=NOW_MS, wall_ms=NOW_MS)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

CATALOG = Catalog(
    clusters={
        "c0": Cluster(
            partition=0,
            pools={
                "h100": Pool(gpus=64, node_gpus=8, gpu_model="H100", memory_mib=81_920),
                "l4": Pool(gpus=12, node_gpus=4, gpu_model="L4", memory_mib=24_576),
            },
        ),
        "c1": Cluster(partition=2, pools={"a100": Pool(gpus=16, node_gpus=8, gpu_model="A100", memory_mib=40_960)}),
    },
    default_cluster="c0",
    teams=["research", "search"],
    limits=Limits(time_limit_s_max=1_209_600.0, environment_count_max=3),
)


def job_spec(**changes: Any) -> JobSpec:
    base = JobSpec(kind=Kind.TRAINING, team="research", user="ada", priority=10, sizes=[1, 2, 4], command=["train"])
    return structs.replace(base, **changes)


def application_spec(**changes: Any) -> ApplicationSpec:
    base = ApplicationSpec(
        team="search", user="grace", priority=50, floor_gpus=2, peak_gpus=16, switch_max=4, template="serve"
    )
    return structs.replace(base, **changes)


def submitted(job_id: str = "j1", submitted_ms: int = NOW_MS, **changes: Any) -> JobSubmitted:
    return JobSubmitted(job_id=job_id, submitted_ms=submitted_ms, spec=job_spec(**changes))


def registered(app_id: str = "a1", registered_ms: int = NOW_MS, **changes: Any) -> ApplicationRegistered:
    return ApplicationRegistered(app_id=app_id, registered_ms=registered_ms, spec=application_spec(**changes))


def record_of(
    event: Event, *, offset: int = 0, key: str | None = None, trace: str = TRACE, id: str = "e1", time_ms: int = NOW_MS
) -> Record:
    """The record of an upstream event. `key` defaults to the id it is about."""
    headers, value = encode(event, id=id, source="/upstream", time_ms=time_ms, traceparent=trace)
    if key is None:
        key = event.app_id if isinstance(event, ApplicationRegistered) else event.job_id  # type: ignore[attr-defined]
    return Record("job-events", 0, offset, key.encode(), value, headers, NOW_MS)


def as_record(message: Message, offset: int = 0) -> Record:
    """What a reader of that message's topic would get."""
    partition = message.partition or 0
    return Record(message.topic, partition, offset, message.key, message.value, message.headers, NOW_MS)


def event_of(message: Message) -> Any:
    """The event in a message, decoded again as any reader would."""
    types = [value.decode() for name, value in message.headers if name == "ce_type"]
    assert message.value is not None
    return decode_payload(types[0], message.value)


def events_of(messages: list[Message]) -> list[Any]:
    return [event_of(message) for message in messages]

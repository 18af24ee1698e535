"""The topics as data: who writes and reads them, how they are keyed, partitioned and kept. Everything that creates, documents
or checks a topic reads this list."""

from __future__ import annotations

from enum import Enum
from functools import partial

from msgspec import Struct

DAY_MS = 86_400_000
CLUSTER_PARTITIONS = 4
"""All cluster topics share one partition count, so that range assignment gives one owner whole clusters."""


class Partitioning(Enum):
    """How the producer chooses the partition."""

    CLUSTER = "cluster"
    KEY = "key"


class Topic(Struct, frozen=True, kw_only=True):
    """One topic. `retention_ms` None: compacted, the newest record per key is kept for ever."""

    name: str
    key: str
    partitioning: Partitioning
    partitions: int
    retention_ms: int | None
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    owner: str
    carries: str
    public: bool = False

    @property
    def cleanup_policy(self) -> str:
        return "delete" if self.retention_ms is not None else "compact"

    @property
    def config(self) -> dict[str, str]:
        """Broker-side configuration. Local stores keep the broker's default segment sizes."""
        config = {"cleanup.policy": self.cleanup_policy, "max.message.bytes": "1048588"}
        if self.retention_ms is not None:
            config["retention.ms"] = str(self.retention_ms)
        return config


def _topic(
    partitioning: Partitioning,
    name: str,
    key: str,
    days: int | None,
    writers: str,
    readers: str,
    carries: str,
    *,
    public: bool = False,
) -> Topic:
    """One line of the table below: names separated by blanks, the first writer owns the topic."""
    return Topic(
        name=name,
        key=key,
        partitioning=partitioning,
        partitions=CLUSTER_PARTITIONS,
        retention_ms=None if days is None else days * DAY_MS,
        writers=tuple(writers.split()),
        readers=tuple(readers.split()),
        owner=writers.split()[0],
        carries=carries,
        public=public,
    )


_cluster = partial(_topic, Partitioning.CLUSTER)
_keyed = partial(_topic, Partitioning.KEY)

TOPICS: tuple[Topic, ...] = (
    _keyed("job-events", "job id", 7, "upstream console", "intake", "submitted, changed, cancelled jobs; applications registered", public=True),
    _cluster("jobs", "job id", 7, "intake", "forecaster allocator intake console", "accepted, amended, revoked; routed to a cluster"),
    _cluster("demand", "application id", 30, "upstream", "forecaster console", "observed load and what one GPU serves", public=True),
    _cluster("forecasts", "job or application id", None, "forecaster", "allocator console", "durations per size, demand per step, arriving work"),
    _cluster("models", "cluster", None, "forecaster", "forecaster console", "the duration model that answers for a cluster, its scores, its drift"),
    _cluster("commands", "node, job or reservation", 30, "console telemetry", "allocator telemetry", "drain, undrain, forget, checkpoint, reserve, release"),
    _keyed("node-telemetry", "node", 1, "agent", "telemetry console", "samples of all GPUs of one node in one event"),
    _cluster("node-states", "node", None, "telemetry", "allocator console", "inventory, health and findings of a node; that it is gone for good"),
    _cluster("usage", "node/ or job/ and its id", None, "telemetry", "telemetry console", "utilization of GPUs and jobs over a minute, an hour, a day"),
    _cluster("executions", "job or node", 30, "executor", "allocator forecaster telemetry console", "started, progressed, checkpointed, stopped, completed, failed; node reports", public=True),
    _cluster("decisions", "cluster", 30, "allocator", "allocator console", "the decision log"),
    _cluster("snapshots", "cluster/slot/chunk", None, "allocator", "allocator console", "full state as of a decision, in chunks, manifest last"),
    _cluster("placements", "node", None, "allocator", "executor telemetry console", "desired state of one node", public=True),
    _keyed("job-status", "job id", None, "allocator intake", "upstream console", "state, reason, position, planned start of a job", public=True),
    _keyed("dead-letters", "origin", 30, "intake forecaster allocator executor telemetry", "console", "what could not be read or was refused"),
)  # fmt: skip

BY_NAME: dict[str, Topic] = {topic.name: topic for topic in TOPICS}

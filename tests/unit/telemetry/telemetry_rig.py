"""Samples, and a handler fed by hand in wall time. Shared by telemetry's tests."""

from __future__ import annotations

from schemas.codec import decode
from schemas.messages import message
from schemas.nodes import GpuSample, NodeForgotten, NodeSampled, NodeStateChanged
from schemas.records import Message, Now, Record
from services.telemetry.core.handler import TelemetryHandler
from tests.build import CLUSTER, POOL, START_MS, catalog

TOTAL_MIB = 81_920.0


def gpu(index: int, **changed) -> GpuSample:
    fields = {
        "uuid": f"GPU-{index}",
        "model": "H100",
        "memory_total_mib": TOTAL_MIB,
        "memory_used_mib": 1024.0,
        "utilization_pct": 50.0,
    }
    return GpuSample(index=index, **(fields | changed))


def sampled(node: str = "n00", *gpus: GpuSample, wall_ms: int, **changed) -> NodeSampled:
    fields = {"cluster": CLUSTER, "pool": POOL, "time_ms": wall_ms, "source": "simulated"}
    return NodeSampled(node=node, wall_ms=wall_ms, gpus=list(gpus) or [gpu(0), gpu(1)], **(fields | changed))


class Fed:
    """A handler, what it published, and a wall clock. `lines`: the node states published so far."""

    def __init__(self, handler: TelemetryHandler | None = None) -> None:
        self.handler = handler or TelemetryHandler(catalog(gpus=64))
        self.wall_ms = START_MS
        self.offset = 0
        self.out: list[Message] = []

    @property
    def now(self) -> Now:
        return Now(domain_ms=self.wall_ms, wall_ms=self.wall_ms)

    @property
    def lines(self) -> list[NodeStateChanged]:
        return [event for event in self.words if isinstance(event, NodeStateChanged)]

    @property
    def words(self) -> list[NodeStateChanged | NodeForgotten]:
        """All that was said on `node-states`, but for removals."""
        events = [decode(each.headers, each.value).event for each in self.out if each.value is not None]
        return [event for event in events if isinstance(event, NodeStateChanged | NodeForgotten)]

    def record(self, event: NodeSampled) -> Record:
        sent = message(event, key=event.node, id=f"{event.node}/{event.wall_ms}", source="/t", time_ms=event.time_ms)
        return self.raw(event.node, sent.value or b"", sent.headers)

    def raw(self, node: str, value: bytes, headers=()) -> Record:
        self.offset += 1
        return Record("node-telemetry", 0, self.offset, node.encode(), value, tuple(headers), self.wall_ms)

    def feed(self, record: Record) -> list[Message]:
        sent = self.handler.handle(record, self.now)
        self.out.extend(sent)
        return sent

    def sample(self, node: str = "n00", *gpus: GpuSample, **changed) -> list[Message]:
        return self.feed(self.record(sampled(node, *gpus, **({"wall_ms": self.wall_ms} | changed))))

    def pass_s(self, duration_s: float, *, sampling: tuple[str, ...] = (), period_s: float = 5.0) -> None:
        """Let wall time pass with ticks every half second and samples of `sampling` every period."""
        end_ms = self.wall_ms + round(duration_s * 1000)
        next_ms = self.wall_ms
        while self.wall_ms < end_ms:
            if sampling and self.wall_ms >= next_ms:
                for node in sampling:
                    self.sample(node)
                next_ms += round(period_s * 1000)
            self.wall_ms += 500
            self.out.extend(self.handler.tick(self.now))

    def health(self, node: str = "n00") -> str:
        health = self.handler.health_of(node)
        return "unknown" if health is None else health.value

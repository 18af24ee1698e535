"""Telemetry's and the node agent's metrics, read from their state whenever they are scraped.

Owns: names and labels (documented in docs/metrics.md, which a test compares with this file). Per GPU only the agent speaks, for
its own node; telemetry speaks per pool, so that its page doesn't grow with the cluster. Refuses: job ids as labels.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.nodes import GpuSample
from services.telemetry.core.handler import TelemetryHandler
from services.telemetry.core.readings import believed
from services.telemetry.shell.agent import Agent

PoolKey = tuple[str, str]


class TelemetryMetrics(Collector):
    """What telemetry knows of all nodes, per cluster and pool."""

    def __init__(self, handler: TelemetryHandler) -> None:
        self._handler = handler

    def collect(self) -> Iterator[Metric]:
        yield _counted(
            "gpugrid_telemetry_rejected", "Readings and samples not believed.", "reason", self._handler.rejected
        )
        codes = {str(code): count for code, count in self._handler.xids.items()}
        yield _counted("gpugrid_xid_errors", "Errors that drivers reported, by NVIDIA's Xid number.", "xid", codes)
        yield self._nodes()
        yield from self._gpus()
        yield self._findings()

    def _nodes(self) -> Metric:
        family = GaugeMetricFamily("gpugrid_nodes", "Nodes by health.", labels=["cluster", "pool", "health"])
        counts = Counter((node.cluster, node.pool, health.value) for node, health in self._handler.nodes())
        for labels, count in sorted(counts.items()):
            family.add_metric(labels, count)
        return family

    def _gpus(self) -> Iterator[Metric]:
        """Utilization in its three meanings: held of all, busy of all, busy of what is held."""
        total: Counter[PoolKey] = Counter()
        held: Counter[PoolKey] = Counter()
        busy: defaultdict[PoolKey, float] = defaultdict(float)
        busy_held: defaultdict[PoolKey, float] = defaultdict(float)
        away: Counter[tuple[str, str, str]] = Counter()
        for node, _ in self._handler.nodes():
            key = (node.cluster, node.pool)
            holders = self._handler.keeper.holders.on(node.name)
            for index, gpu in node.gpus.items():
                total[key] += 1
                busy[key] += gpu.utilization_pct / 100
                if index in holders:
                    held[key] += 1
                    busy_held[key] += gpu.utilization_pct / 100
                if not gpu.placeable:
                    away[(*key, gpu.action.value if gpu.healthy else "error")] += 1
        gpus = GaugeMetricFamily("gpugrid_gpus", "GPUs that telemetry knows.", labels=["cluster", "pool"])
        used = GaugeMetricFamily(
            "gpugrid_utilization_ratio",
            "0 to 1 over the last minute: GPUs held of all, busy time of all, busy time of those held.",
            labels=["cluster", "pool", "meaning"],
        )
        for key in sorted(total):
            gpus.add_metric(key, total[key])
            used.add_metric([*key, "allocated"], held[key] / total[key])
            used.add_metric([*key, "busy"], busy[key] / total[key])
            if held[key]:
                used.add_metric([*key, "effective"], busy_held[key] / held[key])
        yield gpus
        yield used
        unplaceable = GaugeMetricFamily(
            "gpugrid_gpus_unplaceable", "GPUs on which nothing new is placed.", labels=["cluster", "pool", "why"]
        )
        for labels, count in sorted(away.items()):
            unplaceable.add_metric(labels, count)
        yield unplaceable

    def _findings(self) -> Metric:
        family = GaugeMetricFamily(
            "gpugrid_findings", "Findings that are open now.", labels=["cluster", "pool", "code", "action"]
        )
        counts = Counter(
            (node.cluster, node.pool, found.code.value, found.action.value) for node, found in self._handler.findings()
        )
        for labels, count in sorted(counts.items()):
            family.add_metric(labels, count)
        return family


GPU_GAUGES = {
    "gpugrid_gpu_utilization_ratio": (
        "Busy share of the driver's last sampling window, 0 to 1.",
        "utilization_pct",
        0.01,
    ),
    "gpugrid_gpu_memory_used_bytes": ("Memory in use.", "memory_used_mib", 1_048_576.0),
    "gpugrid_gpu_memory_total_bytes": ("Memory there is.", "memory_total_mib", 1_048_576.0),
    "gpugrid_gpu_power_watts": ("Power drawn now.", "power_w", 1.0),
    "gpugrid_gpu_temperature_celsius": ("Temperature of the chip.", "temperature_c", 1.0),
    "gpugrid_gpu_ecc_uncorrected": ("Uncorrectable memory errors since the last reset.", "ecc_uncorrected", 1.0),
}


class AgentMetrics(Collector):
    """One node's cards as last read; what is not believed is left out."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        yield _total("gpugrid_agent_samples_sent", "Samples that Kafka took.", self._agent.sent)
        yield _total("gpugrid_agent_samples_dropped", "Samples that Kafka did not take.", self._agent.dropped)
        for name, (text, field, factor) in GPU_GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=["node", "gpu", "uuid"])
            for node, gpus in self._agent.last.items():
                for gpu in gpus:
                    value = getattr(believed(gpu), field)
                    if value is not None:
                        family.add_metric([node, str(gpu.index), gpu.uuid], value * factor)
            yield family
        yield self._throttled()

    def _throttled(self) -> Metric:
        family = GaugeMetricFamily(
            "gpugrid_gpu_throttled",
            "1 while the card's clocks are held down, by reason.",
            labels=["node", "gpu", "reason"],
        )
        for node, gpus in self._agent.last.items():
            for gpu in gpus:
                for reason in _reasons(gpu):
                    family.add_metric([node, str(gpu.index), reason], 1)
        return family


def _reasons(gpu: GpuSample) -> list[str]:
    return list(dict.fromkeys(gpu.throttles))


def _counted(name: str, text: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


def _total(name: str, text: str, count: int) -> Metric:
    family = CounterMetricFamily(name, text)
    family.add_metric([], count)
    return family

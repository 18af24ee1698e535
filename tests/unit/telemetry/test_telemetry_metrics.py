"""Telemetry's metrics: utilization in three meanings, findings and health per pool; per card only from the agent, rubbish left out."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from schemas.nodes import XidReport
from services.telemetry.shell.agent import Agent, AgentSettings
from services.telemetry.shell.metrics import AgentMetrics, TelemetryMetrics
from tests.unit.telemetry.telemetry_rig import Fed, gpu
from tests.unit.telemetry.test_usage_findings import place


def exposed(collector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(collector)
    lines = [line for line in generate_latest(registry).decode().splitlines() if line and line[0] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_three_meanings_of_utilization_findings_and_health() -> None:
    fed = Fed()
    place(fed, 1, "a")
    broken = gpu(3, xids=[XidReport(code=79, count=2)])
    fed.sample("n00", gpu(0, utilization_pct=80.0), gpu(1, utilization_pct=0.0), gpu(2, power_w=-1.0), broken)
    found = exposed(TelemetryMetrics(fed.handler))
    pool = 'cluster="c0"'
    assert found[f'gpugrid_gpus{{{pool},pool="h100"}}'] == 4
    assert found[f'gpugrid_utilization_ratio{{{pool},meaning="allocated",pool="h100"}}'] == 0.25
    assert found[f'gpugrid_utilization_ratio{{{pool},meaning="busy",pool="h100"}}'] == (0.8 + 0.5 + 0.5) / 4
    assert found[f'gpugrid_utilization_ratio{{{pool},meaning="effective",pool="h100"}}'] == 0.8
    assert found[f'gpugrid_nodes{{{pool},health="degraded",pool="h100"}}'] == 1
    assert found[f'gpugrid_gpus_unplaceable{{{pool},pool="h100",why="drain"}}'] == 1
    assert found[f'gpugrid_findings{{action="drain",{pool},code="xid",pool="h100"}}'] == 1
    assert found['gpugrid_xid_errors_total{xid="79"}'] == 2
    assert found['gpugrid_telemetry_rejected_total{reason="power_w"}'] == 1


def test_an_agent_tells_of_its_own_cards_and_leaves_rubbish_out() -> None:
    settings = AgentSettings(nodes=("n00",), cluster="c0", pool="h100", partition=0)
    agent = Agent(settings, None, None, None)
    agent.sent = 3
    agent.last = {"n00": [gpu(0, throttles=["hw_slowdown"]), gpu(1, utilization_pct=4294967295.0)]}
    found = exposed(AgentMetrics(agent))
    assert found['gpugrid_gpu_utilization_ratio{gpu="0",node="n00",uuid="GPU-0"}'] == 0.5
    assert not [name for name in found if name.startswith('gpugrid_gpu_utilization_ratio{gpu="1"')]
    assert found['gpugrid_gpu_throttled{gpu="0",node="n00",reason="hw_slowdown"}'] == 1
    assert found["gpugrid_agent_samples_sent_total"] == 3

"""A real Prometheus on a process's own metrics page: what the page says can be asked for, rules are computed, an alert fires."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from deploy.backends.running import MetricStore, metric_store, scrape_targets
from services.allocator.shell.grid_metrics import GridMetrics
from services.runtime.health import HealthServer
from services.runtime.metrics import Metrics, exemplar
from services.telemetry.shell.metrics import TelemetryMetrics
from tests import build
from tests.allocator_driver import POLICY, Driver
from tests.unit.telemetry.telemetry_rig import Fed, gpu

TRACE = "0af7651916cd43dd8448eb211c80319c"
WAIT_S = 60.0


def page() -> Metrics:
    """A busy process."""
    metrics = Metrics("allocator", "allocator-0")
    driver = Driver()
    driver.give(build.node("n00"), build.accepted("a", 8), build.forecast("a", {8: 600.0}))
    GridMetrics(metrics.registry).update(driver.state, POLICY)
    fed = Fed()
    fed.sample("n00", gpu(0), gpu(1, error="GPU is lost"))
    metrics.registry.register(TelemetryMetrics(fed.handler))
    return metrics


async def ask(store: MetricStore, expression: str, metrics: Metrics) -> list:
    """The answer, once there is one; the process goes on working meanwhile."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        for _ in range(10):
            metrics.decision_s.labels("fast").observe(0.004, exemplar(f"00-{TRACE}-b7ad6b7169203331-01"))
        metrics.dead_letters.labels("unknown_pool").inc(5)
        if found := await asyncio.to_thread(store.query, expression):
            return found
        await asyncio.sleep(0.3)
    raise AssertionError(f"never answered: {expression}")


async def test_what_a_process_exposes_can_be_asked_for_and_acted_upon(prometheus: None, tmp_path: Path) -> None:
    metrics = page()
    health = HealthServer("allocator", "allocator-0", run_dir=tmp_path, port=0, metrics=metrics, not_ready=lambda: None)
    await health.start()
    begun_s = time.time()
    try:
        with metric_store(tmp_path / "prometheus", scrape_targets(tmp_path)) as store:
            (up,) = await ask(store, 'up{job="gpugrid"} == 1', metrics)
            assert (up["metric"]["service"], up["metric"]["process"]) == ("allocator", "allocator-0")
            for expression, wanted in (
                ('gpugrid_schedulability_nodes{cluster="c0"}', 0.0),
                ('gpugrid_gpus_unplaceable{why="error"}', 1.0),
                ("gpugrid:unplaceable_share", 0.5),
                ('gpugrid_value_per_hour{source="jobs"}', 24.0),
            ):
                (found,) = await ask(store, expression, metrics)
                assert float(found["value"][1]) == wanted, expression
            (found,) = await ask(store, 'gpugrid:decision_seconds:p99_5m{mode="fast"} > 0', metrics)
            assert 0.002 < float(found["value"][1]) <= 0.005
            (firing,) = await ask(store, 'ALERTS{alertname="GpugridDeadLetters", alertstate="firing"}', metrics)
            assert firing["metric"]["reason"] == "unknown_pool"
            series = await asyncio.to_thread(
                store.exemplars, "gpugrid_decision_seconds_bucket", begun_s - 60, time.time() + 60
            )
            assert {one["labels"]["trace_id"] for each in series for one in each["exemplars"]} == {TRACE}
    finally:
        await health.stop()


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0"])
def test_both_forms_of_the_page_name_the_same_metrics(accept: str) -> None:
    body, _ = page().exposition(accept)
    names = {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE gpugrid")}
    assert {"gpugrid_free_gpus", "gpugrid_nodes", "gpugrid_decision_seconds"} <= names

"""The forecaster's metrics tell of its own clusters' models, and of no others once they moved away."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from services.forecaster.core.handler import ForecasterHandler, Settings
from services.forecaster.shell.model_metrics import ModelMetrics
from tests.build import catalog
from tests.unit.forecaster.forecaster_builders import Stream, now, ran


def test_metrics_follow_the_clusters():
    registry = CollectorRegistry()
    metrics = ModelMetrics(registry)
    forecaster, stream = ForecasterHandler(catalog(clusters=2), Settings()), Stream()
    for cluster in ("c0", "c1"):
        end_ms = ran(stream, forecaster, 30, cluster=cluster)

    def told(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"gpugrid_forecast_{name}", labels)

    metrics.show(forecaster, now(end_ms))
    assert told("model", cluster="c0", version="history") == 1
    assert told("outcomes", cluster="c1") == 30
    assert told("history_keys", cluster="c0") == 7
    assert told("drifting", cluster="c0") == 0
    assert 0 < (told("pinball", cluster="c0", of="said") or 0) < 5
    assert told("records", what="job.accepted.v1") == 60
    forecaster.own(frozenset({1}))
    metrics.show(forecaster, now(end_ms))
    assert told("outcomes", cluster="c0") is None
    assert told("outcomes", cluster="c1") == 30

"""The forecaster's own metrics: which model answers for a cluster, how its forecasts do, what trainings came to.

Owns: names and units. Only clusters of this process are shown. Read next: `core/drift.py`.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from schemas.models import Watch
from schemas.records import Now
from services.forecaster.core.handler import ForecasterHandler


class ModelMetrics:
    """`show` brings them up to date."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"gpugrid_forecast_{name}", text, labels, registry=registry)

        self._model = gauge("model", "1 for the model that answers.", "cluster", "version")
        self._age = gauge("model_age_seconds", "Domain time since the newest run it was trained on.", "cluster")
        self._coverage = gauge("p90_coverage", "Share of the last runs that ended within P90.", "cluster")
        self._pinball = gauge("pinball", "Loss of P50 + P90 on the last runs, natural log seconds.", "cluster", "of")
        self._outcomes = gauge("outcomes", "Last runs whose outcome is known, at most 500.", "cluster")
        self._drifting = gauge("drifting", "1 while forecasts drift.", "cluster")
        self._keys = gauge("history_keys", "Keys with a history of their own.", "cluster")
        self._records = gauge("records", "Records and trainings by what became of them.", "what")

    def show(self, handler: ForecasterHandler, now: Now) -> None:
        # What moved to another process is told by that one.
        for one in (self._model, self._age, self._coverage, self._pinball, self._outcomes, self._drifting, self._keys):
            one.clear()
        for state in handler.owned():
            learning, verdict = state.learning, state.learning.verdict()
            self._model.labels(state.cluster, verdict.score.version).set(1)
            if learning.current is not None:
                age_s = max(0.0, (now.domain_ms - learning.current.window_to_ms) / 1000.0)
                self._age.labels(state.cluster).set(age_s)
            self._coverage.labels(state.cluster).set(verdict.score.coverage)
            self._pinball.labels(state.cluster, "said").set(verdict.score.pinball)
            self._pinball.labels(state.cluster, "history").set(verdict.history.pinball)
            self._outcomes.labels(state.cluster).set(verdict.score.runs)
            self._drifting.labels(state.cluster).set(verdict.watch is Watch.DRIFTING)
            self._keys.labels(state.cluster).set(state.durations.history.key_count)
        for what, count in handler.told().items():
            self._records.labels(what).set(count)

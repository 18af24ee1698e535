"""What the forecaster says, as messages: each with the id of what caused it and the partition of its cluster.

Owns: ids, keys, partitions. Refuses: forecasting, and deciding when to speak. Read next: `handler.py`.
"""

from __future__ import annotations

from schemas.base import Event
from schemas.catalog import Catalog
from schemas.deadletters import dead_letter
from schemas.forecasts import ArrivalForecast, DemandForecast, DurationForecast
from schemas.messages import message
from schemas.models import ModelChosen, ModelWatched
from schemas.records import Message, Now, Record
from services.forecaster.core.cluster import Again, Application, ClusterForecasts

SERVICE = "forecaster"
SOURCE = f"gpugrid/{SERVICE}"
HORIZON_S = 86_400


class Answers:
    """`step_s`: of demand and arrivals."""

    def __init__(self, catalog: Catalog, step_s: int) -> None:
        self._catalog = catalog
        self._step_s = step_s

    def refused(self, record: Record, reason: str, detail: str, now: Now) -> Message:
        letter = dead_letter(record, service=SERVICE, reason=reason, detail=detail, now=now)
        origin = f"{record.topic}/{record.partition}"
        return message(
            letter, key=origin, id=f"{origin}/{record.offset}/{SERVICE}", source=SOURCE, time_ms=now.domain_ms
        )

    def duration(self, forecast: DurationForecast, cause_id: str, traceparent: str, now: Now) -> Message:
        """A forecast that a record asked for."""
        return self._message(forecast, forecast.cluster, forecast.job_id, f"{cause_id}/forecast", now, traceparent)

    def again(self, again: Again, now: Now) -> Message:
        """A forecast that time asked for."""
        job_id, forecast = again.facts.job_id, again.forecast
        id = f"{job_id}/{forecast.attempt}/forecast/{again.round}"
        return self._message(forecast, forecast.cluster, job_id, id, now, again.facts.traceparent)

    def demand(
        self, state: ClusterForecasts, app_id: str, application: Application, id: str, traceparent: str, now: Now
    ) -> Message:
        application.made_ms, application.dirty = now.domain_ms, False
        gpus_max = sum(pool.gpus for pool in self._catalog.clusters[state.cluster].pools.values())
        demand = application.history.forecast(now.domain_ms, HORIZON_S // self._step_s, float(gpus_max))
        forecast = DemandForecast(
            app_id=app_id,
            cluster=state.cluster,
            made_ms=now.domain_ms,
            start_ms=demand.start_ms,
            step_s=self._step_s,
            model="last-value" if demand.prior else "rules-by-record",
            p50=demand.p50,
            p90=demand.p90,
            prior=demand.prior,
        )
        return self._message(forecast, state.cluster, app_id, id, now, traceparent)

    def arrivals(self, state: ClusterForecasts, now: Now) -> Message:
        start_ms, work = state.arrivals.forecast(now.domain_ms, HORIZON_S // self._step_s)
        forecast = ArrivalForecast(
            cluster=state.cluster,
            made_ms=now.domain_ms,
            start_ms=start_ms,
            step_s=self._step_s,
            model="same-time-mean",
            gpu_seconds=work,
        )
        key = f"{state.cluster}/arrivals"
        return self._message(forecast, state.cluster, key, f"{key}/{start_ms}", now)

    def chosen(self, event: ModelChosen, now: Now) -> Message:
        return self._message(event, event.cluster, event.cluster, f"{event.cluster}/model/{event.made_ms}", now)

    def watched(self, event: ModelWatched, now: Now) -> Message:
        key = f"{event.cluster}/watch"
        return self._message(event, event.cluster, key, f"{key}/{event.made_ms}", now)

    def _message(self, event: Event, cluster: str, key: str, id: str, now: Now, traceparent: str = "") -> Message:
        return message(
            event,
            key=key,
            id=id,
            source=SOURCE,
            time_ms=now.domain_ms,
            traceparent=traceparent,
            partition=self._catalog.partition_of(cluster),
        )

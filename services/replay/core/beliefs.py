"""What a scheduler is told about durations, at one of four levels, while a day is played; and the live forecaster behind it.

Owns the levels: `true` (what will happen), `forecast` (the forecaster's own handler, which learns from the executions it is
told of and nothing else), `limit` (what the user declared, for the slowest size) and `none` (the planner's prior; the declared
limit is not known either). Demand of applications comes from the forecaster at every level. Refuses to know how the forecaster
is made: a handler is handed in. Read next: `rolling.py` (gpugrid), `baselines.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Protocol

from msgspec.structs import replace

from schemas.base import Event
from schemas.codec import decode
from schemas.demand import DemandObserved
from schemas.forecasts import DemandForecast, DurationForecast, SizeForecast
from schemas.jobs import JobAccepted, JobSpec
from schemas.messages import message
from schemas.records import Message, Now, Record
from schemas.registry import topic_of
from services.allocator.core.config import Policy
from services.replay.core.day import Day, DayJob

LIMIT_UNKNOWN_S = 14 * 86_400.0
"""The limit that stands for "none known": the longest that docs/workload.md lets anybody declare."""
SOURCE = "/upstream/backtest"


class Level(Enum):
    """How much is known about how long a job will run."""

    TRUE = "true"
    FORECAST = "forecast"
    LIMIT = "limit"
    NONE = "none"


class Forecaster(Protocol):
    """The forecaster's handler as far as it is used here."""

    def recover(self, record: Record) -> None: ...

    def handle(self, record: Record, now: Now) -> list[Message]: ...

    def tick(self, now: Now) -> list[Message]: ...


Forecast = DurationForecast | DemandForecast


class Beliefs:
    """One run's information. `tell` every event as it happens; the forecasts it returns are published at that moment."""

    def __init__(self, day: Day, level: Level, forecaster: Forecaster | None = None) -> None:
        """Without a forecaster there is no demand forecast, and no level `forecast`."""
        if level is Level.FORECAST and forecaster is None:
            raise ValueError("the level 'forecast' needs a forecaster")
        self.level = level
        self._forecaster = forecaster
        self._jobs = {job.job_id: job for job in day.jobs}
        self._offsets: dict[str, int] = {}
        self._sizes: dict[str, list[SizeForecast]] = {}
        self._prior = Policy()

    def remember(self, events: Iterable[tuple[int, Event]]) -> None:
        """What happened before the day, by time: the forecaster folds it without answering."""
        if self._forecaster is not None:
            for time_ms, event in events:
                if self._listens(event):
                    self._forecaster.recover(self._record(event, time_ms))

    def tell(self, event: Event, now_ms: int) -> list[Forecast]:
        """What follows from the event, in the order it would be published."""
        found: list[Forecast] = []
        if isinstance(event, JobAccepted) and self.level is not Level.FORECAST:
            found += self._stated(self._jobs[event.job_id], event.cluster, now_ms)
        if self._forecaster is not None and self._listens(event):
            found += self._said(self._forecaster.handle(self._record(event, now_ms), Now(now_ms, now_ms)))
        self._keep(found)
        return found

    def tick(self, now_ms: int) -> list[Forecast]:
        """What time alone brings: forecasts of jobs that outlived theirs, or wait for long."""
        if self._forecaster is None:
            return []
        found = self._said(self._forecaster.tick(Now(now_ms, now_ms)))
        self._keep(found)
        return found

    def spec(self, job: DayJob) -> JobSpec:
        """The job as a scheduler at this level sees it."""
        if self.level is not Level.NONE:
            return job.spec
        return replace(job.spec, time_limit_s=LIMIT_UNKNOWN_S)

    def expected_s(self, job: DayJob, gpus: int) -> tuple[float, float]:
        """(P50, P90) of the whole run on `gpus`, as last said; the planner's prior if nothing was."""
        limit_s = self.spec(job).time_limit_s
        for size in self._sizes.get(job.job_id, ()):
            if size.gpus == gpus:
                return min(size.p50_s, limit_s), min(size.p90_s, limit_s)
        scale = max(job.spec.sizes) / gpus
        return min(self._prior.prior_p50_s * scale, limit_s), min(self._prior.prior_p90_s * scale, limit_s)

    def _listens(self, event: Event) -> bool:
        return self.level is Level.FORECAST or isinstance(event, DemandObserved)

    def _stated(self, job: DayJob, cluster: str, now_ms: int) -> list[Forecast]:
        if self.level is Level.NONE:
            return []
        limit_s = job.spec.time_limit_s
        # A limit holds at whatever size the job gets, so it was declared for the slowest: the smallest it offers. Taken as the
        # duration at every size it would say that GPUs beyond the fewest bring nothing.
        fewest = min(job.spec.sizes)
        said_s = {
            gpus: job.run_s[gpus] if self.level is Level.TRUE else limit_s * fewest / gpus for gpus in job.spec.sizes
        }
        sizes = [
            SizeForecast(gpus=gpus, p50_s=min(run_s, limit_s), p90_s=min(run_s, limit_s))
            for gpus, run_s in said_s.items()
        ]
        return [
            DurationForecast(job_id=job.job_id, cluster=cluster, made_ms=now_ms, model=self.level.value, sizes=sizes)
        ]

    def _said(self, messages: list[Message]) -> list[Forecast]:
        events = [decode(entry.headers, entry.value or b"").event for entry in messages]
        return [event for event in events if isinstance(event, DurationForecast | DemandForecast)]

    def _keep(self, forecasts: list[Forecast]) -> None:
        for forecast in forecasts:
            if isinstance(forecast, DurationForecast):
                self._sizes[forecast.job_id] = list(forecast.sizes)

    def _record(self, event: Event, time_ms: int) -> Record:
        topic = topic_of(event)
        offset = self._offsets.get(topic, 0)
        self._offsets[topic] = offset + 1
        key: str = getattr(event, "job_id", "") or getattr(event, "app_id", "")
        sent = message(event, key=key, id=f"{topic}-{offset}", source=SOURCE, time_ms=time_ms, partition=0)
        return Record(topic, 0, offset, sent.key, sent.value, sent.headers, time_ms)

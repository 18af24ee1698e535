"""Records in, forecasts out: what the forecaster says, when, and under which id. Pure and deterministic.

Inputs: `jobs` (a forecast at once), `executions` (learn; a new forecast when a job starts on another belief than was
published), `demand` (a forecast per application, at most every `demand_period_s` of domain time). Time adds re-forecasts of
jobs that outlived their P50 or P90 or wait for long, and what trainings brought (`orders`, `fitted`). The answers to the last
`ANSWERS_KEPT` records are kept and repeated byte for byte. A record is folded once per (topic, partition, offset). `recover` keeps
executions back until the first answer is asked for, because they may be read before the jobs they belong to; `models` is only
recovered: the newest choice per cluster. Time and trainings concern only the clusters of this process (`own`). Refuses:
learning and arithmetic (`cluster.py`), models (an argument). Read next: `cluster.py`, `answers.py`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.json import encode

from schemas.catalog import Catalog
from schemas.codec import DecodeError, Envelope, decode_record
from schemas.demand import DemandObserved
from schemas.executions import JobCompleted, JobFailed, JobStarted, JobStopped
from schemas.jobs import JobAccepted, JobAmended, JobRevoked
from schemas.models import ModelChosen, TrainedModel
from schemas.records import Mark, Message, Now, Record
from schemas.registry import TYPES
from services.forecaster.core.answers import SERVICE, SOURCE, Answers
from services.forecaster.core.cluster import ClusterForecasts
from services.forecaster.core.duration import Model
from services.forecaster.core.folded import Folded
from services.forecaster.core.history import Seed
from services.forecaster.core.learning import Learning, Load
from services.forecaster.core.retraining import Fitted, Order, Rhythm

__all__ = ["SERVICE", "SOURCE", "ForecasterHandler", "Settings"]

FOLDED = (
    "job.accepted.v1", "job.amended.v1", "job.revoked.v1", "job.started.v1", "job.stopped.v1", "job.completed.v1",
    "job.failed.v1", "demand.observed.v1", "model.chosen.v1",
)  # fmt: skip
NOT_OURS = frozenset(
    name for name, (_, topic) in TYPES.items() if topic in ("jobs", "executions", "models") and name not in FOLDED
)
"""Events on our topics that say nothing about durations (progress, checkpoints, node reports …), most of `executions` by number:
told by their header and not decoded. Whether they are well formed is for those who use them to say."""
ANSWERS_KEPT = 2_048
"""Ten full batches: what a failed send or a rebalance may ask for again."""
LOOKS_PER_RECORD_MAX = 2
LOOKS_PER_TICK_MAX = 100
"""Re-forecasts per call: 0.3 ms each, so a record stays within its 5 ms and a tick within 50 ms."""
APPLICATIONS_PER_TICK_MAX = 50
BACKFILL_S = 1_800.0
"""Observations older than this are history being told, not news: folded without an answer."""
ARRIVALS_PERIOD_MS = 3_600_000
QUIET_PERIOD_MS = 3_600_000
"""An application that sends nothing still gets a forecast an hour, so that planners never run out of horizon."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`step_s`: step of demand and arrivals; `demand_period_s`: domain seconds between two forecasts of one application;
    `rhythm`: when to train."""

    step_s: int = 900
    demand_period_s: float = 600.0
    rhythm: Rhythm = field(default_factory=Rhythm)


class ForecasterHandler:
    """See the module's docstring."""

    inputs: tuple[str, ...] = ("jobs", "executions", "demand")
    rebuilt_from: tuple[str, ...] = ("models", "jobs", "executions", "demand")

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        *,
        model: Model | None = None,
        seed: Seed | None = None,
        load: Load | None = None,
        start: TrainedModel | None = None,
    ) -> None:
        """`model` and `seed` answer until something was learnt; `start` is that model as it would be published. With `load`
        the handler orders trainings and adopts what they bring; without, it stays with `model`."""
        self._catalog = catalog
        self._settings = settings
        self._model = model
        self._seed = seed
        self._load = load
        self._start = start
        self._say = Answers(catalog, settings.step_s)
        self._own: frozenset[int] | None = None
        self._fitted: list[Fitted] = []
        self._clusters: dict[str, ClusterForecasts] = {}
        self._folded = Folded()
        self._answers: dict[tuple[str, int, int], list[Message]] = {}
        self._held_back: deque[Envelope] = deque()
        self.counts: Counter[str] = Counter()
        """Records by what became of them, for metrics."""

    def fresh(self) -> ForecasterHandler:
        """A handler that has seen nothing, with the same model and seed."""
        return ForecasterHandler(
            self._catalog, self._settings, model=self._model, seed=self._seed, load=self._load, start=self._start
        )

    def use_model(self, model: Model | None) -> None:
        """Replace the model between two records: all clusters answer with the new one from now on."""
        self._model = model
        for cluster in self._clusters.values():
            cluster.use_model(model)

    def own(self, partitions: frozenset[int]) -> None:
        """The partitions this process answers for from now on; before the first call, all of them."""
        self._own = partitions

    def told(self) -> Counter[str]:
        """Records by what became of them, those not learnt from included."""
        found = Counter(self.counts)
        for state in self.owned():
            for reason, count in state.ledger.ignored.items():
                found[f"ignored {reason}"] += count
        return found

    def owned(self) -> list[ClusterForecasts]:
        """State of the clusters this process answers for, as far as there is any."""
        self._settle()
        return [
            state
            for name, state in self._clusters.items()
            if self._own is None or self._catalog.partition_of(name) in self._own
        ]

    def cluster(self, name: str) -> ClusterForecasts | None:
        """State of one cluster, for metrics and explanations; None before its first event."""
        self._settle()
        return self._clusters.get(name)

    def recover(self, record: Record) -> None:
        """Fold a record into the state without answering. What can't be read was dead-lettered when it was handled."""
        if not self._folded.is_new(record) or record.header("ce_type") in NOT_OURS:
            return
        try:
            envelope = decode_record(record)
        except DecodeError:
            return
        if isinstance(envelope.event, JobStarted | JobStopped | JobCompleted | JobFailed):
            self._held_back.append(envelope)
            return
        state = self._cluster_of(envelope)
        if state is None:
            return
        if isinstance(envelope.event, ModelChosen):
            self._adopt(state, envelope.event)
        else:
            self._fold(state, envelope)

    def handle(self, record: Record, now: Now) -> list[Message]:
        """Fold a record and return what to publish. Never raises for bad input."""
        if record.header("ce_type") in NOT_OURS:
            self._folded.is_new(record)
            return []
        self._settle()
        place = (record.topic, record.partition, record.offset)
        if place in self._answers:
            self.counts["repeated"] += 1
            return self._answers[place]
        answers = self._answer(record, now)
        self._answers[place] = answers
        if len(self._answers) > ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]
        return answers

    def tick(self, now: Now) -> list[Message]:
        """Re-forecasts that time asks for, and models that trainings brought."""
        answers: list[Message] = []
        owned = self.owned()
        for state in owned:
            answers += self._due(state, now, LOOKS_PER_TICK_MAX)
            answers += self._quiet_applications(state, now)
            answers += self._arrivals(state, now)
            watched = state.learning.watch(now.domain_ms)
            if watched is not None:
                answers.append(self._say.watched(watched, now))
        fitted, self._fitted = self._fitted, []
        by_name = {state.cluster: state for state in owned}
        for result in fitted:
            if result.cluster in by_name:
                answers.append(self._chosen(by_name[result.cluster], result, now))
            else:  # it has moved to another process meanwhile, which trains for itself
                self.not_fitted(result.cluster, now)
        return answers

    # Learning

    def orders(self, now: Now) -> Iterator[Order]:
        """Trainings that are due, to be carried out elsewhere; each is answered by `fitted` or `not_fitted`."""
        for state in self.owned():
            order = state.learning.order(now.domain_ms)
            if order is not None:
                self.counts["trainings"] += 1
                yield order

    def fitted(self, result: Fitted) -> None:
        """What a training brought; the next tick judges it, publishes the choice, and answers with it from then on."""
        self._fitted.append(result)

    def not_fitted(self, cluster: str, now: Now) -> None:
        """A training came to nothing."""
        self.counts["trainings_failed"] += 1
        state = self._clusters.get(cluster)
        if state is not None:
            state.learning.failed(now.domain_ms)

    def _chosen(self, state: ClusterForecasts, result: Fitted, now: Now) -> Message:
        event = state.learning.fitted(result)
        self.counts[f"model {event.choice.value}"] += 1
        self._adopt(state, event)
        return self._say.chosen(event, now)

    def _adopt(self, state: ClusterForecasts, event: ModelChosen) -> None:
        changed, model = state.learning.adopt(event)
        if changed:
            state.use_model(model)

    # Records

    def _answer(self, record: Record, now: Now) -> list[Message]:
        new = self._folded.is_new(record)
        try:
            envelope = decode_record(record)
        except DecodeError as error:
            return self._refuse(record, error.code, error.detail, now)
        state = self._cluster_of(envelope)
        if state is None:
            cluster = getattr(envelope.event, "cluster", None)
            if cluster is None:
                return self._refuse(record, "wrong_topic", f"{envelope.type} does not belong to {record.topic}", now)
            return self._refuse(record, "unknown_cluster", f"no cluster {cluster!r} in the catalog", now)
        self.counts[envelope.type] += 1
        answers = self._event(state, envelope, record, now, new)
        return answers + self._due(state, now, LOOKS_PER_RECORD_MAX)

    def _event(self, state: ClusterForecasts, envelope: Envelope, record: Record, now: Now, new: bool) -> list[Message]:
        event = envelope.event
        if isinstance(event, JobAccepted):
            facts = state.accepted(event, envelope.traceparent)
            forecast = state.forecast_job(facts, now.domain_ms)
            if new:
                state.work_arrived(facts, event.accepted_ms, forecast)
            return [self._say.duration(forecast, envelope.id, envelope.traceparent, now)]
        if isinstance(event, DemandObserved):
            return self._demand_observed(state, event, envelope, record, now, new)
        if isinstance(event, JobAmended):
            changed = state.amended(event)
            if changed is None:
                return []
            forecast = state.forecast_job(changed, now.domain_ms)
            return [self._say.duration(forecast, envelope.id, envelope.traceparent, now)]
        if isinstance(event, JobStarted) and new:
            before = state.said(event.job_id)
            started = state.executed(event)
            if started is None:
                return []
            forecast = state.forecast_job(started[0], now.domain_ms)
            if not state.worth_saying(started[0], before):
                state.unsay(event.job_id, before)
                return []
            return [self._say.duration(forecast, envelope.id, envelope.traceparent, now)]
        if new:
            self._fold(state, envelope)
        return []

    def _fold(self, state: ClusterForecasts, envelope: Envelope) -> None:
        """Into the state, without an answer."""
        event = envelope.event
        if isinstance(event, JobAccepted):
            facts = state.accepted(event, envelope.traceparent)
            state.arrivals.arrived(event.accepted_ms, facts.gpus * state.typical_s(facts))
        elif isinstance(event, JobStarted | JobStopped | JobCompleted | JobFailed):
            state.executed(event)
        elif isinstance(event, JobAmended):
            state.amended(event)
        elif isinstance(event, JobRevoked):
            state.revoked(event)
        elif isinstance(event, DemandObserved):
            application = state.application(event.app_id)
            if application is not None:
                application.history.observe(event.time_ms, event.window_s, event.load, event.per_gpu)

    def _demand_observed(
        self, state: ClusterForecasts, event: DemandObserved, envelope: Envelope, record: Record, now: Now, new: bool
    ) -> list[Message]:
        application = state.application(event.app_id)
        if application is None:
            return self._refuse(record, "too_many_applications", f"no room for the demand of {event.app_id}", now)
        if new and not application.history.observe(event.time_ms, event.window_s, event.load, event.per_gpu):
            return self._refuse(
                record, "unusable_demand", "load and per_gpu must be finite, and not older than a week", now
            )
        application.dirty = True
        if now.domain_ms - event.time_ms > BACKFILL_S * 1000:
            return []
        if application.made_ms >= 0 and now.domain_ms - application.made_ms < self._settings.demand_period_s * 1000:
            return []
        id = f"{envelope.id}/demand"
        return [self._say.demand(state, event.app_id, application, id, envelope.traceparent, now)]

    def _refuse(self, record: Record, reason: str, detail: str, now: Now) -> list[Message]:
        self.counts[reason] += 1
        return [self._say.refused(record, reason, detail, now)]

    # Time

    def _due(self, state: ClusterForecasts, now: Now, looks_max: int) -> list[Message]:
        return [self._say.again(again, now) for again in state.due(now.domain_ms, looks_max)]

    def _quiet_applications(self, state: ClusterForecasts, now: Now) -> list[Message]:
        """Forecasts of applications observed since their last one, or not for an hour."""
        answers: list[Message] = []
        for app_id, application in state.applications.items():
            if application.history.empty or len(answers) >= APPLICATIONS_PER_TICK_MAX:
                continue
            age_ms = now.domain_ms - application.made_ms
            period_ms = self._settings.demand_period_s * 1000 if application.dirty else QUIET_PERIOD_MS
            if application.made_ms < 0 or age_ms >= period_ms:
                id = f"{app_id}/demand/{now.domain_ms}"
                answers.append(self._say.demand(state, app_id, application, id, "", now))
        return answers

    def _arrivals(self, state: ClusterForecasts, now: Now) -> list[Message]:
        if state.arrivals.last_index < 0 or now.domain_ms - state.arrivals_made_ms < ARRIVALS_PERIOD_MS:
            return []
        state.arrivals_made_ms = now.domain_ms
        return [self._say.arrivals(state, now)]

    # State

    @property
    def kept_back(self) -> int:
        """Executions that wait until the jobs they belong to are known."""
        return len(self._held_back)

    def settle(self, records_max: int) -> None:
        """Fold the oldest of them: every job they belong to is known now."""
        for _ in range(min(records_max, len(self._held_back))):
            envelope = self._held_back.popleft()
            state = self._cluster_of(envelope)
            if state is not None:
                self._fold(state, envelope)

    def _settle(self) -> None:
        if self._held_back:
            self.settle(len(self._held_back))

    def _cluster_of(self, envelope: Envelope) -> ClusterForecasts | None:
        name = getattr(envelope.event, "cluster", None)
        if name is None or name not in self._catalog.clusters:
            return None
        state = self._clusters.get(name)
        if state is None:
            learning = Learning(name, self._settings.rhythm, self._load, self._start)
            pools = self._catalog.clusters[name].pools
            state = ClusterForecasts(
                name, self._model, self._seed, self._settings.step_s, pools=pools, learning=learning
            )
            self._clusters[name] = state
        return state

    # Kept on disk (`services.runtime.handler.Savable`)

    def made_with(self) -> bytes:
        """All that the state depends on besides records and code."""
        models = [None if one is None else one.version for one in (self._model, self._start)]
        seed = b"" if self._seed is None else self._seed.digest()
        return b"\n".join((encode(self._catalog), repr((self._settings, models, self._load is None)).encode(), seed))

    def marks(self) -> Mapping[tuple[str, int], Mark]:
        """The newest record folded, per topic and partition."""
        return self._folded.marks

    def state(self) -> object:
        """All that was learnt; can be pickled."""
        self._settle()
        return self._clusters, self._folded

    def use_state(self, state: Any) -> None:
        """Go on from what another handler of the same make has learnt."""
        self._clusters, self._folded = state
        for cluster in self._clusters.values():
            cluster.learning.training = False  # whoever was at it is gone

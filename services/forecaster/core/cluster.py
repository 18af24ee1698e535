"""Everything the forecaster knows of one cluster, and when it speaks again about a job that it has spoken about.

Owns: the order of folding (ledger, history, calibration, arrivals), and the appointments: a running job is looked at again when
its P50 and its P90 pass, a waiting one after an hour, then two, four … All by domain time and bounded per call, so that the
same events at the same moments give the same forecasts. Refuses: bytes and topics (`handler.py`). Read next: `ledger.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import exp, log, log2

from schemas.catalog import Pool
from schemas.executions import JobStarted
from schemas.forecasts import DurationForecast, SizeForecast
from schemas.jobs import JobAccepted, JobAmended, JobRevoked
from services.forecaster.core.arrivals import ArrivalHistory
from services.forecaster.core.calibration import Calibration
from services.forecaster.core.demand import DemandHistory
from services.forecaster.core.demand_remembered import Remembered
from services.forecaster.core.duration import DurationForecaster, Estimate, Facts, Model, facts_of
from services.forecaster.core.expectations import Expectations, Told
from services.forecaster.core.features import NAMES, Row, feature_row
from services.forecaster.core.first_belief import FirstBelief, acceptable, first_belief, with_day_one
from services.forecaster.core.history import DurationHistory, Seed, clamped_log_s
from services.forecaster.core.learning import Learning
from services.forecaster.core.ledger import Ended, Entry, Execution, Ledger, Run, Worth
from services.forecaster.core.prior import scale_log_s
from services.forecaster.core.promises import Promise
from services.forecaster.core.retraining import Rhythm

WAITING_AGAIN_S = 3_600.0
WAITING_AGAIN_DOUBLINGS_MAX = 4
"""A waiting job is looked at again after 1, 2, 4, 8 and then every 16 hours: others of its sweep have ended meanwhile."""
CHANGE_SHARE_MIN = 0.1
"""A new forecast within a tenth of the last one is not published: planners would only churn."""
APPOINTMENT_S_MIN = 30.0
"""Two looks at one job are at least this far apart."""
GPUS = NAMES.index("gpus_log2")
APPLICATIONS_MAX = 4_096
"""Applications whose demand is kept, 41 KB each; observations of further ones are refused."""


@dataclass(slots=True)
class Application:
    """One application's demand. `made_ms`: when its last forecast was made; `dirty`: observed since."""

    history: DemandHistory
    made_ms: int = -1
    dirty: bool = True


@dataclass(frozen=True, slots=True)
class Again:
    """A forecast that time asked for."""

    facts: Facts
    forecast: DurationForecast
    round: int


class ClusterForecasts:
    """State of one cluster. Methods named after events fold them; `forecast_*` answer without changing anything learnt."""

    def __init__(
        self,
        cluster: str,
        model: Model | None,
        seed: Seed | None,
        step_s: int,
        *,
        pools: Mapping[str, Pool] | None = None,
        learning: Learning | None = None,
    ) -> None:
        self.cluster = cluster
        self.expectations = Expectations()
        self._pools = pools or {}
        self.learning = learning or Learning(cluster, Rhythm(), None, None)
        self.step_s = step_s
        self.durations = DurationForecaster(DurationHistory(seed), Calibration(), model)
        self.ledger = Ledger()
        self.arrivals = ArrivalHistory(step_s)
        self.arrivals_made_ms = -1
        self.applications: dict[str, Application] = {}
        self.remembered = Remembered()
        self._appointments: list[tuple[int, int, str, int, int]] = []
        self._appointed = 0
        self._published: dict[str, SizeForecast] = {}

    def use_model(self, model: Model | None) -> None:
        """From now on this one corrects history: a swap between two records."""
        self.durations.model = model

    # Jobs

    def accepted(self, event: JobAccepted, traceparent: str) -> Facts:
        """Remember the job, learn from executions that came before it."""
        known = self.ledger.jobs.get(event.job_id)
        if known is not None:
            return known.facts
        facts = facts_of(event, traceparent)
        belief = first_belief(event.spec, facts, acceptable(self._pools, event.pools))
        facts = with_day_one(event.spec, facts, belief)
        early, dropped = self.ledger.accept(facts, event.submitted_ms, belief)
        if dropped is not None:
            self._published.pop(dropped.facts.job_id, None)
            if dropped.run is not None:
                self.durations.history.forget(dropped.run.run)
                self.durations.promises.forget((dropped.facts.job_id, dropped.run.attempt))
                self.learning.lessons.forget(dropped.facts.job_id)
        self._appoint(event.accepted_ms + round(WAITING_AGAIN_S * 1000), facts.job_id, 0, 0)
        for execution in early:
            self.executed(execution)
        return facts

    def forecast_job(self, facts: Facts, now_ms: int) -> DurationForecast:
        """What is believed of an accepted job now, and remembered as said."""
        entry = self.ledger.jobs.get(facts.job_id)
        if entry is not None and entry.run is not None:
            return self._forecast_running(entry, entry.run, now_ms)
        belief = None if entry is None else entry.belief
        estimate, _ = self._estimate(facts, belief, now_ms)
        forecast = self._forecast(facts, belief, estimate, now_ms)
        self._published[facts.job_id] = _anchor(forecast, facts.gpus)
        return forecast

    def work_arrived(self, facts: Facts, accepted_ms: int, forecast: DurationForecast) -> None:
        """Count an accepted job's expected work among the arrivals."""
        self.arrivals.arrived(accepted_ms, _anchor(forecast, facts.gpus).p50_s * facts.gpus)

    def typical_s(self, facts: Facts) -> float:
        """P50 by history alone: good enough to count past work while the state is rebuilt."""
        view = self.durations.history.view(facts.subject, 0, facts.prior)
        return min(exp(view.log_quantile(0.5)), facts.limit_s)

    def amended(self, event: JobAmended) -> Facts | None:
        """A new time limit caps anew. None if nothing of interest changed."""
        entry = self.ledger.jobs.get(event.job_id)
        if entry is None or event.time_limit_s is None or event.time_limit_s == entry.facts.limit_s:
            return None
        entry.facts = replace(entry.facts, limit_s=event.time_limit_s)
        return entry.facts

    def revoked(self, event: JobRevoked) -> None:
        """A cancelled job that does not run is forgotten; one that runs will be reported as stopped."""
        entry = self.ledger.jobs.get(event.job_id)
        if entry is not None and entry.run is None:
            del self.ledger.jobs[event.job_id]
            self._published.pop(event.job_id, None)

    def worth_saying(self, facts: Facts, before: SizeForecast | None) -> bool:
        """Whether what was just forecast differs from `before`, so that planners need to hear of it."""
        return before is None or _differs(before, self._published[facts.job_id])

    def said(self, job_id: str) -> SizeForecast | None:
        """The last forecast of this job, at the size it was anchored at."""
        return self._published.get(job_id)

    def unsay(self, job_id: str, before: SizeForecast | None) -> None:
        """A forecast was not published after all: changes are measured against the last one that was."""
        if before is not None:
            self._published[job_id] = before

    # Executions

    def executed(self, event: Execution) -> tuple[Facts, Run] | None:
        """Fold a start or an end. Returns the job and its run if it started (or grew by a node) with this event."""
        entry = self.ledger.jobs.get(event.job_id)
        if entry is None:
            self.ledger.keep_early(event)
            return None
        if isinstance(event, JobStarted):
            self.durations.promises.settle(event.time_ms)
            return self._started(entry, event)
        ended = self.ledger.ended(entry, event)
        if ended is not None:
            self._ended(entry, ended)
        self.durations.promises.settle(event.time_ms)
        return None

    def _ended(self, entry: Entry, ended: Ended) -> None:
        facts = entry.facts
        run = ended.run
        if run.run < 0 and ended.worth is not Worth.NOTHING and run.first_p90_s == 0.0:
            run.run = self.durations.history.start(replace(facts.subject, gpus=self._gpus(entry, run)), run.start_ms)
        if ended.worth is Worth.NOTHING:
            self.durations.history.forget(run.run)
        else:
            self.durations.history.finish(run.run, ended.duration_s, observed=ended.worth is Worth.OBSERVED)
        if ended.worth is Worth.OBSERVED:
            self._learn(facts, entry.belief, ended)
        else:
            self.learning.lessons.forget(facts.job_id)
            self.durations.promises.forget((facts.job_id, run.attempt))
        self._published.pop(facts.job_id, None)

    def _learn(self, facts: Facts, belief: FirstBelief | None, ended: Ended) -> None:
        """What a run that ended by itself says about what was said when it started, if anything was."""
        run = ended.run
        if run.row is None:
            return
        self.durations.promises.ended((facts.job_id, run.attempt), ended.duration_s)
        said, log_s = (log(run.first_p50_s), log(run.first_p90_s)), clamped_log_s(ended.duration_s)
        self.learning.ended(facts.job_id, run.row, ended.end_ms, log_s, said)
        if run.told is not None and belief is not None:
            self.expectations.ended(run.told, belief.keys, log_s)

    def _started(self, entry: Entry, event: JobStarted) -> tuple[Facts, Run] | None:
        run, before = self.ledger.started(entry, event)
        if run is None:
            return None
        history = self.durations.history
        if before is not None:
            if before.attempt == run.attempt:
                history.forget(before.run)
            else:
                history.finish(before.run, before.done_s(event.time_ms), observed=False)
                self.durations.promises.forget((entry.facts.job_id, before.attempt))
        gpus = self._gpus(entry, run)
        estimate, told = self._estimate(entry.facts, entry.belief, event.time_ms)
        block = gpus if gpus in entry.facts.sizes else entry.facts.gpus
        size = self.durations.at_sizes(replace(entry.facts, sizes=(block,)), estimate, event.time_ms)[0]
        run.p50_s, run.p90_s = size.p50_s, size.p90_s
        run.first_p50_s, run.first_p90_s = size.p50_s, size.p90_s
        run.row = estimate.row if gpus == entry.facts.gpus else self._row_on(entry.facts, gpus, event.time_ms)
        run.told = None if told is None else told.on_other_size(scale_log_s(entry.facts.gpus, gpus))
        promise = Promise(entry.facts.subject.team, gpus, log(size.p90_s))
        self.durations.promises.made((entry.facts.job_id, run.attempt), promise, run.start_ms, run.speed)
        self.learning.started(entry.facts.job_id, run.row, run.start_ms)
        run.run = history.start(replace(entry.facts.subject, gpus=gpus), run.start_ms)
        self._appoint_run(entry.facts.job_id, run, event.time_ms)
        return entry.facts, run

    def _row_on(self, facts: Facts, gpus: int, now_ms: int) -> Row:
        """The features of a job on the block it got, which isn't the one its forecast is anchored at."""
        given = facts.given.copy()
        given[GPUS] = log2(gpus)
        view = self.durations.history.view(replace(facts.subject, gpus=gpus), now_ms, facts.prior)
        return feature_row(given, view)

    # Time

    def due(self, now_ms: int, looks_max: int) -> Iterator[Again]:
        """Forecasts whose time has come; at most `looks_max` jobs are looked at, the rest waits for the next call."""
        self.durations.promises.settle(now_ms)
        for _ in range(looks_max):
            if not self._appointments or self._appointments[0][0] > now_ms:
                return
            _, _, job_id, attempt, round_ = heappop(self._appointments)
            entry = self.ledger.jobs.get(job_id)
            if entry is None:
                continue
            again = self._look(entry, attempt, round_, now_ms)
            if again is not None:
                yield again

    def _look(self, entry: Entry, attempt: int, round_: int, now_ms: int) -> Again | None:
        facts, run = entry.facts, entry.run
        if attempt == 0:
            if run is not None or entry.ended_attempt > 0:
                return None
            doublings = min(round_ + 1, WAITING_AGAIN_DOUBLINGS_MAX)
            self._appoint(now_ms + round(WAITING_AGAIN_S * 1000 * 2**doublings), facts.job_id, 0, round_ + 1)
            before = self._published.get(facts.job_id)
            forecast = self.forecast_job(facts, now_ms)
        else:
            if run is None or run.attempt != attempt or run.round != round_:
                return None
            before = self._published.get(facts.job_id)
            run.round += 1
            forecast = self._forecast_running(entry, run, now_ms)
            self._appoint_run(facts.job_id, run, now_ms)
        if not self.worth_saying(facts, before):
            self.unsay(facts.job_id, before)
            return None
        return Again(facts, forecast, round_)

    def _forecast_running(self, entry: Entry, run: Run, now_ms: int) -> DurationForecast:
        facts = entry.facts
        done_s = max(0.0, run.done_s(now_ms))
        gpus = self._gpus(entry, run)
        if done_s < run.p50_s and run.round == 0:
            size = SizeForecast(gpus=gpus, p50_s=run.p50_s, p90_s=run.p90_s)
        else:
            size = self.durations.survived(facts, gpus, run.run, done_s, run.p90_s, now_ms)
            run.p50_s, run.p90_s = size.p50_s, size.p90_s
        self._published[facts.job_id] = size
        return DurationForecast(
            job_id=facts.job_id,
            cluster=self.cluster,
            made_ms=now_ms,
            model=self.durations.version,
            sizes=[size],
            attempt=run.attempt,
            elapsed_s=max(0.0, (now_ms - run.start_ms) / 1000.0),
        )

    def _estimate(self, facts: Facts, belief: FirstBelief | None, now_ms: int) -> tuple[Estimate, Told | None]:
        """History and model, mixed with what the facts say where there are any."""
        estimate = self.durations.estimate(facts.subject, facts.given, facts.prior, now_ms)
        if belief is None or belief.expected is None:
            return estimate, None
        known = self.durations.history.knows(facts.subject)
        return self.expectations.mixed(estimate, belief.expected, belief.keys, known=known)

    def _forecast(self, facts: Facts, belief: FirstBelief | None, estimate: Estimate, now_ms: int) -> DurationForecast:
        sizes = self.durations.at_sizes(facts, estimate, now_ms)
        return DurationForecast(
            job_id=facts.job_id,
            cluster=self.cluster,
            made_ms=now_ms,
            model=self.durations.version,
            sizes=sizes if belief is None else belief.with_memory(sizes),
            prior=not estimate.known,
        )

    def _gpus(self, entry: Entry, run: Run) -> int:
        """The block it runs on: what the nodes reported, or the anchor when no start was seen."""
        reported = sum(run.gpus_by_node.values())
        return reported if reported > 0 else entry.facts.gpus

    def _appoint_run(self, job_id: str, run: Run, now_ms: int) -> None:
        ends_s = [end_s / run.speed for end_s in (run.p50_s, run.first_p90_s, run.p90_s)]
        ends_ms = [run.start_ms + round(end_s * 1000) + 1 for end_s in ends_s]
        ahead = [end_ms for end_ms in ends_ms if end_ms > now_ms]
        due_ms = max(min(ahead, default=now_ms), now_ms + round(APPOINTMENT_S_MIN * 1000))
        self._appoint(due_ms, job_id, run.attempt, run.round)

    def _appoint(self, due_ms: int, job_id: str, attempt: int, round_: int) -> None:
        self._appointed += 1
        heappush(self._appointments, (due_ms, self._appointed, job_id, attempt, round_))

    # Demand

    def application(self, app_id: str) -> Application | None:
        """The application's demand, made on first sight; None if there are too many."""
        found = self.applications.get(app_id)
        if found is None and len(self.applications) < APPLICATIONS_MAX:
            found = self.applications[app_id] = Application(DemandHistory(self.step_s, self.remembered))
        return found


def _anchor(forecast: DurationForecast, gpus: int) -> SizeForecast:
    """The forecast of one size; of the first one if that size is not among them."""
    return next((size for size in forecast.sizes if size.gpus == gpus), forecast.sizes[0])


def _differs(before: SizeForecast, now: SizeForecast) -> bool:
    if before.gpus != now.gpus:
        return True
    pairs = ((before.p50_s, now.p50_s), (before.p90_s, now.p90_s))
    return any(abs(new - old) > CHANGE_SHARE_MIN * old for old, new in pairs)

"""gpugrid on a day without its services: the allocator's own `decide`, called at every event in virtual time.

Plans the whole horizon at every event and commits what is due, as the allocator's loop does: same core, same policy, same
inputs in the same order. What the loop adds (a log, other processes, latency) is left out, and so is what a failing node
would add. Owns what happens to a placed job: it runs from `launch_s` after the decision until its true duration or its
limit is over (first its data is brought, where the site says so), or until it is told to make room: then it writes a checkpoint,
leaves, and later goes on from there. Raises `IllegalPlanError` if the independent check refuses a plan. Read next: `beliefs.py`,
`findings.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from schemas.base import Event
from schemas.codec import encode_payload
from schemas.commands import ChangeRules, ReserveBlock
from schemas.decisions import Covered, DecisionInput, Placed, Preempted, Scaled
from schemas.demand import DemandObserved
from schemas.executions import JobCompleted, JobStopped
from schemas.records import Now
from schemas.registry import TYPE_OF, topic_of
from services.allocator.core.config import Policy
from services.allocator.core.decide import INPUT_TOPICS, Decided, Settings, claim, decide
from services.allocator.core.due import due_domain_ms
from services.allocator.core.reader import read
from services.allocator.core.state import State
from services.replay.core.baselines import Block, Played
from services.replay.core.beliefs import Beliefs
from services.replay.core.blocks import block_of
from services.replay.core.catalog import GPU_MEMORY_MIB, node_names
from services.replay.core.day import Day, DayJob
from services.replay.core.occurrences import TICK_MS, accepted, beginnings, loads, made_room, over, started
from services.replay.core.outcome import Attempt, End, Hold
from services.replay.core.site import PLAIN, Site


class IllegalPlanError(RuntimeError):
    """The allocator's independent check refused a plan: a fault of the allocator, not of the day."""


@dataclass(frozen=True, slots=True)
class Overrun:
    """A job ran past the P90 it was placed with. `behind`: jobs that were waiting for its GPUs at that moment."""

    job_id: str
    at_ms: int
    promised_s: float
    run_s: float
    gpus: int
    behind: int


@dataclass(frozen=True, slots=True)
class LostPlace:
    """A running job was told at `ordered_ms` to make room, by the rules, and had left at `left_ms`, its work saved."""

    job_id: str
    gpus: int
    ordered_ms: int
    left_ms: int


@dataclass(slots=True)
class Rolled(Played):
    """What happened, after how many decisions. `first_promise`: per job that could not start at once, the planned start (by P50, by
    P90) that it was told first. `staged_gpu_s`: held while nodes brought data."""

    decisions: int = 0
    staged_gpu_s: float = 0.0
    overruns: list[Overrun] = field(default_factory=list)
    first_promise: dict[str, tuple[int, int]] = field(default_factory=dict)
    lost_places: list[LostPlace] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    """One attempt on its GPUs. `begun`: the fraction of the job's work that earlier attempts saved; `kept_s`: what this one did;
    `staging_s`: how long it waits for its data first."""

    job: DayJob
    attempt: int
    nodes: list[tuple[str, list[int]]]
    start_ms: int
    end_ms: int
    end: End
    p90_s: float
    begun: float
    staging_s: float = 0.0
    kept_s: float = 0.0

    @property
    def gpus(self) -> int:
        return sum(len(gpus) for _, gpus in self.nodes)


Observe = Callable[[State, Decided], None]
Order = ChangeRules | ReserveBlock


class Rolling:
    """One run. `play` once."""

    def __init__(
        self,
        day: Day,
        beliefs: Beliefs,
        policy: Policy,
        *,
        launch_s: float = 0.0,
        clock_s: Callable[[], float] | None = None,
        observe: Observe | None = None,
        orders: Sequence[Order] = (),
        site: Site = PLAIN,
    ) -> None:
        """`clock_s` times the decisions, into `replan_s`. `observe` sees the state after each. `orders`: what operators order, each at
        its own `ordered_ms`. `site`: racks, and data that jobs wait for on nodes that don't keep it."""
        self._day = day
        self._beliefs = beliefs
        self._launch_ms = round(launch_s * 1000)
        self._clock_s = clock_s
        self._observe = observe
        self._orders = orders
        self._site = site
        self._last_end: dict[str, tuple[int, int]] = {}  # job → attempt and moment of its last end
        self._saved: dict[str, float] = {}  # job → fraction of its work that is safe
        self.replan_s: list[float] = []
        memory_mib = {day.pool: GPU_MEMORY_MIB}
        self._settings = Settings(policy=policy, memory_mib=memory_mib, code_version="backtest", writer="backtest")
        self._state = State(cluster=day.cluster)
        self._offsets = dict.fromkeys(INPUT_TOPICS, 0)
        self._jobs = {job.job_id: job for job in day.jobs}
        self._runs: dict[str, _Run] = {}
        self._due: list[tuple[int, int, Event | str]] = []
        self._pushed = 0
        self._held: dict[str, tuple[int, int]] = {}  # application → (GPUs as bits, since)
        self._order = {name: place for place, name in enumerate(node_names(day))}
        self._rolled = Rolled([], [], [], {})

    def play(self) -> Rolled:
        """From the day's start to its end."""
        day = self._day
        record = claim(self._state, Now(day.start_ms, day.start_ms), self._settings)
        read(self._state, record, self._settings.policy.step_ms)
        for event in beginnings(day, self._site):
            self._at(day.start_ms, event)
        for order in self._orders:
            self._at(max(order.ordered_ms, day.start_ms), order)
        for job in day.jobs:
            self._at(job.arrival_ms, accepted(day, job, self._beliefs.spec(job)))
        for time_ms, observed in loads(day):
            self._at(time_ms, observed)
        for time_ms in range(day.start_ms, day.end_ms, TICK_MS):
            self._at(time_ms, "")
        while True:
            due_ms = due_domain_ms(self._state, self._settings.policy)
            now_ms = max(self._state.now_ms, min(self._due[0][0] if self._due else day.end_ms, due_ms))
            if now_ms >= day.end_ms:
                break
            self._moment(now_ms, now_ms >= due_ms)
        return self._finished()

    # One moment

    def _moment(self, now_ms: int, due: bool) -> None:
        events: list[Event] = []
        ticks = False
        while self._due and self._due[0][0] <= now_ms:
            entry = heapq.heappop(self._due)[2]
            if not isinstance(entry, str):
                events += self._happened(entry, now_ms)
            elif entry:
                self._past_p90(entry, now_ms)
            else:
                ticks = True
        if ticks:
            events += self._beliefs.tick(now_ms)
        if events or due:
            self._decide(events, now_ms)

    def _happened(self, event: Event, now_ms: int) -> list[Event]:
        """The event as far as the allocator listens to it, and the forecasts it brings."""
        if isinstance(event, Order):
            return [event]
        if isinstance(event, JobCompleted | JobStopped) and not self._ended(event):
            return []  # it had been told to make room before
        said = self._beliefs.tell(event, now_ms)
        return [*([] if isinstance(event, DemandObserved) else [event]), *said]

    def _decide(self, events: list[Event], now_ms: int) -> None:
        inputs = [self._input(event) for event in sorted(events, key=lambda one: INPUT_TOPICS.index(topic_of(one)))]
        covered = [Covered(topic=topic, partition=0, next_offset=offset) for topic, offset in self._offsets.items()]
        begun_s = self._clock_s() if self._clock_s is not None else 0.0
        decided = decide(self._state, inputs, covered, Now(now_ms, now_ms), self._settings)
        if self._clock_s is not None:
            self.replan_s.append(self._clock_s() - begun_s)
        if decided.violations:
            raise IllegalPlanError(f"{self._day.name}, decision {decided.record.sequence}: {decided.violations[0]}")
        self._rolled.decisions += 1
        for effect in decided.record.effects:
            if isinstance(effect, Placed):
                self._placed(effect, now_ms)
            elif isinstance(effect, Scaled):
                self._scaled(effect, now_ms)
            elif isinstance(effect, Preempted):
                for victim in effect.victims:
                    self._make_room(self._runs[victim], now_ms)
        for job_id in decided.changes.jobs:
            job = self._state.jobs.get(job_id)
            if job is not None and job.planned_start_p50_ms is not None and job_id not in self._rolled.first_promise:
                late_ms = job.planned_start_p90_ms or job.planned_start_p50_ms
                self._rolled.first_promise[job_id] = (job.planned_start_p50_ms, late_ms)
        if self._observe is not None:
            self._observe(self._state, decided)

    def _placed(self, effect: Placed, now_ms: int) -> None:
        day, job = self._day, self._jobs[effect.job_id]
        start_ms = now_ms + self._launch_ms
        begun = self._saved.get(job.job_id, 0.0)
        staging_s = self._site.staging_s(job.job_id, [part.node for part in effect.placed])
        run_s, limit_s = staging_s + job.run_s[effect.gpus] * (1.0 - begun), job.spec.time_limit_s
        end_ms = start_ms + round(min(run_s, limit_s) * 1000)
        end = End.TIMED_OUT if limit_s < run_s else End.COMPLETED
        nodes = [(part.node, list(part.gpus)) for part in effect.placed]
        run = _Run(job, effect.attempt, nodes, start_ms, end_ms, end, effect.p90_s, begun, staging_s)
        self._rolled.staged_gpu_s += effect.gpus * min(staging_s, limit_s)
        self._runs[job.job_id] = run
        for node, gpus in nodes:
            self._at(start_ms, started(day, job.job_id, run.attempt, node, gpus, start_ms))
            self._at(end_ms, over(day, job.job_id, run.attempt, node, start_ms, end_ms, end))
        past_ms = start_ms + round(effect.p90_s * 1000)
        if past_ms < end_ms:
            self._at(past_ms, job.job_id)

    def _scaled(self, effect: Scaled, now_ms: int) -> None:
        self._release(effect.app_id, now_ms)
        bits = self._bits([(part.node, list(part.gpus)) for part in effect.placed])
        self._held[effect.app_id] = (bits, now_ms)
        self._rolled.holds.append(Hold(effect.app_id, now_ms, bits.bit_count()))

    def _release(self, app_id: str, now_ms: int) -> None:
        bits, since_ms = self._held.pop(app_id, (0, now_ms))
        if bits and since_ms < now_ms:
            self._rolled.blocks.append(Block(bits, since_ms, now_ms))

    def _make_room(self, run: _Run, now_ms: int) -> None:
        """Save, and leave; where nobody said what a checkpoint costs, it takes as long as it may. Who ends before that just ends."""
        save_s = run.job.spec.checkpoint.cost_s or run.job.spec.checkpoint.wait_s
        left_ms = now_ms + round(save_s * 1000)
        if left_ms >= run.end_ms:
            return
        run.kept_s = max((now_ms - run.start_ms) / 1000 - run.staging_s, 0.0)
        run.end_ms, run.end = left_ms, End.SAVED
        fraction = min(run.begun + run.kept_s / run.job.run_s[run.gpus], 1.0)
        self._saved[run.job.job_id] = fraction
        self._rolled.lost_places.append(LostPlace(run.job.job_id, run.gpus, now_ms, left_ms))
        for node, _ in run.nodes:
            ran_s = (left_ms - run.start_ms) / 1000
            self._at(left_ms, made_room(self._day, run.job.job_id, run.attempt, node, left_ms, ran_s, fraction))

    def _ended(self, event: JobCompleted | JobStopped) -> bool:
        """Whether the event is true: an end that was to come later than the job was told to leave never happened.

        An attempt is noted once, whichever of its nodes reports first: all of them do at the same moment."""
        run = self._runs.get(event.job_id)
        if run is None:
            return self._last_end.get(event.job_id) == (event.attempt, event.time_ms)
        if run.attempt != event.attempt or run.end_ms != event.time_ms:
            return False
        del self._runs[event.job_id]
        self._last_end[event.job_id] = (event.attempt, event.time_ms)
        self._note(run, run.end_ms, run.end)
        return True

    def _note(self, run: _Run, end_ms: int | None, end: End) -> None:
        self._rolled.attempts.append(Attempt(run.job.job_id, run.start_ms, end_ms, run.gpus, end, run.kept_s))
        until_ms = self._day.end_ms if end_ms is None else end_ms
        self._rolled.blocks.append(Block(self._bits(run.nodes), run.start_ms - self._launch_ms, until_ms))

    def _past_p90(self, job_id: str, now_ms: int) -> None:
        run = self._runs.get(job_id)
        if run is not None and run.start_ms + round(run.p90_s * 1000) <= now_ms:
            behind = sum(job_id in job.holders for job in self._state.jobs.values() if not job.parts)
            run_s = (run.end_ms - run.start_ms) / 1000
            self._rolled.overruns.append(Overrun(job_id, now_ms, run.p90_s, run_s, run.gpus, behind))

    def _finished(self) -> Rolled:
        for run in list(self._runs.values()):
            run.kept_s = 0.0
            self._note(run, None, End.RUNNING)
        for app_id in list(self._held):
            self._release(app_id, self._day.end_ms)
        return self._rolled

    def _at(self, time_ms: int, what: Event | str) -> None:
        """`what`: an event, the id of a job whose P90 passes, or nothing but time."""
        self._pushed += 1
        heapq.heappush(self._due, (time_ms, self._pushed, what))

    def _input(self, event: Event) -> DecisionInput:
        topic = topic_of(event)
        offset = self._offsets[topic]
        self._offsets[topic] = offset + 1
        return DecisionInput(
            topic=topic,
            partition=0,
            offset=offset,
            type=TYPE_OF[type(event)],
            id=f"{topic}-{offset}",
            payload=msgspec.Raw(encode_payload(event)),
            traceparent="",
        )

    def _bits(self, nodes: list[tuple[str, list[int]]]) -> int:
        bits = 0
        for node, gpus in nodes:
            for gpu in gpus:
                bits |= block_of(self._order[node] * self._day.node_gpus + gpu, 1)
        return bits

"""What happened, read from the topics: attempts and holds for the outcome, wall-clock marks for latency, the present for the view.

Owns folding `job-events`, `forecasts`, `decisions`, `placements`, `executions`, `job-status` and `dead-letters`; a record folded twice
changes nothing. Decisions count only if the log accepts them. Refuses to plan or to judge: `outcome.py` and `latency.py`
do. Read next: `shell/collect.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from schemas.codec import DecodeError, Envelope, decode_record
from schemas.decisions import DecisionMade, Placed, RecordKind, Scaled, Waits
from schemas.executions import JobCheckpointed, JobCompleted, JobFailed, JobStarted, JobStopped, StopCause
from schemas.forecasts import DemandForecast
from schemas.jobs import JobSubmitted
from schemas.placements import NodePlaced
from schemas.records import Record
from schemas.status import JobStatusChanged, NodeGpus
from services.allocator.core.accept import is_next
from services.allocator.core.state import State
from services.replay.core.day import Day
from services.replay.core.outcome import Attempt, End, Hold

TOPICS = ("job-events", "forecasts", "decisions", "placements", "executions", "job-status", "dead-letters")
AWAITING_FORECAST = "awaiting_forecast"
"""The public reason of a job whose forecast is waited for, some milliseconds."""

JobAttempt = tuple[str, int]


@dataclass(slots=True)
class Part:
    """One node's part of an attempt, as its executor reported it."""

    gpus: int
    start_ms: int
    end_ms: int | None = None
    end: End = End.RUNNING


@dataclass(slots=True)
class Marks:
    """Wall-clock moments of one job's first attempt. `decided`: the first decision that names it.

    `at_once`: the first decision with a verdict (other than waiting for the forecast) placed it; None before there is one.
    """

    submitted_ms: int | None = None
    decided_ms: int | None = None
    at_once: bool | None = None
    decided_placed_ms: int | None = None
    placement_ms: int | None = None
    running_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """GPUs that a job or an application holds since `since_ms` by decision; `until_p50_ms` is what the plan expects, `until_ms` when it
    was over."""

    owner: str
    nodes: tuple[NodeGpus, ...]
    since_ms: int
    until_p50_ms: int | None
    attempt: int = 1
    until_ms: int | None = None


@dataclass(slots=True)
class Observation:
    """Everything seen so far of one day. `decisions`: accepted ones; `rejected`: records the log's rule refuses;
    `verified`, `violations`: what an audit of the whole log found, once it was made; `unjudged`: decisions of other code, by version.
    `forecast_apps`: applications with a demand forecast, and when the newest was made."""

    day: Day
    parts: dict[JobAttempt, dict[str, Part]] = field(default_factory=dict)
    saved: dict[JobAttempt, float] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    forecast_apps: dict[str, int] = field(default_factory=dict)
    marks: dict[str, Marks] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    past: list[Block] = field(default_factory=list)
    waits: dict[str, Waits] = field(default_factory=dict)
    statuses: dict[str, JobStatusChanged] = field(default_factory=dict)
    decisions: int = 0
    verified: int = 0
    unjudged: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    rejected: int = 0
    dead_letters: int = 0
    unreadable: int = 0
    log: State = field(init=False)
    _job_ids: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.log = State(cluster=self.day.cluster)
        self._job_ids = frozenset(job.job_id for job in self.day.jobs)

    def fold(self, record: Record) -> None:
        """Take in one record of TOPICS, in offset order per partition."""
        if record.topic == "dead-letters":
            self.dead_letters += 1
            return
        try:
            envelope = decode_record(record)
        except DecodeError:
            self.unreadable += 1
            return
        match envelope.event:
            case JobSubmitted(job_id=job_id) if job_id in self._job_ids:
                marks = self._mark(job_id)
                marks.submitted_ms = _earlier(marks.submitted_ms, record.timestamp_ms)
            case DecisionMade() as decision:
                self._decided(decision, record)
            case NodePlaced() as placed:
                self._placed(placed, record)
            case DemandForecast() as forecast:
                self.forecast_apps[forecast.app_id] = forecast.made_ms
            case JobStatusChanged() as status:
                known = self.statuses.get(status.job_id)
                if known is None or status.sequence >= known.sequence:
                    self.statuses[status.job_id] = status
            case _:
                self._executed(envelope)

    def attempts(self) -> list[Attempt]:
        """Attempts of the day's jobs by start. One over several nodes starts with its last part and ends with its last."""
        found = []
        fraction: dict[str, float] = {}
        for job_attempt in sorted(self.parts):
            job_id, _ = job_attempt
            parts = list(self.parts[job_attempt].values())
            end, end_ms = _whole_end(parts)
            gpus = sum(part.gpus for part in parts)
            before, after = fraction.get(job_id, 0.0), self.saved.get(job_attempt, 0.0)
            fraction[job_id] = max(before, after)
            kept_s = max(after - before, 0.0) * self._run_s(job_id, gpus)
            if end is End.LOST and kept_s > 0:
                end = End.SAVED
            start_ms = max(part.start_ms for part in parts)
            found.append(Attempt(job_id, start_ms, end_ms, gpus, end, kept_s))
        return sorted(found, key=lambda attempt: (attempt.start_ms, attempt.job_id))

    def running(self) -> int:
        """Attempts that run now."""
        return sum(any(part.end_ms is None for part in parts.values()) for parts in self.parts.values())

    def _run_s(self, job_id: str, gpus: int) -> float:
        return next((job.run_s.get(gpus, 0.0) for job in self.day.jobs if job.job_id == job_id), 0.0)

    def _mark(self, job_id: str) -> Marks:
        return self.marks.setdefault(job_id, Marks())

    def _decided(self, decision: DecisionMade, record: Record) -> None:
        if decision.cluster != self.day.cluster:
            return
        if not is_next(self.log, decision):
            self.rejected += decision.sequence > self.log.sequence
            return
        self.log.sequence, self.log.last_id, self.log.epoch = decision.sequence, decision.id, decision.epoch
        self.log.now_ms = decision.now_ms
        self.decisions += decision.kind is RecordKind.DECISION
        for effect in decision.effects:
            match effect:
                case Placed():
                    self._named(effect.job_id, record, placed=effect.attempt == 1)
                    self.waits.pop(effect.job_id, None)
                    until_ms = decision.now_ms + round(effect.p50_s * 1000)
                    self._hold(Block(effect.job_id, tuple(effect.placed), decision.now_ms, until_ms, effect.attempt))
                    self._close_if_over(effect.job_id)
                case Waits():
                    self._named(effect.job_id, record, placed=False, verdict=effect.reason != AWAITING_FORECAST)
                    self.waits[effect.job_id] = effect
                case Scaled():
                    gpus = sum(len(part.gpus) for part in effect.placed)
                    self.holds.append(Hold(effect.app_id, decision.now_ms, gpus))
                    self._hold(Block(effect.app_id, tuple(effect.placed), decision.now_ms, None))

    def _hold(self, block: Block) -> None:
        self._release(block.owner, block.since_ms)
        self.blocks[block.owner] = block

    def _release(self, owner: str, at_ms: int) -> None:
        block = self.blocks.pop(owner, None)
        if block is not None:
            self.past.append(replace(block, until_ms=max(at_ms, block.since_ms)))

    def _close_if_over(self, job_id: str) -> None:
        """Topics are read side by side: the last report may be seen before the decision that opened the block."""
        block = self.blocks.get(job_id)
        parts = self.parts.get((job_id, block.attempt), {}) if block is not None else {}
        if block is None or len(parts) < len(block.nodes):
            return
        ends = [part.end_ms for part in parts.values() if part.end_ms is not None]
        if len(ends) == len(parts):
            self._release(job_id, max(ends))

    def _named(self, job_id: str, record: Record, *, placed: bool, verdict: bool = True) -> None:
        if job_id not in self._job_ids:
            return
        marks = self._mark(job_id)
        if marks.decided_ms is None:
            marks.decided_ms = record.timestamp_ms
        if marks.at_once is None and verdict:
            marks.at_once = placed
        if placed and marks.decided_placed_ms is None:
            marks.decided_placed_ms = record.timestamp_ms

    def _placed(self, placed: NodePlaced, record: Record) -> None:
        for assignment in placed.assignments:
            if assignment.job_id in self._job_ids and assignment.attempt == 1:
                marks = self._mark(assignment.job_id)
                marks.placement_ms = _earlier(marks.placement_ms, record.timestamp_ms)

    def _executed(self, envelope: Envelope) -> None:
        event = envelope.event
        if not isinstance(event, JobStarted | JobCheckpointed | JobStopped | JobCompleted | JobFailed):
            return
        if event.job_id not in self._job_ids:
            return
        job_attempt = (event.job_id, event.attempt)
        if isinstance(event, JobStarted):
            self.parts.setdefault(job_attempt, {}).setdefault(event.node, Part(len(event.gpus), event.time_ms))
            if event.attempt == 1:
                marks = self._mark(event.job_id)
                marks.running_ms = max(marks.running_ms or 0, event.wall_ms)
            return
        if isinstance(event, JobCheckpointed) or (isinstance(event, JobStopped) and event.checkpointed):
            self.saved[job_attempt] = max(self.saved.get(job_attempt, 0.0), event.fraction)
        if isinstance(event, JobCheckpointed):
            return
        part = self.parts.get(job_attempt, {}).get(event.node)
        if part is not None and part.end_ms is None:
            part.end_ms, part.end = event.time_ms, _end_of(event)
        self._close_if_over(event.job_id)


def _end_of(event: JobStopped | JobCompleted | JobFailed) -> End:
    if isinstance(event, JobCompleted):
        return End.COMPLETED
    if isinstance(event, JobStopped) and event.cause is StopCause.TIME_LIMIT:
        return End.TIMED_OUT
    return End.LOST


def _whole_end(parts: list[Part]) -> tuple[End, int | None]:
    """The end of an attempt from its parts: completed only if all are; otherwise the worst of them."""
    if any(part.end_ms is None for part in parts):
        return End.RUNNING, None
    ends = {part.end for part in parts}
    end_ms = max(part.end_ms or 0 for part in parts)
    if ends == {End.COMPLETED}:
        return End.COMPLETED, end_ms
    return (End.TIMED_OUT if End.TIMED_OUT in ends else End.LOST), end_ms


def _earlier(known: int | None, new: int) -> int:
    return new if known is None else min(known, new)

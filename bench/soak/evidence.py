"""What the topics of a run say, read once from beginning to end without the services' own folds.

Owns: joining records by job, attempt and node, and everything that a single record or a pair of them can show to be wrong. The
rule of the decision log (next number, right parent, per cluster) is written down here again, on purpose. Memory: a few hundred
bytes per job. Read next: `judge.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bench.soak.script import REFUSED_GPUS, number_of
from schemas.base import Event
from schemas.codec import DecodeError, decode_record
from schemas.deadletters import DeadLetter
from schemas.decisions import DecisionMade, Placed
from schemas.executions import JobCompleted, JobFailed, JobStarted, JobStopped
from schemas.jobs import JobAccepted, JobAmended, JobCancelled, JobChanged, JobRevoked, JobSubmitted
from schemas.records import Record
from schemas.status import FINAL_STATES, JobState, JobStatusChanged

TOPICS = ("job-events", "jobs", "decisions", "executions", "job-status", "dead-letters")
SHOWN_MAX = 5
"""Examples kept per kind of violation; the rest is counted."""
Part = tuple[int, int, str]
"""(job number, attempt, node)."""
Origin = tuple[str, int, int]
"""(topic, partition, offset)."""
Ending = JobCompleted | JobFailed | JobStopped


class Violations:
    """Sentences, some per kind, and how many there are."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[str]] = {}
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, what: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= SHOWN_MAX:
            self._kinds.setdefault(kind, []).append(what)

    def sentences(self) -> list[str]:
        return [f"{kind} ({self._counts[kind]}): {'; '.join(found)}" for kind, found in self._kinds.items()]


@dataclass(frozen=True, slots=True)
class Start:
    """A part's process began, holding these GPUs of its node."""

    time_ms: int
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class End:
    """How and when a part ended; `cause` of a stop or failure."""

    how: str
    cause: str
    time_ms: int


@dataclass
class Log:
    """The last record of one cluster's log that counts."""

    sequence: int = 0
    id: str = ""
    epoch: int = 0


@dataclass
class Evidence:
    """Everything seen. Jobs go by their number in the script. `refusable`: submissions that must have a letter in `letters`."""

    events: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    digests: dict[int, str] = field(default_factory=dict)
    amended: set[int] = field(default_factory=set)
    revoked: set[int] = field(default_factory=set)
    placed: dict[int, list[int]] = field(default_factory=dict)
    starts: dict[Part, Start] = field(default_factory=dict)
    ends: dict[Part, End] = field(default_factory=dict)
    finals: dict[int, tuple[int, JobState]] = field(default_factory=dict)
    newest: dict[int, tuple[int, JobState]] = field(default_factory=dict)
    letters: dict[Origin, str] = field(default_factory=dict)
    refusable: set[Origin] = field(default_factory=set)
    logs: dict[str, Log] = field(default_factory=dict)
    writers: dict[str, Counter[str]] = field(default_factory=dict)
    covered: dict[tuple[str, int], int] = field(default_factory=dict)
    violations: Violations = field(default_factory=Violations)

    def fold(self, record: Record) -> None:
        """One record of TOPICS; per partition in order."""
        if record.value is None:
            return
        try:
            event = decode_record(record).event
        except DecodeError as error:
            self.violations.add("unreadable records", f"{record.topic} {record.partition}/{record.offset}: {error}")
            return
        self.counts[f"{record.topic}: {type(event).__name__}"] += 1
        match event:
            case JobSubmitted() | JobChanged() | JobCancelled():
                if isinstance(event, JobSubmitted) and REFUSED_GPUS in event.spec.sizes:
                    self.refusable.add((record.topic, record.partition, record.offset))
                self.events.add(record.header("ce_id") or "")
            case DecisionMade():
                self._decision(event)
            case DeadLetter():
                self.letters[event.topic, event.partition, event.offset] = event.reason
            case _:
                self._of_job(event)

    def _of_job(self, event: Event) -> None:
        number = number_of(getattr(event, "job_id", ""))
        if number is None:
            return
        match event:
            case JobAccepted():
                if self.digests.setdefault(number, event.digest) != event.digest:
                    self.violations.add("accepted with two contents", event.job_id)
            case JobAmended():
                self.amended.add(number)
            case JobRevoked():
                self.revoked.add(number)
            case JobStarted():
                self._started(number, event)
            case JobCompleted() | JobFailed() | JobStopped():
                self._ended(number, event)
            case JobStatusChanged():
                self._status(number, event)

    def _decision(self, event: DecisionMade) -> None:
        log = self.logs.setdefault(event.cluster, Log())
        if event.sequence != log.sequence + 1 or event.parent != log.id or event.epoch < log.epoch:
            self.counts["decisions that don't count"] += 1
            return
        log.sequence, log.id, log.epoch = event.sequence, event.id, event.epoch
        self.writers.setdefault(event.cluster, Counter())[event.writer] += 1
        for item in event.inputs:
            key = (item.topic, item.partition)
            if item.offset <= self.covered.get(key, -1):
                self.violations.add("inputs decided twice", f"{item.topic} {item.partition}/{item.offset}")
            self.covered[key] = max(item.offset, self.covered.get(key, -1))
        for effect in event.effects:
            number = number_of(effect.job_id) if isinstance(effect, Placed) else None
            if number is not None and isinstance(effect, Placed):
                self.placed.setdefault(number, []).append(effect.attempt)

    def _started(self, number: int, event: JobStarted) -> None:
        found = Start(event.time_ms, tuple(event.gpus))
        if self.starts.setdefault((number, event.attempt, event.node), found) != found:
            self.violations.add(
                "attempts that started twice", f"{event.job_id} attempt {event.attempt} on {event.node}"
            )

    def _ended(self, number: int, event: Ending) -> None:
        cause = "" if isinstance(event, JobCompleted) else event.cause.value
        found = End(type(event).__name__, cause, event.time_ms)
        if self.ends.setdefault((number, event.attempt, event.node), found) != found:
            self.violations.add("attempts that ended twice", f"{event.job_id} attempt {event.attempt} on {event.node}")

    def _status(self, number: int, event: JobStatusChanged) -> None:
        found = (event.sequence, event.state)
        if event.sequence >= self.newest.get(number, (-1, event.state))[0]:
            self.newest[number] = found
        if event.state not in FINAL_STATES:
            return
        known = self.finals.setdefault(number, found)
        if known[1] is not event.state:
            states = f"{known[1].value} and {event.state.value}"
            self.violations.add("jobs with two final states", f"{event.job_id} is {states}")

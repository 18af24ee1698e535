"""Which jobs are known, which of them run, and what their ends are worth as observations.

Owns: the reading of `executions`. A job that completed, or failed by its own exit code or signal, is an *observation* (it
held its GPUs that long); one stopped from outside is a *lower bound*; one that never really ran teaches nothing. Gangs report
once per node: the first start and the first end of an attempt count, GPUs add up. Late, repeated and contradicting reports
are counted and ignored. Refuses: forecasting. Read next: `handler.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from schemas.executions import FailureCause, JobCompleted, JobFailed, JobStarted, JobStopped
from services.forecaster.core.duration import Facts
from services.forecaster.core.expectations import Told
from services.forecaster.core.features import Row
from services.forecaster.core.first_belief import FirstBelief

JOBS_REMEMBERED_MAX = 50_000
"""Accepted jobs whose facts are kept, 1.5 KB each; the oldest goes first and is no longer learnt from."""
EARLY_JOBS_MAX = 4_096
EARLY_EVENTS_MAX = 16
"""Executions can overtake their job (other topic): kept until it comes, this many jobs and reports per job."""
CLOCKS_AGREE_MS = 5_000
"""A run that began this long before its job was submitted was stamped by a wrong clock: nothing it says of time is believed."""
NEVER_RAN = (FailureCause.SPAWN, FailureCause.WORKING_DIRECTORY, FailureCause.PREFLIGHT, FailureCause.DISK_FULL)

Execution = JobStarted | JobStopped | JobCompleted | JobFailed


class Worth(Enum):
    """What the end of a run teaches."""

    OBSERVED = "observed"
    LOWER_BOUND = "lower_bound"
    NOTHING = "nothing"


@dataclass(slots=True)
class Run:
    """An attempt that goes on. `run`: its number in the history, -1 if none; `round`: forecasts made while it ran.

    All durations are in the time of the pool that the job prefers; `speed`: of the pool it got, beside that one.

    `first_p50_s`, `first_p90_s`: what was said when it started, 0 if nothing was, from the features `row`, and `told` by whom
    where facts had a say.
    """

    attempt: int
    start_ms: int
    gpus_by_node: dict[str, int]
    run: int = -1
    p50_s: float = 0.0
    p90_s: float = 0.0
    first_p50_s: float = 0.0
    first_p90_s: float = 0.0
    row: Row | None = None
    told: Told | None = None
    round: int = 0
    speed: float = 1.0

    @property
    def gpus(self) -> int:
        return max(1, sum(self.gpus_by_node.values()))

    def done_s(self, now_ms: int) -> float:
        """How long it would have run so far in the pool that it prefers."""
        return (now_ms - self.start_ms) / 1000.0 * self.speed


@dataclass(slots=True)
class Entry:
    """A known job. `submitted_ms`: as its submitter stamped it. `belief`: from what it tells of its model; `ended_attempt`: newest attempt
    that is over."""

    facts: Facts
    submitted_ms: int
    belief: FirstBelief | None = None
    run: Run | None = None
    ended_attempt: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over, with its duration (in the pool the job prefers) and what it is worth."""

    run: Run
    end_ms: int
    duration_s: float
    worth: Worth


@dataclass(slots=True)
class Ledger:
    """Jobs by id in order of acceptance, and executions that came too early."""

    jobs: dict[str, Entry] = field(default_factory=dict)
    early: dict[str, list[Execution]] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    """Reports not used, by reason."""

    def accept(
        self, facts: Facts, submitted_ms: int, belief: FirstBelief | None = None
    ) -> tuple[list[Execution], Entry | None]:
        """Remember a job. Returns executions that were waiting for it, and the entry that made room."""
        if facts.job_id in self.jobs:
            return [], None
        self.jobs[facts.job_id] = Entry(facts, submitted_ms, belief)
        dropped = None
        if len(self.jobs) > JOBS_REMEMBERED_MAX:
            dropped = self.jobs.pop(next(iter(self.jobs)))
        return self.early.pop(facts.job_id, []), dropped

    def keep_early(self, event: Execution) -> None:
        """An execution of a job not known yet."""
        waiting = self.early.setdefault(event.job_id, [])
        if len(waiting) < EARLY_EVENTS_MAX:
            waiting.append(event)
        if len(self.early) > EARLY_JOBS_MAX:
            self.early.pop(next(iter(self.early)))
            self.ignored["job_unknown"] += 1

    def started(self, entry: Entry, event: JobStarted) -> tuple[Run | None, Run | None]:
        """(the run as it is now, the run it replaces). (None, None) if the report changes nothing."""
        before = entry.run
        if event.attempt <= entry.ended_attempt or (before is not None and event.attempt < before.attempt):
            self.ignored["attempt_over"] += 1
            return None, None
        if before is not None and event.attempt == before.attempt:
            if event.node in before.gpus_by_node:
                self.ignored["repeated"] += 1
                return None, None
            merged = Run(before.attempt, min(before.start_ms, event.time_ms), dict(before.gpus_by_node))
            merged.gpus_by_node[event.node] = len(event.gpus)
            merged.round, merged.speed = before.round, before.speed
            entry.run = merged
            return merged, before
        if before is not None:
            entry.ended_attempt = before.attempt
        entry.run = Run(event.attempt, event.time_ms, {event.node: len(event.gpus)}, speed=event.speed)
        return entry.run, before

    def ended(self, entry: Entry, event: JobStopped | JobCompleted | JobFailed) -> Ended | None:
        """What an end report teaches, or None if it says nothing new."""
        run = entry.run
        if event.attempt <= entry.ended_attempt or (run is not None and event.attempt < run.attempt):
            self.ignored["attempt_over"] += 1
            return None
        if run is None or run.attempt != event.attempt:
            # Its start never came: the end alone tells how long it ran.
            run = Run(event.attempt, event.time_ms - round(event.run_s * 1000), {event.node: 0})
        entry.run = None
        entry.ended_attempt = event.attempt
        duration_s = event.run_s if event.run_s > 0 else (event.time_ms - run.start_ms) / 1000.0
        worth = self._worth(event, duration_s)
        if worth is not Worth.NOTHING and run.start_ms < entry.submitted_ms - CLOCKS_AGREE_MS:
            self.ignored["started_before_submission"] += 1
            worth = Worth.NOTHING
        return Ended(run, event.time_ms, duration_s * run.speed, worth)

    def _worth(self, event: JobStopped | JobCompleted | JobFailed, duration_s: float) -> Worth:
        if duration_s <= 0:
            self.ignored["not_positive"] += 1
            return Worth.NOTHING
        if isinstance(event, JobStopped):
            return Worth.LOWER_BOUND
        if isinstance(event, JobFailed) and event.cause in NEVER_RAN:
            self.ignored["never_ran"] += 1
            return Worth.NOTHING
        if isinstance(event, JobFailed) and event.cause is FailureCause.UNKNOWN:
            return Worth.LOWER_BOUND
        return Worth.OBSERVED

"""What is published: numbered jobs in a seeded order, each of a kind whose end does not depend on timing.

Owns the kinds with their shares, the final state, the attempts and, where it is certain, the GPU time of each job. Changes and
cancellations follow FOLLOW_MIN events later or more, repetitions too, so that whoever publishes in chunks of at most that many
has the submission acknowledged before. Same seed and count, same script. Read next: `publish.py`.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from schemas.jobs import JobCancelled, JobChanged, JobSpec, JobSubmitted, Kind, RestartMode, RestartPolicy
from schemas.messages import message
from schemas.records import Message
from schemas.status import JobState
from services.replay.core.day import RUN_LABEL
from services.replay.core.schedule import traceparent

SOURCE = "/upstream/soak"
FAIL_LABEL = "simulated/fails_at"
FAILS_AT = 0.5
FOLLOW_MIN, FOLLOW_MAX = 200, 600
"""Events between a submission and what follows it."""
CLOSING = 100
"""Events at the end that only wind up: what is due by then finds room among them."""
EVENTS_MIN = 2 * FOLLOW_MAX
"""Fewer would have nothing that follows."""
FOR_EVER_S = 1e6
"""A run that only a cancellation or its limit ends."""
LIMIT_S = 3_600.0
SHORT_LIMIT_S = 0.5
RUN_S = (0.05, 0.5)
RETRIES = 2
GANG_GPUS = 16
"""Two nodes of eight."""
REFUSED_GPUS = 3
"""No block of three GPUs can be formed: intake refuses it for good."""
POOL, IDLE_POOL = "h100", "unbuilt"
"""`unbuilt` is in the catalog and no node of it ever appears: what may run only there waits until it is cancelled."""


class Fate(Enum):
    """What a job is made for."""

    COMPLETES = "completes"
    GANG = "completes as a gang"
    FAILS = "fails"
    FAILS_TWICE = "fails at every try"
    TIMES_OUT = "runs into its limit"
    CANCELLED_ANYWHERE = "cancelled wherever it is"
    CANCELLED_WAITING = "cancelled while it waits"
    REFUSED = "refused"


CANCELLED = frozenset({Fate.CANCELLED_ANYWHERE, Fate.CANCELLED_WAITING})
SHARES: Mapping[Fate, float] = {
    Fate.COMPLETES: 0.72,
    Fate.GANG: 0.005,
    Fate.FAILS: 0.08,
    Fate.FAILS_TWICE: 0.03,
    Fate.TIMES_OUT: 0.03,
    Fate.CANCELLED_ANYWHERE: 0.035,
    Fate.CANCELLED_WAITING: 0.05,
    Fate.REFUSED: 0.05,
}
CHANGED_SHARE = 0.12
REPEATED_SHARE = 0.05
"""Of all events: published again, byte for byte."""
SINGLE_SIZES = (1, 1, 1, 2, 2, 4)

FINAL: Mapping[Fate, JobState] = {
    Fate.COMPLETES: JobState.COMPLETED,
    Fate.GANG: JobState.COMPLETED,
    Fate.FAILS: JobState.FAILED,
    Fate.FAILS_TWICE: JobState.FAILED,
    Fate.TIMES_OUT: JobState.TIMED_OUT,
    Fate.CANCELLED_ANYWHERE: JobState.CANCELLED,
    Fate.CANCELLED_WAITING: JobState.CANCELLED,
    Fate.REFUSED: JobState.REFUSED,
}
ATTEMPTS: Mapping[Fate, tuple[int, int]] = {
    Fate.COMPLETES: (1, 1),
    Fate.GANG: (1, 1),
    Fate.FAILS: (1, 1),
    Fate.FAILS_TWICE: (RETRIES, RETRIES),
    Fate.TIMES_OUT: (1, 1),
    Fate.CANCELLED_ANYWHERE: (0, 1),
    Fate.CANCELLED_WAITING: (0, 0),
    Fate.REFUSED: (0, 0),
}
"""How many times each may start: at least, at most."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One job of the script."""

    number: int
    fate: Fate
    cluster: str
    gpus: int
    run_s: float

    @property
    def job_id(self) -> str:
        return job_id_of(self.number)

    @property
    def final(self) -> JobState:
        return FINAL[self.fate]

    @property
    def gpu_ms(self) -> int | None:
        """GPU-milliseconds it must have held; None where that depends on when it was stopped."""
        match self.fate:
            case Fate.COMPLETES | Fate.GANG:
                return self.gpus * round(self.run_s * 1000)
            case Fate.FAILS | Fate.FAILS_TWICE:
                return ATTEMPTS[self.fate][1] * self.gpus * round(self.run_s * FAILS_AT * 1000)
            case Fate.TIMES_OUT | Fate.CANCELLED_ANYWHERE:
                return None
            case _:
                return 0


class Verb(Enum):
    """What one event does."""

    SUBMIT = "submit"
    CHANGE = "change"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Step:
    """One event. `repeats`: the same as an earlier one, which its `id` names."""

    verb: Verb
    number: int
    repeats: bool = False

    @property
    def id(self) -> str:
        return f"{job_id_of(self.number)}/{self.verb.value}"


@dataclass(slots=True)
class Script:
    """`count` events, and the jobs they are about. `jobs`, `changed` and `ids` (different events) grow while the steps are drawn."""

    seed: int
    count: int
    clusters: Sequence[str]
    jobs: list[Planned] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)
    ids: int = 0

    def steps(self) -> Iterator[Step]:
        """Every event in order. To be drawn once."""
        dice = Random(self.seed)
        later: list[tuple[int, int, Step]] = []
        drawn = 0
        for place in range(self.count):
            # Near the end nothing is drawn that would need something to follow it.
            open_end = place + FOLLOW_MAX < self.count - CLOSING
            if later and (later[0][0] <= place or len(later) >= self.count - place):
                step = heapq.heappop(later)[2]
                followers: list[Step] = []
            else:
                job = _drawn(dice, len(self.jobs), self.clusters, open_end)
                self.jobs.append(job)
                step, followers = Step(Verb.SUBMIT, job.number), _followers(dice, job)
            if not step.repeats and dice.random() < REPEATED_SHARE:
                followers.append(Step(step.verb, step.number, repeats=True))
            for follower in followers if open_end else ():
                drawn += 1
                heapq.heappush(later, (place + dice.randint(FOLLOW_MIN, FOLLOW_MAX), drawn, follower))
            self.ids += not step.repeats
            if step.verb is Verb.CHANGE:
                self.changed.add(step.number)
            yield step


def _drawn(dice: Random, number: int, clusters: Sequence[str], open_end: bool) -> Planned:
    fate = dice.choices(tuple(SHARES), tuple(SHARES.values()))[0]
    if not open_end and fate in CANCELLED:
        fate = Fate.COMPLETES
    run_s = round(dice.uniform(*RUN_S), 3)
    gpus = dice.choice(SINGLE_SIZES)
    cluster = clusters[number % len(clusters)]
    if fate is Fate.GANG:
        gpus = GANG_GPUS
    elif fate is Fate.TIMES_OUT or fate in CANCELLED:
        run_s, gpus = FOR_EVER_S, 1
    elif fate is Fate.REFUSED:
        gpus = REFUSED_GPUS
    return Planned(number, fate, cluster, gpus, run_s)


def _followers(dice: Random, job: Planned) -> list[Step]:
    if job.fate in CANCELLED:
        return [Step(Verb.CANCEL, job.number)]
    if job.fate is not Fate.REFUSED and dice.random() < CHANGED_SHARE:
        return [Step(Verb.CHANGE, job.number)]
    return []


def job_id_of(number: int) -> str:
    return f"soak-{number:06d}"


def number_of(job_id: str) -> int | None:
    """None for an id that is none of ours."""
    head, _, digits = job_id.partition("-")
    return int(digits) if head == "soak" and digits.isdigit() else None


def made(job: Planned, step: Step, now_ms: int) -> Message:
    """The event as any upstream would publish it."""
    event: JobSubmitted | JobChanged | JobCancelled
    match step.verb:
        case Verb.SUBMIT:
            event = JobSubmitted(job_id=job.job_id, submitted_ms=now_ms, spec=_spec(job))
        case Verb.CHANGE:
            event = JobChanged(job_id=job.job_id, changed_ms=now_ms, priority=1 + job.number % 5)
        case Verb.CANCEL:
            event = JobCancelled(job_id=job.job_id, cancelled_ms=now_ms, cause="soak")
    return message(
        event, key=job.job_id, id=step.id, source=SOURCE, time_ms=now_ms, traceparent=traceparent(job.job_id)
    )


def _spec(job: Planned) -> JobSpec:
    labels = {RUN_LABEL: json.dumps({str(job.gpus): job.run_s})}
    if job.fate in (Fate.FAILS, Fate.FAILS_TWICE):
        labels[FAIL_LABEL] = str(FAILS_AT)
    again = RestartPolicy(mode=RestartMode.ON_FAILURE, attempts_max=RETRIES)
    return JobSpec(
        kind=Kind.BATCH_INFERENCE,
        team=f"team-{job.number % 7}",
        user=f"user-{job.number % 31}",
        priority=1 + job.number % 3,
        sizes=[job.gpus],
        time_limit_s=SHORT_LIMIT_S if job.fate is Fate.TIMES_OUT else LIMIT_S,
        restart=again if job.fate is Fate.FAILS_TWICE else RestartPolicy(),
        template="simulated",
        cluster=job.cluster,
        pools=[IDLE_POOL if job.fate is Fate.CANCELLED_WAITING else POOL],
        labels=labels,
    )

"""Judges jobs by what the topics say of them: none lost, none ended twice, none started after it was known to have ended.

Owns: the history of every job as the accepted log tells it. Refuses: the allocator's own state; only inputs and effects count.
Read next: `check_machines.py`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from schemas.decisions import Placed, Preempted, StopOrdered
from schemas.executions import CardsShaped, JobCompleted, JobFailed, JobStarted, JobStopped, StopCause
from schemas.jobs import JobAccepted, JobRevoked, JobSubmitted, RestartMode
from schemas.status import FINAL_STATES, JobState, JobStatusChanged
from tests.simulation.system.evidence import Evidence, heard
from tests.simulation.system.world_slots import machine_of

Report = JobCompleted | JobFailed | JobStarted | JobStopped


@dataclass
class Attempt:
    """One `Placed`: where, and which nodes have said what about it, by decision."""

    number: int
    sequence: int
    now_ms: int
    cards: dict[str, tuple[int, ...]]
    ends: dict[str, tuple[int, Report]] = field(default_factory=dict)

    def completed_at(self) -> int | None:
        """The decision that knew the whole attempt to be complete."""
        found = [self.ends[node] for node in self.cards if node in self.ends]
        if len(found) < len(self.cards) or any(not isinstance(event, JobCompleted) for _, event in found):
            return None
        return max(sequence for sequence, _ in found)


@dataclass
class Life:
    """One job as the log tells it. `places_lost`: attempts that had to leave for another job."""

    job_id: str
    accepted: JobAccepted | None = None
    attempts: dict[int, Attempt] = field(default_factory=dict)
    stops: list[tuple[int, StopOrdered]] = field(default_factory=list)
    revoked_at: int | None = None
    places_lost: set[int] = field(default_factory=set)


def lives_of(evidence: Evidence) -> dict[str, Life]:
    """Every batch-like job's history."""
    lives: dict[str, Life] = defaultdict(lambda: Life(""))
    for record in evidence.accepted:
        for item in record.inputs:
            event = heard(item)
            if isinstance(event, JobAccepted):
                life = lives.setdefault(event.job_id, Life(event.job_id))
                life.accepted = life.accepted or event
            elif isinstance(event, JobRevoked) and event.job_id in lives:
                lives[event.job_id].revoked_at = lives[event.job_id].revoked_at or record.sequence
            elif isinstance(event, JobCompleted | JobFailed | JobStopped) and event.job_id in lives:
                attempt = lives[event.job_id].attempts.get(event.attempt)
                if attempt is not None:
                    attempt.ends.setdefault(event.node, (record.sequence, event))
        for effect in record.effects:
            if isinstance(effect, Placed):
                cards = {part.node: tuple(sorted(part.gpus)) for part in effect.placed}
                attempt = Attempt(effect.attempt, record.sequence, record.now_ms, cards)
                lives[effect.job_id].attempts[effect.attempt] = attempt
            elif isinstance(effect, StopOrdered):
                lives[effect.job_id].stops.append((record.sequence, effect))
            elif isinstance(effect, Preempted):
                for victim in effect.victims:
                    lives[victim].places_lost.add(max(lives[victim].attempts))
    return dict(lives)


def check_jobs(evidence: Evidence, lives: dict[str, Life]) -> list[str]:
    """Sentences about what must not happen to a job."""
    cut = {entry.event.node for entry in evidence.said["executions"] if isinstance(entry.event, CardsShaped)}
    return [
        *_lost(evidence, lives),
        *_ended_twice(evidence),
        *[sentence for life in lives.values() for sentence in _restarted(life, cut)],
        *_unfounded_ends(evidence, lives),
    ]


def _lost(evidence: Evidence, lives: dict[str, Life]) -> list[str]:
    found = []
    let_in = {entry.event.job_id for entry in evidence.said["jobs"] if isinstance(entry.event, JobAccepted)}
    refused = {
        entry.event.job_id
        for entry in evidence.said["job-status"]
        if isinstance(entry.event, JobStatusChanged) and entry.event.state is JobState.REFUSED
    }
    asked = {entry.event.job_id for entry in evidence.said["job-events"] if isinstance(entry.event, JobSubmitted)}
    found += [f"{job_id} was submitted and neither let in nor refused" for job_id in sorted(asked - let_in - refused)]
    found += [f"{job_id} was let in and the log doesn't know it" for job_id in sorted(let_in - set(lives))]
    ended = {
        entry.event.job_id
        for entry in evidence.said["job-status"]
        if isinstance(entry.event, JobStatusChanged) and entry.event.state in FINAL_STATES
    }
    if not evidence.drained:
        left = sorted(let_in - ended)
        found.append(f"the queue never drained: {', '.join(left)} did not end within the time given")
    return found


def _ended_twice(evidence: Evidence) -> list[str]:
    """A final status is final, whatever comes after it."""
    found = []
    finals: dict[str, JobStatusChanged] = {}
    entries = sorted(
        (entry.event for entry in evidence.said["job-status"] if isinstance(entry.event, JobStatusChanged)),
        key=lambda status: status.sequence,
    )
    for status in entries:
        if status.application or not status.sequence:
            continue
        final = finals.get(status.job_id)
        if final is not None and status.state is not final.state:
            found.append(
                f"{status.job_id} was {final.state.value} (decision {final.sequence}) and became "
                f"{status.state.value} (decision {status.sequence})"
            )
        elif final is None and status.state in FINAL_STATES:
            finals[status.job_id] = status
    return found


def _over_at(life: Life, attempt: Attempt, cut: set[str]) -> int | None:
    """The decision that knew the job to be over with this attempt, though it did not complete: it had reached its limit, or failed where
    it ran alone, and nothing lets it try again. `cut`: machines whose cards may go, which breaks what is on them."""
    never = life.accepted is not None and life.accepted.spec.restart.mode is RestartMode.NEVER
    alone = len(attempt.cards) == 1 and machine_of(next(iter(attempt.cards))) not in cut
    known = [
        sequence
        for sequence, event in attempt.ends.values()
        if (isinstance(event, JobStopped) and event.cause is StopCause.TIME_LIMIT)
        or (isinstance(event, JobFailed) and never and alone)
    ]
    return min(known, default=None)


def _restarted(life: Life, cut: set[str]) -> list[str]:
    found = [
        f"{life.job_id} was known to be over for good with decision {known} and started again with decision {following.sequence}"
        for attempt in life.attempts.values()
        if (known := _over_at(life, attempt, cut)) is not None
        and (following := life.attempts.get(attempt.number + 1)) is not None
        and following.sequence > known
    ]
    numbers = sorted(life.attempts)
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"{life.job_id}: attempts {numbers} are not numbered one after the other")
    for attempt in life.attempts.values():
        known = attempt.completed_at()
        if known is None:
            continue
        for later in life.attempts.values():
            if later.sequence > known:
                found.append(
                    f"{life.job_id} was known to be complete with decision {known} and started again with decision "
                    f"{later.sequence}"
                )
    return found


def _unfounded_ends(evidence: Evidence, lives: dict[str, Life]) -> list[str]:
    """Each final state has its evidence."""
    found = []
    for job_id, status in _finals(evidence).items():
        life = lives.get(job_id)
        if life is None or life.accepted is None:
            found.append(f"{job_id} ended and was never let in")
            continue
        if status.state is JobState.COMPLETED and all(each.completed_at() is None for each in life.attempts.values()):
            found.append(f"{job_id} counts as completed, but no attempt of it completed on all of its nodes")
        if status.state is JobState.CANCELLED and life.revoked_at is None:
            found.append(f"{job_id} counts as cancelled, but nobody cancelled it")
        if status.state is JobState.FAILED:
            found += _unfounded_failure(life)
        if status.state is JobState.TIMED_OUT and not _limit_stops(life):
            found.append(f"{job_id} counts as timed out, but was never stopped for its time limit")
    return found


def _finals(evidence: Evidence) -> dict[str, JobStatusChanged]:
    found: dict[str, JobStatusChanged] = {}
    for entry in evidence.said["job-status"]:
        status = entry.event
        if (
            isinstance(status, JobStatusChanged)
            and status.state in FINAL_STATES
            and status.sequence
            and not status.application
        ):
            found.setdefault(status.job_id, status)
    return found


def _unfounded_failure(life: Life) -> list[str]:
    assert life.accepted is not None
    policy = life.accepted.spec.restart
    failures = [
        attempt
        for attempt in life.attempts.values()
        if any(isinstance(event, JobFailed) for _, event in attempt.ends.values())
    ]
    needed = 1 if policy.mode is RestartMode.NEVER else policy.attempts_max
    if len(failures) < needed:
        return [f"{life.job_id} counts as failed after {len(failures)} failures, its policy allows {needed - 1}"]
    return []


def _limit_stops(life: Life) -> bool:
    ordered = any(stop.cause is StopCause.TIME_LIMIT for _, stop in life.stops)
    reported = any(
        isinstance(event, JobStopped) and event.cause is StopCause.TIME_LIMIT
        for attempt in life.attempts.values()
        for _, event in attempt.ends.values()
    )
    return ordered or reported

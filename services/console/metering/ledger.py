"""What was held when, from the records of the log: one part per job, attempt and node; one hold per application and decision. Pure.

Owns: the fold. It is exact: parts are joined by (job, attempt, node), ends are the end's own time, a record folded twice or
late changes nothing, and any order of `executions`, `jobs`, `job-status` and `demand` gives the same ledger. Only `decisions` and one
node's `node-states` must come in log order. An end is final once reported, so a ledger
without it counts the part as running (or vanished) until it comes. Refuses: judging (see `account`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from schemas.base import Event
from schemas.decisions import DecisionMade, Scaled
from schemas.demand import DemandObserved
from schemas.executions import (
    JobCheckpointed,
    JobCompleted,
    JobFailed,
    JobStarted,
    JobStopped,
    NodeReported,
    StopCause,
)
from schemas.jobs import ApplicationAccepted, JobAccepted, JobRevoked
from schemas.nodes import FindingCode, NodeForgotten, NodeStateChanged
from schemas.status import FINAL_STATES, JobState, JobStatusChanged
from schemas.usage import JobUsage
from services.console.acceptance import Acceptance
from services.console.metering.served import ServedWindow, window_of

TOPICS = ("jobs", "executions", "job-status", "node-states", "usage", "demand", "decisions")
PartKey = tuple[str, int, str]
"""(job, attempt, node)."""


class End(Enum):
    """How a part ended. `VANISHED`: nobody reported its end; a later report or attempt shows that it was over."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    VANISHED = "vanished"


_RANK = {End.COMPLETED: 0, End.STOPPED: 1, End.FAILED: 2, End.VANISHED: 3}


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a part. `saved`: the process answered the checkpoint request before it ended."""

    time_ms: int
    end: End
    cause: str = ""
    saved: bool = False

    @property
    def order(self) -> tuple[int, int, str, bool]:
        """The earliest end counts; at one moment the better one."""
        return self.time_ms, _RANK[self.end], self.cause, self.saved


@dataclass(slots=True)
class Part:
    """One node's part of an attempt."""

    start_ms: int | None = None
    gpus: tuple[int, ...] = ()
    ended: Ended | None = None
    checkpoints_ms: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who a job or application belongs to. `submitted_ms` None: an application."""

    team: str
    user: str
    kind: str
    submitted_ms: int | None


@dataclass(frozen=True, slots=True)
class Hold:
    """An application holds these GPUs (node, local index) from `time_ms` on, until its next hold."""

    time_ms: int
    gpus: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Ledger:
    """Everything folded so far. `reports`: per node, what ran there at a moment; `idle`: GPUs found idle, per node and moment;
    `gone_ms`: when a node was given up for good; `slots_per_card`: of nodes whose GPUs are parts of cards."""

    parts: dict[PartKey, Part] = field(default_factory=dict)
    attempts: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)
    holds: dict[str, list[Hold]] = field(default_factory=dict)
    revoked_ms: dict[str, int] = field(default_factory=dict)
    final: dict[str, tuple[int, JobState]] = field(default_factory=dict)
    reports: dict[str, dict[int, frozenset[tuple[str, int]]]] = field(default_factory=dict)
    idle: dict[str, dict[int, frozenset[int]]] = field(default_factory=dict)
    gone_ms: dict[str, set[int]] = field(default_factory=dict)
    served: dict[str, dict[int, ServedWindow]] = field(default_factory=dict)
    usage: dict[str, JobUsage] = field(default_factory=dict)
    slots_per_card: dict[str, int] = field(default_factory=dict)
    acceptance: Acceptance = field(default_factory=Acceptance)

    def fold(self, event: Event) -> None:
        """Take in one event of TOPICS; others change nothing."""
        match event:
            case JobStarted():
                self._started(event)
            case JobStopped() | JobCompleted() | JobFailed():
                self._ended(event)
            case JobCheckpointed():
                self._part(event.job_id, event.attempt, event.node).checkpoints_ms.add(event.time_ms)
            case NodeReported():
                running = frozenset((one.job_id, one.attempt) for one in event.running)
                self.reports.setdefault(event.node, {})[event.time_ms] = running
            case JobAccepted(job_id=name, spec=spec):
                self.owners[name] = Owner(spec.team, spec.user, spec.kind.value, event.submitted_ms)
            case ApplicationAccepted(app_id=name, spec=app):
                self.owners[name] = Owner(app.team, app.user, "application", None)
            case JobRevoked():
                self.revoked_ms[event.job_id] = min(
                    event.revoked_ms, self.revoked_ms.get(event.job_id, event.revoked_ms)
                )
            case JobStatusChanged() if event.state in FINAL_STATES:
                known = self.final.get(event.job_id)
                if known is None or event.sequence >= known[0]:
                    self.final[event.job_id] = (event.sequence, event.state)
            case NodeStateChanged():
                if event.slots_per_card > 1:
                    self.slots_per_card[event.node] = event.slots_per_card
                found = frozenset(
                    one.gpu for one in event.findings if one.code is FindingCode.IDLE_HELD and one.gpu is not None
                )
                self._idle(event.node, event.time_ms, found)
            case NodeForgotten():
                self.gone_ms.setdefault(event.node, set()).add(event.time_ms)
                self._idle(event.node, event.time_ms, frozenset())
            case DemandObserved():
                told, known_windows = window_of(event), self.served.setdefault(event.app_id, {})
                other = known_windows.get(event.time_ms)
                if other is None or told.order > other.order:
                    known_windows[event.time_ms] = told
            case DecisionMade():
                self.fold_decision(event)
            case JobUsage():
                known_usage = self.usage.get(event.job_id)
                if known_usage is None or (event.wall_ms, event.held_gpu_s) > (
                    known_usage.wall_ms,
                    known_usage.held_gpu_s,
                ):
                    self.usage[event.job_id] = event

    def _idle(self, node: str, time_ms: int, found: frozenset[int]) -> None:
        """Only changes are kept: nodes report every few seconds, mostly the same. Their states come in order."""
        own = self.idle.setdefault(node, {})
        newest = next(reversed(own), None)
        if newest is None and not found:
            return
        if newest is None or (time_ms > newest and found != own[newest]):
            own[time_ms] = found

    def forget(self, before_ms: int) -> None:
        """Drop what was over before: for views that stay open longer than topics keep their records."""
        for name in [name for name in self.final if self._over(name, before_ms)]:
            for number, nodes in self.attempts.pop(name, {}).items():
                for node in nodes:
                    del self.parts[name, number, node]
            for kept in (self.owners, self.final, self.usage, self.revoked_ms, self.served, self.holds):
                kept.pop(name, None)  # type: ignore[attr-defined]
        for name, holds in self.holds.items():
            old = sum(hold.time_ms < before_ms for hold in holds)
            self.holds[name] = holds[max(0, old - 1) :]
        for of_node in (self.reports, self.idle):
            for times in of_node.values():
                for time_ms in [one for one in list(times)[:-1] if one < before_ms]:
                    times.pop(time_ms)  # type: ignore[attr-defined]
        for node, times_ms in list(self.gone_ms.items()):
            self.gone_ms[node] = {one for one in times_ms if one >= before_ms}
            if not self.gone_ms[node]:
                del self.gone_ms[node]
        for amounts in self.served.values():
            for time_ms in [one for one in amounts if one < before_ms]:
                del amounts[time_ms]

    def _over(self, name: str, before_ms: int) -> bool:
        """Whether an ended job left all its GPUs before a moment, or never had any and was submitted before it."""
        ends = [
            self.end_of((name, number, node)) for number, nodes in self.attempts.get(name, {}).items() for node in nodes
        ]
        if ends:
            return all(end is not None and end.time_ms < before_ms for end in ends)
        owner = self.owners.get(name)
        return owner is None or (owner.submitted_ms is not None and owner.submitted_ms < before_ms)

    def _part(self, job_id: str, attempt: int, node: str) -> Part:
        key = (job_id, attempt, node)
        if key not in self.parts:
            self.parts[key] = Part()
            self.attempts.setdefault(job_id, {}).setdefault(attempt, []).append(node)
        return self.parts[key]

    def _started(self, event: JobStarted) -> None:
        part = self._part(event.job_id, event.attempt, event.node)
        gpus = tuple(sorted(event.gpus))
        if part.start_ms is None or (event.time_ms, gpus) < (part.start_ms, part.gpus):
            part.start_ms, part.gpus = event.time_ms, gpus

    def _ended(self, event: JobStopped | JobCompleted | JobFailed) -> None:
        part = self._part(event.job_id, event.attempt, event.node)
        match event:
            case JobCompleted():
                ended = Ended(event.time_ms, End.COMPLETED)
            case JobStopped():
                ended = Ended(event.time_ms, End.STOPPED, event.cause.value, event.checkpointed)
            case JobFailed():
                ended = Ended(event.time_ms, End.FAILED, event.cause.value)
        if part.ended is None or ended.order < part.ended.order:
            part.ended = ended

    def fold_decision(self, decision: DecisionMade) -> bool:
        """Whether the log accepts it; if so, the holds it makes."""
        if not self.acceptance.accepts(decision):
            return False
        for effect in decision.effects:
            if isinstance(effect, Scaled):
                gpus = tuple(sorted((part.node, gpu) for part in effect.placed for gpu in part.gpus))
                self.holds.setdefault(effect.app_id, []).append(Hold(decision.now_ms, gpus))
        return True

    def is_application(self, name: str) -> bool:
        """Whether a name is an application's: its GPUs follow decisions, not the starts of its processes."""
        owner = self.owners.get(name)
        return name in self.holds or (owner is not None and owner.submitted_ms is None)

    def end_of(self, key: PartKey) -> Ended | None:
        """How and when a part ended; what nobody reported is taken from the next report of its node, the next attempt, or the word that
        the node is gone for good."""
        job_id, attempt, node = key
        part = self.parts[key]
        if part.ended is not None or part.start_ms is None:
            return part.ended
        start_ms = part.start_ms
        gone = [
            time_ms
            for time_ms, running in self.reports.get(node, {}).items()
            if time_ms > start_ms and (job_id, attempt) not in running
        ]
        gone.extend(time_ms for time_ms in self.gone_ms.get(node, ()) if time_ms > start_ms)
        for later, nodes in self.attempts[job_id].items():
            starts = [self.parts[job_id, later, name].start_ms for name in nodes if later > attempt]
            gone.extend(other for other in starts if other is not None and other >= start_ms)
        return Ended(min(gone), End.VANISHED, StopCause.NODE_LOST.value) if gone else None

"""What a node remembers: the entries of its journal, and the fold that makes the node's state of them.

Owns: `NodeState` (what runs here, what has ended, which placement was applied, which reports are unacknowledged). Live and
after a crash the state comes from the same fold, so recovery can't differ from running. Refuses: reading or writing files
(`shell/journal_file.py`). Read next: `lifecycle.py`, `reconcile.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from schemas.executions import StopCause
from schemas.placements import Assignment
from services.executor.core.lifecycle import FINAL, Event, State, advance

ENDED_KEPT_MAX = 10_000
"""Ended attempts remembered per node. Only one still listed in an accepted placement could be started again, and a node
lists at most some hundred; older placements are refused by number."""

NEVER = 2**62
"""No placement is newer: an application that ended by itself comes back after its back-off, not with the next placement."""
HEALTHY_RUN_MS = 600_000
"""An application that ran that long and then ended starts its back-off anew."""

RunKey = str


def run_key(job_id: str, attempt: int) -> RunKey:
    """`job/attempt`: unique, because the attempt is the part after the last slash."""
    return f"{job_id}/{attempt}"


def machine_of(boot_id: str) -> str:
    """The part of a boot id that changes with a restart of the machine."""
    return boot_id.rpartition("/")[0]


class RunFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a driver needs to find a run again. `pid` is the job's process, `runner_pid` the one that watches it; `name`: what another
    scheduler calls it."""

    started_ms: int
    pid: int | None = None
    pid_ticks: int = 0
    runner_pid: int | None = None
    runner_ticks: int = 0
    name: str = ""


class LocalRun(Struct, kw_only=True, omit_defaults=True):
    """One attempt that holds GPUs of this node. `sequence`: the placement that asked for it; `saved_fraction`: what is safe.

    `saves` counts checkpoints, `saved_ms` is the newest, `save_s` what one costs by measurement. `leaving`: GPUs that an application
    gave up and may still finish requests on; they stay held. `crashes`: ends in a row that nobody asked for.
    """

    assignment: Assignment
    sequence: int
    traceparent: str = ""
    state: State = State.WAITING
    gpus: list[int] = []
    machine_lost: bool = False
    """The machine was restarted since it began: what it left behind tells how it ended, or it vanished with the machine."""
    spawn: int = 1
    """Counts starts under this key: a further one follows only when it is proven that nothing ran, or for an application."""
    facts: RunFacts | None = None
    checkpoint_request: int = 0
    stop_cause: StopCause | None = None
    saved_fraction: float = 0.0
    saved_location: str = ""
    saves: int = 0
    saved_ms: int = 0
    save_s: float = 0.0
    leaving: list[int] = []
    crashes: int = 0
    checkpointed: bool = False
    stop_ms: int | None = None
    stop_sequence: int | None = None
    terminating_ms: int | None = None

    @property
    def key(self) -> RunKey:
        return run_key(self.assignment.job_id, self.assignment.attempt)

    def safe_with(self, fraction: float, location: str) -> tuple[float, str]:
        """What is safe, and where, once this is said: the largest share counts, with the place it came with; of equal ones the newest."""
        return (fraction, location) if fraction >= self.saved_fraction else (self.saved_fraction, self.saved_location)

    @property
    def held(self) -> list[int]:
        """GPUs that nobody else may have: those it uses and those it is about to let go of."""
        return [*self.gpus, *self.leaving]


class Ended(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt that ended here. A job's never returns. An application keeps its attempt while it leaves a node and comes
    back, so it may return with a placement newer than `again_after`; one that ended by itself once `Revived` says so."""

    again_after: int | None = None
    spawn: int = 1
    crashes: int = 0


class Opened(Struct, frozen=True, kw_only=True, tag_field="entry", tag="opened"):
    """An executor took the node over. `boot_id` names the time in which processes survive."""

    boot_id: str
    count: int


class Applied(Struct, frozen=True, kw_only=True, tag_field="entry", tag="applied"):
    """A placement was accepted."""

    epoch: int
    sequence: int


class Moved(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="entry", tag="moved"):
    """Something happened to an attempt; the optional fields belong to single events."""

    key: RunKey
    event: Event
    assignment: Assignment | None = None
    sequence: int = 0
    traceparent: str = ""
    gpus: list[int] | None = None
    facts: RunFacts | None = None
    request: int = 0
    fraction: float = 0.0
    location: str = ""
    cause: StopCause | None = None
    time_ms: int = 0
    cost_s: float = 0.0


class Revived(Struct, frozen=True, kw_only=True, tag_field="entry", tag="revived"):
    """The back-off of an application that ended by itself is over: it may start again."""

    key: RunKey


class Terminating(Struct, frozen=True, kw_only=True, tag_field="entry", tag="terminating"):
    """From now on the driver ends the process by force: whatever its exit looks like, it was stopped."""

    key: RunKey
    time_ms: int


class Reported(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="entry", tag="reported"):
    """A report that has to reach the broker: `type` and `payload` as the codec writes them."""

    number: int
    id: str
    key: str
    type: str
    payload: msgspec.Raw
    time_ms: int
    traceparent: str = ""


class Acknowledged(Struct, frozen=True, kw_only=True, tag_field="entry", tag="acknowledged"):
    """All reports up to `number` are stored by the broker."""

    number: int


class Shaping(Struct, frozen=True, kw_only=True, tag_field="entry", tag="shaping"):
    """From now on the cards of this machine are being cut for a pool: nothing may begin on them."""

    request_id: str
    cards: list[int]
    pool: str


class Shaped(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="entry", tag="shaped"):
    """How the cards are cut: per card the pool whose slots it has. `request_id`: what it answers; `detail`: why it failed."""

    revision: int
    pools: list[str]
    request_id: str | None = None
    detail: str = ""


class Snapshot(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="entry", tag="snapshot"):
    """A whole state: what a compacted journal starts with."""

    boot_id: str
    count: int
    epoch: int
    sequence: int
    runs: list[LocalRun]
    ended: dict[RunKey, Ended]
    reports: list[Reported]
    reported: int
    cut: Shaped | None = None
    shaping: Shaping | None = None


Entry = Opened | Applied | Moved | Revived | Terminating | Reported | Acknowledged | Shaping | Shaped | Snapshot


class NodeState:
    """The fold of one node's entries. Read freely; change only through `fold`. `cut`, `shaping`: of a machine whose cards are shared."""

    def __init__(self) -> None:
        self.boot_id = ""
        self.count = 0
        self.epoch = -1
        self.sequence = -1
        self.runs: dict[RunKey, LocalRun] = {}
        self.ended: dict[RunKey, Ended] = {}
        self.reports: dict[int, Reported] = {}
        self.reported = 0
        self.cut: Shaped | None = None
        self.shaping: Shaping | None = None

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> NodeState:
        state = cls()
        for entry in entries:
            state.fold(entry)
        return state

    def fold(self, entry: Entry) -> None:
        """Apply one entry. Raises LifecycleError for a move that can't happen."""
        match entry:
            case Moved():
                self._move(entry)
            case Applied():
                self.epoch, self.sequence = entry.epoch, entry.sequence
            case Revived():
                if entry.key in self.ended:
                    self.ended[entry.key] = msgspec.structs.replace(self.ended[entry.key], again_after=-1)
            case Terminating():
                if entry.key in self.runs:
                    self.runs[entry.key].terminating_ms = entry.time_ms
            case Reported():
                self.reports[entry.number] = entry
                self.reported = entry.number
            case Acknowledged():
                for number in [number for number in self.reports if number <= entry.number]:
                    del self.reports[number]
            case Opened():
                if machine_of(self.boot_id) not in ("", machine_of(entry.boot_id)):
                    for run in self.runs.values():
                        run.machine_lost = True
                self.boot_id, self.count = entry.boot_id, entry.count
            case Shaping():
                self.shaping = entry
            case Shaped():
                self.cut, self.shaping = entry, None
            case Snapshot():
                self._restore(entry)

    def state_of(self, key: RunKey) -> State:
        """An attempt that ended and may return is waiting again."""
        if key in self.runs:
            return self.runs[key].state
        ended = self.ended.get(key)
        if ended is None or (ended.again_after is not None and self.sequence > ended.again_after):
            return State.WAITING
        return State.STOPPED

    def spawn_of(self, key: RunKey) -> int:
        """Which time it runs, or would run if it began now; the first is 1."""
        run = self.runs.get(key)
        return self.ended.get(key, _NEVER_RAN).spawn + 1 if run is None else run.spawn

    def snapshot(self) -> Snapshot:
        return Snapshot(
            boot_id=self.boot_id,
            count=self.count,
            epoch=self.epoch,
            sequence=self.sequence,
            runs=list(self.runs.values()),
            ended=self.ended,
            reports=list(self.reports.values()),
            reported=self.reported,
            cut=self.cut,
            shaping=self.shaping,
        )

    def _restore(self, entry: Snapshot) -> None:
        self.boot_id, self.count = entry.boot_id, entry.count
        self.epoch, self.sequence = entry.epoch, entry.sequence
        self.runs = {run.key: run for run in entry.runs}
        self.ended = dict(entry.ended)
        self.reports = {report.number: report for report in entry.reports}
        self.reported = entry.reported
        self.cut, self.shaping = entry.cut, entry.shaping

    def _ended(self, run: LocalRun, entry: Moved) -> Ended:
        if not run.assignment.application:
            return Ended(spawn=run.spawn)
        if run.state is not State.STOPPED:
            ran_ms = entry.time_ms - (run.facts.started_ms if run.facts is not None else entry.time_ms)
            crashes = 1 if ran_ms >= HEALTHY_RUN_MS else run.crashes + 1
            return Ended(again_after=NEVER, spawn=run.spawn, crashes=crashes)
        again_after = self.sequence if run.stop_sequence is None else run.stop_sequence
        return Ended(again_after=again_after, spawn=run.spawn)

    def _move(self, entry: Moved) -> None:
        following = advance(self.state_of(entry.key), entry.event)
        if following is None:
            return
        run = self.runs.get(entry.key)
        if run is None:
            assert entry.assignment is not None, "the first event of an attempt carries its assignment"
            before = self.ended.pop(entry.key, _NEVER_RAN)
            run = LocalRun(
                assignment=entry.assignment,
                sequence=entry.sequence,
                traceparent=entry.traceparent,
                gpus=list(entry.assignment.gpus),
                saved_fraction=entry.assignment.resume_fraction,
                saved_location=entry.assignment.resume_location,
                checkpoint_request=entry.assignment.checkpoint_request,  # what was asked of earlier attempts is not for this one
                spawn=before.spawn + 1,
                crashes=before.crashes,
            )
            self.runs[entry.key] = run
        elif entry.event is Event.START and entry.assignment is not None:
            # It was wished for before and never ran: what is placed now counts, others may hold what it was given then.
            run.assignment, run.sequence, run.traceparent = entry.assignment, entry.sequence, entry.traceparent
            run.gpus, run.leaving = list(entry.assignment.gpus), []
        run.state = following
        _note(run, entry)
        if following in FINAL:
            del self.runs[entry.key]
            self.ended[entry.key] = self._ended(run, entry)
            while len(self.ended) > ENDED_KEPT_MAX:
                del self.ended[next(iter(self.ended))]
        elif following is State.WAITING:
            run.spawn += 1
            run.machine_lost = False


_NEVER_RAN = Ended(spawn=0)


def _note(run: LocalRun, entry: Moved) -> None:
    """Keep what the event brought with it."""
    match entry.event:
        case Event.STARTED:
            run.facts = entry.facts
        case Event.RESCALED:
            run.leaving = [gpu for gpu in run.held if gpu not in (entry.gpus or [])]
            run.gpus = list(entry.gpus or [])
        case Event.RELEASED:
            run.leaving = [gpu for gpu in run.leaving if gpu not in (entry.gpus or [])]
        case Event.CHECKPOINT:
            run.checkpoint_request = entry.request
        case Event.ANSWERED | Event.SAVED:
            run.saved_fraction, run.saved_location = run.safe_with(entry.fraction, entry.location)
            run.saves += 1
            run.saved_ms = entry.time_ms
            run.save_s = entry.cost_s or run.save_s
            if entry.event is Event.ANSWERED:
                run.checkpointed = run.state is State.STOPPING
        case Event.STOP:
            run.stop_cause = entry.cause
            run.stop_ms = entry.time_ms
            run.stop_sequence = entry.sequence

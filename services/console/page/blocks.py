"""Who held which GPUs when, and holds them now: the past and the present of the grid. Pure.

A job's block opens with the decision that places it (or, where that is gone, with its start), and closes with the
process's own end. An application's GPUs are one block each, from the decision that gives one to the one that takes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.decisions import DecisionMade, Placed, Scaled, Waits
from schemas.executions import JobStarted
from schemas.status import FINAL_STATES, JobState, JobStatusChanged
from services.console.metering.ledger import Ledger, PartKey

PLACED_STATES = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)


@dataclass(slots=True)
class Block:
    """GPUs of one node held by one owner. `expect_ms`: its end by the P50 it was placed with; `started`: its process ran;
    `sequence`: the decision that placed it, 0 where that is gone."""

    owner: str
    node: str
    gpus: tuple[int, ...]
    since_ms: int
    until_ms: int | None = None
    expect_ms: int | None = None
    attempt: int = 1
    started: bool = False
    application: bool = False
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class WhyHere:
    """The facts behind a placement. `waited_for`: the reason it had until then; who was there before: `Blocks.before`."""

    sequence: int
    at_ms: int
    gpus: tuple[tuple[str, int], ...]
    p50_s: float
    p90_s: float
    waited_for: str
    holders: tuple[str, ...]


@dataclass(slots=True)
class Blocks:
    """`all` by id; `changed` and `gone` since the last `drain`."""

    ledger: Ledger
    all: dict[str, Block] = field(default_factory=dict)
    why: dict[str, WhyHere] = field(default_factory=dict)
    changed: dict[str, None] = field(default_factory=dict)
    gone: dict[str, None] = field(default_factory=dict)
    _open: dict[str, dict[str, None]] = field(default_factory=dict)
    _apps: dict[str, dict[tuple[str, int], str]] = field(default_factory=dict)
    _waits: dict[str, Waits] = field(default_factory=dict)
    _unplaced: dict[str, JobStatusChanged] = field(default_factory=dict)

    def decided(self, decision: DecisionMade) -> None:
        """An accepted decision."""
        for effect in decision.effects:
            match effect:
                case Placed():
                    self._placed(effect, decision)
                case Scaled():
                    wanted = {(part.node, gpu) for part in effect.placed for gpu in part.gpus}
                    self._scaled(effect.app_id, wanted, decision)
                case Waits():
                    self._waits[effect.job_id] = effect

    def started(self, event: JobStarted) -> None:
        """A process runs. Of applications decisions tell more."""
        if self.ledger.is_application(event.job_id):
            return
        name = _id_of((event.job_id, event.attempt, event.node))
        known = self.all.get(name)
        if known is None:
            self._open_block(
                name,
                Block(event.job_id, event.node, tuple(event.gpus), event.time_ms, attempt=event.attempt, started=True),
            )
        elif not known.started:
            known.started, known.since_ms, known.until_ms = True, event.time_ms, None
            self._open.setdefault(known.owner, {})[name] = None
            self.changed[name] = None
        self.settle(event.job_id)

    def settle(self, owner: str | None = None) -> None:
        """Close the blocks whose end is known by now: of one owner, or of all."""
        for name in [owner] if owner is not None else list(self._open):
            for block_id in list(self._open.get(name, ())):
                block = self.all[block_id]
                key: PartKey = (block.owner, block.attempt, block.node)
                if block.application or key not in self.ledger.parts:
                    continue
                ended = self.ledger.end_of(key)
                if ended is not None:
                    self._close(block_id, ended.time_ms)

    def status(self, status: JobStatusChanged) -> None:
        """What never started is over once its job waits again or has ended; so is an application that has ended.

        Topics are read side by side: a status from before the placing decision says nothing about it.
        """
        if status.state in PLACED_STATES:
            self._unplaced.pop(status.job_id, None)
            return
        self._unplaced[status.job_id] = status
        final = status.state in FINAL_STATES
        for block_id in list(self._open.get(status.job_id, ())):
            block = self.all[block_id]
            if status.sequence <= block.sequence or (block.application and not final):
                continue
            if not block.started or final:
                self._close(block_id, status.time_ms)
        if final:
            self._waits.pop(status.job_id, None)
            self._apps.pop(status.job_id, None)

    def forget(self, job_id: str) -> None:
        """A job that the page no longer lists."""
        self.why.pop(job_id, None)
        self._unplaced.pop(job_id, None)

    def prune(self, before_ms: int) -> None:
        """Forget what ended before."""
        for name in [
            name for name, block in self.all.items() if block.until_ms is not None and block.until_ms < before_ms
        ]:
            del self.all[name]
            self.changed.pop(name, None)
            self.gone[name] = None

    def before(self, job_id: str) -> list[tuple[str, int]]:
        """Who held a placed job's GPUs last before it, and when each left, the latest first."""
        why = self.why[job_id]
        left: dict[str, int] = {}
        for block in self.all.values():
            gone_ms = block.until_ms
            if block.owner == job_id or gone_ms is None or gone_ms > why.at_ms:
                continue
            if any((block.node, gpu) in why.gpus for gpu in block.gpus):
                left[block.owner] = max(gone_ms, left.get(block.owner, 0))
        return sorted(left.items(), key=lambda pair: (-pair[1], pair[0]))

    def _placed(self, effect: Placed, decision: DecisionMade) -> None:
        gpus = tuple((part.node, gpu) for part in effect.placed for gpu in part.gpus)
        wait = self._waits.pop(effect.job_id, None)
        self.why[effect.job_id] = WhyHere(
            decision.sequence,
            decision.now_ms,
            gpus,
            effect.p50_s,
            effect.p90_s,
            wait.reason if wait is not None else "",
            tuple(wait.holders) if wait is not None else (),
        )
        for part in effect.placed:
            name = _id_of((effect.job_id, effect.attempt, part.node))
            expect_ms = decision.now_ms + round(effect.p50_s * 1000)
            known = self.all.get(name)
            if known is not None:  # its start was read first
                known.expect_ms, known.sequence = expect_ms, decision.sequence
                self.changed[name] = None
                continue
            self._open_block(
                name,
                Block(
                    effect.job_id,
                    part.node,
                    tuple(part.gpus),
                    decision.now_ms,
                    expect_ms=expect_ms,
                    attempt=effect.attempt,
                    sequence=decision.sequence,
                ),
            )
        self.settle(effect.job_id)
        later = self._unplaced.get(effect.job_id)
        if later is not None and later.sequence > decision.sequence:
            self.status(later)

    def _scaled(self, app_id: str, wanted: set[tuple[str, int]], decision: DecisionMade) -> None:
        now_ms = decision.now_ms
        held = self._apps.setdefault(app_id, {})
        for one in sorted(set(held) - wanted):
            self._close(held.pop(one), now_ms)
        for node, gpu in sorted(wanted - set(held)):
            name = f"{app_id}@{node}:{gpu}/{now_ms}"
            block = Block(app_id, node, (gpu,), now_ms, started=True, application=True, sequence=decision.sequence)
            self._open_block(name, block)
            held[node, gpu] = name

    def _open_block(self, name: str, block: Block) -> None:
        self.all[name] = block
        self._open.setdefault(block.owner, {})[name] = None
        self.changed[name] = None

    def _close(self, name: str, at_ms: int) -> None:
        block = self.all.get(name)
        if block is None or block.until_ms is not None:
            return
        block.until_ms = max(at_ms, block.since_ms)
        own = self._open[block.owner]
        own.pop(name, None)
        if not own:
            del self._open[block.owner]
        self.changed[name] = None


def _id_of(key: PartKey) -> str:
    return f"{key[0]}/{key[1]}/{key[2]}"

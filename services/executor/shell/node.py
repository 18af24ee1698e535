"""One node: its live runs, and the actions that bring it to what is placed there.

Owns: the order of things. A wish is journalled before it is carried out, and a fact is reported and journalled in one
append. Refuses: deciding (`core/reconcile.py`) and knowing how a process is run (`drivers/`). Any unexpected exception
ends the executor; its runs go on and are adopted by the next one. Read next: `starting.py`, `saving.py`, `serving.py`, `ledger.py`,
`run_spans.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from schemas.executions import FailureCause, StopCause
from schemas.placements import Assignment, NodePlaced
from services.executor.core import reports
from services.executor.core.journal import Applied, LocalRun, Moved, NodeState, RunKey, Terminating, run_key
from services.executor.core.lifecycle import Event, State
from services.executor.core.reconcile import (
    Action,
    Refusal,
    RequestCheckpoint,
    Rescale,
    Start,
    Stop,
    Withdraw,
    due,
    refusal,
    stop_of,
)
from services.executor.shell.cards import Cards
from services.executor.shell.dataset_folder import LOOK_PERIOD_S
from services.executor.shell.device_facts import Unmeasured
from services.executor.shell.drivers.port import Order, Run
from services.executor.shell.gangs import Gangs
from services.executor.shell.journal_store import JournalStore
from services.executor.shell.ledger import Ledger, Surroundings
from services.executor.shell.live import Live
from services.executor.shell.quarantine import Quarantine
from services.executor.shell.run_spans import RunSpans
from services.executor.shell.saving import Saving
from services.executor.shell.serving import Serving
from services.executor.shell.starting import Starting

SLOW_START_S = 300.0
"""Wall seconds after which a start that is still under way (an image is fetched, a batch system has no room) is reported as such: a third
of what the allocator waits for a word."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Share:
    """This node's pool on a machine whose cards are shared. `is_own`: the node of its whole cards, which is asked to cut them."""

    cards: Cards
    pool: str

    @property
    def is_own(self) -> bool:
        return self.pool == self.cards.machine.whole


class Node:
    """Open it, `recover`, then `apply` whatever is placed."""

    def __init__(
        self, name: str, store: JournalStore, around: Surroundings, gangs: Gangs, share: Share | None = None
    ) -> None:
        self.name = name
        self._share = share
        self.refused = dict.fromkeys(Refusal, 0)
        self._around = around
        self._placed: NodePlaced | None = None
        self._live: dict[RunKey, Live] = {}
        self._quiet = asyncio.Event()
        self._reports = 0
        self._datasets: list[str] = []
        self._ledger = Ledger(name, store, around)
        memory = around.memory if share is None else Unmeasured()  # on shared cards others' memory is no fault
        self._quarantine = Quarantine(memory, around.clock, around.nursery, self.reconcile, self.report)
        self._spans = RunSpans(name, around.spans)
        self._saving = Saving(self._ledger, self._live, around, self.reconcile, self._spans)
        self._serving = Serving(self._ledger, self._live, around, self.reconcile, self._renew)
        self._starting = Starting(self._ledger, self._live, around, gangs, self._spans)
        if share is not None:
            share.cards.join(share.pool, self, self._ledger)

    @property
    def state(self) -> NodeState:
        return self._ledger.state

    # --- what the loop calls

    async def recover(self) -> None:
        """Read the journal, put unsent reports back on their way, adopt or write off what a predecessor started, and say so."""
        self._ledger.open()
        adopted = [work for key in list(self.state.runs) for work in await self._adopt(key)]
        held = [gpu for run in self.state.runs.values() for gpu in run.held]
        free = [gpu for gpu in self._around.memory.indices() if gpu not in held]
        self._quarantine.look(free, "when the executor started")
        self.report()
        if self._around.datasets.is_watched:
            self._spawn(self._watch_datasets())
        for work in adopted:  # only now: the report names what was found, whatever ends in this very moment
            self._spawn(work)

    async def reap(self) -> None:
        """End what is alive here and neither remembered nor placed: somebody lost the journal. Call it once placements were applied."""
        known = [Order(self.name, run.assignment, run.spawn) for run in self.state.runs.values()]
        for name in await self._around.driver.reap(self.name, known):
            log.warning("%s was alive and belonged to nobody: ended", name, extra={"node_id": self.name})

    def report(self) -> None:
        """Say what is alive here, what is in quarantine, and which datasets are kept."""
        self._reports += 1
        now_ms = self._around.clock.now_ms()
        self._datasets = self._around.datasets.names()
        report = reports.node_reported(
            self.name,
            self._around.cluster,
            self.state,
            now_ms,
            self._quarantine.reported,
            self._datasets,
            self._reports,
        )
        self._ledger.record(report=report)

    def apply(self, placed: NodePlaced) -> Refusal | None:
        """Carry a placement out, or say why not. After a restart the one applied last is taken up again."""
        refused = refusal(self.state, placed)
        if refused is None:
            self._ledger.record(Applied(epoch=placed.epoch, sequence=placed.sequence))
        elif refused is Refusal.OUTDATED or self._placed is not None:
            self.refused[refused] += 1
            return refused
        self._placed = placed
        self._spans.received(placed)
        for assignment in placed.assignments:
            self._limit(run_key(assignment.job_id, assignment.attempt), assignment.time_limit_s)
        self.reconcile()
        if self._share is not None and self._share.is_own:
            self._share.cards.want(placed.reshape, (placed.epoch, placed.sequence))
        return None

    async def stop_all(self, cause: StopCause) -> None:
        """Stop everything that runs and return when nothing is left."""
        self._placed = None
        for run in list(self.state.runs.values()):
            if run.state is State.WAITING:
                self._carry_out([Withdraw(run.assignment, cause)])
            elif run.state is not State.STOPPING:
                self._carry_out([stop_of(run, cause)])
        while self.state.runs:
            self._quiet.clear()
            await self._quiet.wait()

    async def kill_all(self) -> None:
        """End at once whatever is still alive."""
        for key, live in list(self._live.items()):
            run = await live.run
            if run is not None and key in self.state.runs:
                self._ledger.record(Terminating(key=key, time_ms=self._around.clock.now_ms()))
                run.kill()

    def close(self) -> None:
        self._ledger.close()

    # --- actions

    def reconcile(self) -> None:
        """Do what is due now for the newest placement."""
        if self._placed is None:
            return
        wanted = [gpu for start in self._due() if isinstance(start, Start) for gpu in start.assignment.gpus]
        self._quarantine.look(wanted, "although nothing of ours runs there")
        actions = self._due()
        applying = [self._spans.apply(action, self._run_of(action)) for action in actions]
        self._carry_out(actions)
        for span in applying:
            span.end()
        for assignment in self._placed.assignments:
            if assignment.application:
                self._serving.revive_later(run_key(assignment.job_id, assignment.attempt))
        if self._share is not None:
            self._share.cards.look()

    def _due(self) -> list[Action]:
        assert self._placed is not None
        blocked: set[int] = set(self._quarantine.blocked)
        if self._share is not None:
            blocked |= self._share.cards.closed(self._share.pool)
        return due(self.state, self._placed, blocked)

    def _run_of(self, action: Action) -> LocalRun | None:
        return None if isinstance(action, Start | Withdraw) else self.state.runs[action.key]

    def _carry_out(self, actions: list[Action]) -> None:
        begun: list[tuple[RunKey, Any]] = []
        for action in actions:
            match action:
                case Start(assignment):
                    assert self._placed is not None
                    begun.append(self._starting.begin(assignment, self._placed.sequence))
                case Withdraw(assignment, cause):
                    self._withdraw(assignment, cause)
                case RequestCheckpoint(key, request):
                    self._ledger.record(Moved(key=key, event=Event.CHECKPOINT, request=request))
                    self._spawn(self._saving.ask(key))
                case Stop(key, cause, save_first):
                    stop_ms = self._around.clock.now_ms()
                    # Stopped on this process's way out it is not the placement's wish: an application comes back with it.
                    sequence = self.state.sequence if self._placed is not None else self.state.sequence - 1
                    move = Moved(key=key, event=Event.STOP, cause=cause, time_ms=stop_ms, sequence=sequence)
                    self._ledger.record(move)
                    self._spans.stopping(key)
                    self._spawn(self._stop(key, save_first))
                case Rescale(key, gpus):
                    self._ledger.record(Moved(key=key, event=Event.RESCALED, gpus=list(gpus)))
                    self._spawn(self._rescale(key, list(self.state.runs[key].leaving)))
        if actions:
            # One flush for all of them: a start must not be forgotten, or it would be made again.
            self._ledger.sync()
        for key, span in begun:
            self._spawn(self._start(key, span))

    def _withdraw(self, assignment: Assignment, cause: StopCause) -> None:
        key = run_key(assignment.job_id, assignment.attempt)
        now_ms = self._around.clock.now_ms()
        spawn = self.state.spawn_of(key)
        report = reports.withdrawn(self.name, self._around.cluster, assignment, spawn, cause, now_ms)
        move = Moved(key=key, event=Event.STOP, assignment=assignment, cause=cause, time_ms=now_ms)
        self._ledger.record(move, report=report)
        self._quiet.set()

    # --- one run, from its start to its end

    async def _start(self, key: RunKey, span: Any) -> None:
        telling = self._spawn(self._tell_of_slow_start())
        try:
            started = await self._starting.start(key, span)
        finally:
            telling.cancel()
        if isinstance(started, reports.Exit):
            if started.cause is None:
                self._interrupted(
                    key, started, StopCause.GANG_BROKEN
                )  # if nobody wanted its stop, it was the others' silence
            self._finish(key, Event.NEVER_STARTED if started.cause is None else Event.START_FAILED, started)
            return
        self._begun(key, started, adopted=False)
        # What the placement asked for while the start was under way is due only now.
        self.reconcile()
        await self._watch(key, started)

    async def _tell_of_slow_start(self) -> None:
        """Silence would be taken for an executor that isn't there."""
        await self._around.clock.sleep_wall(SLOW_START_S)
        self.report()

    async def _watch_datasets(self) -> None:
        """Say so when others are kept here than were told last."""
        while True:
            await self._around.clock.sleep_wall(LOOK_PERIOD_S)
            if self._around.datasets.names() != self._datasets:
                self.report()

    async def _adopt(self, key: RunKey) -> list[Coroutine[Any, Any, None]]:
        """What has to go on with it."""
        run = self.state.runs[key]
        if run.state is State.WAITING:
            return []
        driven = await self._starting.adopt(key)
        if driven is None:
            if run.state is State.STOPPING:
                self._finish(key, Event.NEVER_STARTED, reports.Exit(self._around.clock.now_ms()))
            else:
                self._ledger.record(Moved(key=key, event=Event.NEVER_STARTED))
                del self._live[key]
            return []
        self._begun(key, driven, adopted=True)
        work = [self._watch(key, driven)]
        if run.state is State.CHECKPOINTING:
            work.append(self._saving.ask(key))
        elif run.state is State.STOPPING:
            save_first = stop_of(run, run.stop_cause or StopCause.CANCELLED).save_first and run.terminating_ms is None
            work.append(self._stop(key, save_first))
        if run.leaving or (run.assignment.application and run.state is not State.STOPPING):
            # Whoever wrote down that it holds other GPUs may have died before it was told so.
            work.append(self._rescale(key, list(run.leaving)))
        return work

    def _begun(self, key: RunKey, driven: Run, *, adopted: bool) -> None:
        live = self._live[key]
        live.run.set_result(driven)
        self._limit(key, self.state.runs[key].assignment.time_limit_s)
        self._saving.begin(key, driven)
        self._serving.begin(key, driven, adopted=adopted)

    async def _watch(self, key: RunKey, driven: Run) -> None:
        exit = await driven.ended()
        self._saving.hear_out(key, driven)
        run = self.state.runs[key]
        if exit.cause is FailureCause.UNKNOWN and run.machine_lost and not run.assignment.application:
            self._interrupted(key, exit, StopCause.NODE_LOST)  # its machine was restarted under it
        self._finish(key, reports.exit_event(self.state.runs[key], exit), exit)

    def _interrupted(self, key: RunKey, exit: reports.Exit, cause: StopCause) -> None:
        """Unless it was being stopped anyway, something else stopped it: it did not fail."""
        if self.state.runs[key].state is not State.STOPPING:
            sequence = self.state.sequence
            move = Moved(key=key, event=Event.STOP, cause=cause, time_ms=exit.time_ms, sequence=sequence)
            self._ledger.record(move)

    def _finish(self, key: RunKey, event: Event, exit: reports.Exit) -> None:
        run = self.state.runs[key]
        report = reports.ended(self.name, self._around.cluster, run, event, exit)
        span = self._spans.end(run, report.event)
        self._ledger.record(Moved(key=key, event=event, time_ms=exit.time_ms), report=report)
        self._ledger.sync()
        self._spans.ended(span, report.event)
        self._live.pop(key).end()
        self._quiet.set()
        self._ledger.compact_if_long()
        self._quarantine.look(run.held, f"after {key} ended")
        self.reconcile()

    # --- limits

    def _limit(self, key: RunKey, limit_s: float) -> None:
        """Hold a living run to its time limit, which may have been changed. The allocator's own stop comes later, if ever."""
        live, run = self._live.get(key), self.state.runs.get(key)
        if live is None or run is None or run.facts is None or run.assignment.application or live.limit_s == limit_s:
            return
        if live.limit is not None:
            live.limit.cancel()
        live.limit_s = limit_s
        clock = self._around.clock
        if live.began_ms is None:
            live.began_ms = clock.steady_ms() - max(0, clock.now_ms() - run.facts.started_ms)
        due_ms = live.began_ms + round(limit_s * 1000)
        live.limit = self._spawn(self._enforce_limit(key, due_ms)) if limit_s > 0 else None

    async def _enforce_limit(self, key: RunKey, due_ms: int) -> None:
        """`due_ms` by the steady clock: a system clock that is set meanwhile takes nothing from the job."""
        clock = self._around.clock
        while (left_ms := due_ms - clock.steady_ms()) > 0:
            await clock.sleep_until(clock.now_ms() + left_ms)
        run = self.state.runs[key]
        if run.state is not State.STOPPING:
            self._carry_out([stop_of(run, StopCause.TIME_LIMIT)])

    # --- stopping and scaling

    async def _stop(self, key: RunKey, save_first: bool) -> None:
        live = self._live.get(key)
        if live is None:
            return
        live.unwanted.set()
        driven = await live.run
        if driven is None:
            return
        if save_first:
            await self._saving.ask(key, before_stop=True)
        run = self.state.runs.get(key)
        if run is not None and run.assignment.drain_s > 0 and run.terminating_ms is None:
            await driven.rescale(())
            await driven.let_go(run.assignment.drain_s)
        if key in self.state.runs:
            self._ledger.record(Terminating(key=key, time_ms=self._around.clock.now_ms()))
            await driven.stop()

    async def _rescale(self, key: RunKey, given_up: list[int]) -> None:
        live = self._live.get(key)
        driven = None if live is None else await live.run
        if driven is not None and key in self._live:
            await self._serving.release(key, driven, given_up)

    async def _renew(self, key: RunKey, driven: Run) -> None:
        """An application that does not get to serve is ended; it comes back after its back-off."""
        log.warning("%s did not begin to serve in time and is started anew", key, extra={"node_id": self.name})
        self._spawn(driven.stop())

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        return self._around.nursery.spawn(work)

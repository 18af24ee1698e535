"""One node: its journal, its live runs, and the actions that bring it to what is placed there.

Owns: the order of things. A wish is journalled before it is carried out, and a fact is reported and journalled in one
append. Refuses: deciding (`core/reconcile.py`) and knowing how a process is run (`drivers/`). Any unexpected exception
ends the executor; its runs go on and are adopted by the next one. Read next: `loop.py`, `outbox.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from schemas.codec import encode_payload
from schemas.executions import StopCause
from schemas.messages import message
from schemas.placements import Assignment, NodePlaced
from schemas.registry import TYPE_OF, TYPES
from services.executor.core import reports
from services.executor.core.journal import (
    Acknowledged,
    Applied,
    Entry,
    LocalRun,
    Moved,
    NodeState,
    Opened,
    Reported,
    RunFacts,
    RunKey,
    Terminating,
    run_key,
)
from services.executor.core.lifecycle import Event, State, advance
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
from services.executor.shell.drivers.port import Driver, Order, Run, StartRefusedError
from services.executor.shell.journal_store import JournalStore
from services.executor.shell.nursery import Nursery
from services.executor.shell.outbox import Outbox, Parcel
from services.runtime.clock import Clock
from services.runtime.tracing import Span, Spans

SOURCE = "/gpugrid/executor"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all nodes of one executor share. `partition`: of the cluster's topics."""

    cluster: str
    partition: int
    clock: Clock
    driver: Driver
    outbox: Outbox
    nursery: Nursery
    spans: Spans


class _Live:
    """The driver's side of one run: known once the driver has started or adopted it, None if it could not."""

    def __init__(self) -> None:
        self.run: asyncio.Future[Run | None] = asyncio.get_running_loop().create_future()
        self.saving = asyncio.Lock()
        self.limit: asyncio.Task[Any] | None = None


class Node:
    """Open it, `recover`, `report`, then `apply` whatever is placed."""

    def __init__(self, name: str, store: JournalStore, around: Surroundings) -> None:
        self.name = name
        self.state = NodeState()
        self.refused = dict.fromkeys(Refusal, 0)
        self._store = store
        self._around = around
        self._placed: NodePlaced | None = None
        self._live: dict[RunKey, _Live] = {}
        self._quiet = asyncio.Event()

    # --- what the loop calls

    async def recover(self) -> None:
        """Read the journal, put unsent reports back on their way, and adopt or write off what a predecessor started."""
        self.state = NodeState.of(self._store.read())
        machine = self._around.driver.boot_id()
        survives = self.state.boot_id.startswith(f"{machine}/")
        boot_id = self.state.boot_id if survives else f"{machine}/{self._around.clock.wall_ms()}"
        self.state.fold(Opened(boot_id=boot_id, count=self.state.count + 1))
        self._compact()
        for report in list(self.state.reports.values()):
            self._post(report)
        for key in list(self.state.runs):
            await self._adopt(key)

    def report(self) -> None:
        """Say what is alive here."""
        now_ms = self._around.clock.now_ms()
        self._record(report=reports.node_reported(self.name, self._around.cluster, self.state, now_ms))

    def apply(self, placed: NodePlaced) -> Refusal | None:
        """Carry a placement out, or say why not. After a restart the one applied last is taken up again."""
        refused = refusal(self.state, placed)
        if refused is None:
            self._record(Applied(epoch=placed.epoch, sequence=placed.sequence))
        elif refused is Refusal.OUTDATED or self._placed is not None:
            self.refused[refused] += 1
            return refused
        self._placed = placed
        self._reconcile()
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
                self._record(Terminating(key=key, time_ms=self._around.clock.now_ms()))
                run.kill()

    def close(self) -> None:
        self._store.close()

    # --- actions

    def _reconcile(self) -> None:
        if self._placed is not None:
            self._carry_out(due(self.state, self._placed))

    def _carry_out(self, actions: list[Action]) -> None:
        begun: list[tuple[RunKey, Span]] = []
        for action in actions:
            match action:
                case Start(assignment):
                    begun.append(self._begin(assignment))
                case Withdraw(assignment, cause):
                    self._withdraw(assignment, cause)
                case RequestCheckpoint(key, request):
                    self._record(Moved(key=key, event=Event.CHECKPOINT, request=request))
                    self._spawn(self._save(key, str(request)))
                case Stop(key, cause, save_first):
                    stop_ms = self._around.clock.now_ms()
                    # Stopped on this process's way out it is not the placement's wish: an application comes back with it.
                    sequence = self.state.sequence if self._placed is not None else self.state.sequence - 1
                    self._record(Moved(key=key, event=Event.STOP, cause=cause, time_ms=stop_ms, sequence=sequence))
                    self._spawn(self._stop(key, save_first))
                case Rescale(key, gpus):
                    self._record(Moved(key=key, event=Event.RESCALED, gpus=list(gpus)))
                    self._spawn(self._rescale(key, gpus))
        if actions:
            # One flush for all of them: a start must not be forgotten, or it would be made again.
            self._store.sync()
        for key, span in begun:
            self._spawn(self._start(key, span))

    def _begin(self, assignment: Assignment) -> tuple[RunKey, Span]:
        assert self._placed is not None
        key = run_key(assignment.job_id, assignment.attempt)
        attributes: dict[str, str | int] = {
            "gpugrid.job.id": assignment.job_id,
            "gpugrid.node": self.name,
            "gpugrid.attempt": assignment.attempt,
        }
        span = self._around.spans.begin("start", assignment.traceparent, attributes)
        move = Moved(
            key=key,
            event=Event.START,
            assignment=assignment,
            sequence=self._placed.sequence,
            traceparent=assignment.traceparent,
        )
        self._record(move)
        self._live[key] = _Live()
        return key, span

    def _withdraw(self, assignment: Assignment, cause: StopCause) -> None:
        key = run_key(assignment.job_id, assignment.attempt)
        now_ms = self._around.clock.now_ms()
        report = reports.withdrawn(self.name, self._around.cluster, assignment, cause, now_ms)
        self._record(Moved(key=key, event=Event.STOP, assignment=assignment, cause=cause), report=report)
        self._quiet.set()

    # --- one run, from its start to its end

    async def _start(self, key: RunKey, span: Span) -> None:
        run = self.state.runs[key]
        try:
            driven = await self._around.driver.start(Order(self.name, run.assignment, run.spawn))
        except StartRefusedError as refused:
            span.end(error=refused.detail)
            exit = reports.Exit(self._around.clock.now_ms(), refused.cause, detail=refused.detail)
            self._live[key].run.set_result(None)
            self._finish(key, Event.START_FAILED, exit)
            return
        self._started(key, driven, span.traceparent)
        span.end()
        await self._watch(key, driven)

    async def _adopt(self, key: RunKey) -> None:
        run = self.state.runs[key]
        if run.state is State.WAITING:
            return
        self._live[key] = live = _Live()
        order = Order(self.name, run.assignment, run.spawn)
        driven = await self._around.driver.adopt(order, run.facts)
        if driven is None:
            live.run.set_result(None)
            if run.state is State.STOPPING:
                self._finish(key, Event.NEVER_STARTED, reports.Exit(self._around.clock.now_ms()))
            else:
                self._record(Moved(key=key, event=Event.NEVER_STARTED))
                del self._live[key]
            return
        if run.facts is None:
            self._started(key, driven, run.traceparent)
        else:
            self._bind(key, driven)
        if run.state is State.CHECKPOINTING:
            self._spawn(self._save(key, str(run.checkpoint_request)))
        elif run.state is State.STOPPING:
            save_first = stop_of(run, run.stop_cause or StopCause.CANCELLED).save_first and run.terminating_ms is None
            self._spawn(self._stop(key, save_first))
        self._spawn(self._watch(key, driven))

    def _started(self, key: RunKey, driven: Run, traceparent: str) -> None:
        known = msgspec.structs.replace(self.state.runs[key], facts=driven.facts)
        wall_ms = self._around.clock.wall_ms()
        report = reports.started(self.name, self._around.cluster, known, wall_ms=wall_ms, traceparent=traceparent)
        self._record(Moved(key=key, event=Event.STARTED, facts=driven.facts), report=report)
        self._bind(key, driven)
        # What the placement asked for while the start was under way is due only now.
        self._reconcile()

    def _bind(self, key: RunKey, driven: Run) -> None:
        live = self._live[key]
        live.run.set_result(driven)
        assignment = self.state.runs[key].assignment
        if assignment.time_limit_s > 0 and not assignment.application:
            live.limit = self._spawn(self._enforce_limit(key, driven.facts, assignment.time_limit_s))

    async def _watch(self, key: RunKey, driven: Run) -> None:
        exit = await driven.ended()
        self._finish(key, reports.exit_event(self.state.runs[key], exit), exit)

    def _finish(self, key: RunKey, event: Event, exit: reports.Exit) -> None:
        report = reports.ended(self.name, self._around.cluster, self.state.runs[key], event, exit)
        self._record(Moved(key=key, event=event), report=report)
        self._store.sync()
        live = self._live.pop(key)
        if live.limit is not None:
            live.limit.cancel()
        self._quiet.set()
        if self._store.oversized:
            self._compact()
        self._reconcile()

    async def _enforce_limit(self, key: RunKey, facts: RunFacts, limit_s: float) -> None:
        """A safety net: usually the allocator has placed a stop by then."""
        await self._around.clock.sleep_until(facts.started_ms + round(limit_s * 1000))
        run = self.state.runs[key]
        if run.state is not State.STOPPING:
            self._carry_out([stop_of(run, StopCause.TIME_LIMIT)])

    async def _save(self, key: RunKey, label: str) -> None:
        """Ask for a checkpoint and note what came of it."""
        live = self._live.get(key)
        if live is None:
            return
        driven = await live.run
        async with live.saving:
            run = self.state.runs.get(key)
            if driven is None or run is None or (run.state is State.STOPPING and run.checkpointed):
                return
            answer = await driven.checkpoint(run.assignment.checkpoint.wait_s)
            if key not in self.state.runs:
                return
            if answer is None:
                self._record(Moved(key=key, event=Event.UNANSWERED))
            else:
                self._answered(run, label, answer.fraction, answer.location)
        self._reconcile()

    def _answered(self, run: LocalRun, label: str, fraction: float, location: str) -> None:
        known = msgspec.structs.replace(run, saved_fraction=max(run.saved_fraction, fraction), saved_location=location)
        now_ms = self._around.clock.now_ms()
        report = reports.checkpointed(self.name, self._around.cluster, known, label=label, time_ms=now_ms)
        move = Moved(key=run.key, event=Event.ANSWERED, fraction=fraction, location=location)
        self._record(move, report=report)

    async def _stop(self, key: RunKey, save_first: bool) -> None:
        driven = await self._driven(key)
        if driven is None:
            return
        if save_first:
            await self._save(key, "stop")
        if key in self.state.runs:
            await self._terminate(key, driven)

    async def _driven(self, key: RunKey) -> Run | None:
        """The run once it is started; None if it could not be, or has ended before this task got its turn."""
        live = self._live.get(key)
        return None if live is None else await live.run

    async def _terminate(self, key: RunKey, driven: Run) -> None:
        self._record(Terminating(key=key, time_ms=self._around.clock.now_ms()))
        await driven.stop()

    async def _rescale(self, key: RunKey, gpus: tuple[int, ...]) -> None:
        driven = await self._driven(key)
        if driven is not None:
            await driven.rescale(gpus)

    # --- remembering and reporting

    def _record(self, entry: Entry | None = None, *, report: reports.Report | None = None) -> None:
        """Append and fold. The report comes first: if only a part gets to disk, it is made again under the same id."""
        entries: list[Entry] = [] if report is None else [self._reported(report)]
        if entry is not None:
            entries.append(entry)
        if isinstance(entry, Moved):
            advance(self.state.state_of(entry.key), entry.event)  # raises before a wrong entry gets into the journal
        self._store.append(entries)
        for each in entries:
            self.state.fold(each)
            if isinstance(each, Reported):
                self._post(each)

    def _reported(self, report: reports.Report) -> Reported:
        return Reported(
            number=self.state.reported + 1,
            id=report.id,
            key=report.key,
            type=TYPE_OF[type(report.event)],
            payload=msgspec.Raw(encode_payload(report.event)),
            time_ms=getattr(report.event, "time_ms", 0),
            traceparent=report.traceparent,
        )

    def _post(self, report: Reported) -> None:
        event = msgspec.json.decode(report.payload, type=TYPES[report.type][0])
        posted = message(
            event,
            key=report.key,
            id=report.id,
            source=SOURCE,
            time_ms=report.time_ms,
            traceparent=report.traceparent,
            partition=self._around.partition,
        )
        self._around.outbox.put(Parcel(posted, lambda: self._acknowledged(report.number)))

    def _acknowledged(self, number: int) -> None:
        acknowledged = Acknowledged(number=number)
        self._store.append([acknowledged])
        self.state.fold(acknowledged)

    def _compact(self) -> None:
        self._store.replace([self.state.snapshot()])

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        return self._around.nursery.spawn(work)

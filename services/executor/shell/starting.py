"""From a wish to a running process: journalled first, gangs together, and what a predecessor left is taken over.

Owns: the preflight of gangs, and the report that a run began. Refuses: what follows (`node.py`). Read next:
`gangs.py`, `drivers/port.py`.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from schemas.executions import FailureCause, JobPrepared
from schemas.placements import Assignment
from services.executor.core import reports
from services.executor.core.gang import Go, Mismatch, is_gang
from services.executor.core.journal import LocalRun, Moved, RunKey, run_key
from services.executor.core.lifecycle import Event
from services.executor.shell.drivers.port import NoLongerWantedError, Order, Run, StartRefusedError
from services.executor.shell.gangs import Gangs
from services.executor.shell.ledger import Ledger, Surroundings
from services.executor.shell.live import Live
from services.executor.shell.run_spans import RunSpans
from services.runtime.tracing import Span


class Starting:
    """`live` is the node's."""

    def __init__(
        self, ledger: Ledger, live: dict[RunKey, Live], around: Surroundings, gangs: Gangs, spans: RunSpans
    ) -> None:
        self._ledger = ledger
        self._live = live
        self._around = around
        self._gangs = gangs
        self._spans = spans

    def begin(self, assignment: Assignment, sequence: int) -> tuple[RunKey, Span]:
        """Journal the wish. The caller syncs, then calls `start` with what this returns."""
        key = run_key(assignment.job_id, assignment.attempt)
        span = self._spans.start(assignment)
        move = Moved(
            key=key,
            event=Event.START,
            assignment=assignment,
            sequence=sequence,
            traceparent=assignment.traceparent,
        )
        self._ledger.record(move)
        self._live[key] = Live()
        return key, span

    async def start(self, key: RunKey, span: Span) -> Run | reports.Exit:
        """The running job, reported as started; or how its start ended (without a cause: it was no longer wanted, or its gang did
        not come together)."""
        run = self._ledger.state.runs[key]
        order = Order(self._ledger.node, run.assignment, run.spawn, unwanted=self._live[key].unwanted)
        try:
            if is_gang(run.assignment):
                order = await self._together(order, self._live[key])
            driven = await self._around.driver.start(order)
        except NoLongerWantedError:
            span.end()
            self._live[key].run.set_result(None)
            return reports.Exit(self._around.clock.now_ms())
        except StartRefusedError as refused:
            span.end(error=refused.detail)
            self._live[key].run.set_result(None)
            return reports.Exit(self._around.clock.now_ms(), refused.cause, detail=refused.detail)
        self._started(key, driven, span.traceparent)
        span.end()
        return driven

    async def adopt(self, key: RunKey) -> Run | None:
        """What a predecessor started; None if it is certain that nothing ever ran."""
        run = self._ledger.state.runs[key]
        self._live[key] = live = Live()
        driven = await self._around.driver.adopt(Order(self._ledger.node, run.assignment, run.spawn), run.facts)
        if driven is None:
            live.run.set_result(None)
        elif run.facts is None:
            self._started(key, driven, run.traceparent)
        return driven

    async def _together(self, order: Order, live: Live) -> Order:
        """Wait for the other nodes. NoLongerWantedError: a stop or the end of patience came first. StartRefusedError: this one can't
        take part."""
        prepared = await self._around.driver.prepare(order)
        assignment = order.assignment

        def said() -> reports.Report:
            return reports.prepared(
                order.node,
                self._around.cluster,
                assignment,
                gpu_model=prepared.gpu_model,
                driver=prepared.driver,
                port=prepared.port,
                time_ms=self._around.clock.now_ms(),
            )

        mine = said().event
        assert isinstance(mine, JobPrepared)
        found = await self._gangs.complete(mine, assignment.nodes, live, lambda: self._ledger.pass_on(said()))
        if isinstance(found, Mismatch):
            raise StartRefusedError(FailureCause.PREFLIGHT, found.detail)
        if not isinstance(found, Go):
            raise NoLongerWantedError
        return replace(order, port=found.port)

    def _started(self, key: RunKey, driven: Run, traceparent: str) -> None:
        known: LocalRun = msgspec.structs.replace(self._ledger.state.runs[key], facts=driven.facts)
        wall_ms = self._around.clock.wall_ms()
        report = reports.started(
            self._ledger.node, self._around.cluster, known, wall_ms=wall_ms, traceparent=traceparent
        )
        self._ledger.record(Moved(key=key, event=Event.STARTED, facts=driven.facts), report=report)

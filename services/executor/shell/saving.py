"""Checkpoints and progress of the runs of one node: on request, at intervals, and what jobs do by themselves.

Owns: one request at a time per run, the interval's clock (any checkpoint sets it back), what a checkpoint costs by measurement, and
the reports. Refuses: choosing the interval (`core/checkpoint_interval.py`) and the conversation itself (the driver). Read next:
`node.py`, `docs/jobs.md`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from services.executor.core import reports
from services.executor.core.checkpoint_interval import interval_s
from services.executor.core.journal import LocalRun, Moved, RunKey
from services.executor.core.lifecycle import Event, State
from services.executor.core.reports import Progress
from services.executor.shell.drivers.port import Answer, Run
from services.executor.shell.ledger import Ledger, Surroundings
from services.executor.shell.live import Live
from services.executor.shell.run_spans import RunSpans


class Saving:
    """`live` is the node's; `reconcile` is called when a run may have become ready for more."""

    def __init__(
        self,
        ledger: Ledger,
        live: dict[RunKey, Live],
        around: Surroundings,
        reconcile: Callable[[], None],
        spans: RunSpans,
    ) -> None:
        self._ledger = ledger
        self._live = live
        self._around = around
        self._reconcile = reconcile
        self._spans = spans

    def begin(self, key: RunKey, driven: Run) -> None:
        """Listen to a run, and ask it at intervals: each node of a gang by itself, from its own start on."""
        live = self._live[key]
        live.keep(self._around.nursery.spawn(self._listen(key, driven)))
        assignment = self._ledger.state.runs[key].assignment
        if not assignment.application and self._interval_s(key) is not None:
            live.keep(self._around.nursery.spawn(self._at_intervals(key)))

    async def ask(self, key: RunKey, *, before_stop: bool = False) -> None:
        """Ask for a checkpoint and note what came of it."""
        live = self._live.get(key)
        if live is None:
            return
        driven = await live.run
        async with live.saving:
            run = self._ledger.state.runs.get(key)
            if driven is None or run is None or (run.state is State.STOPPING and run.checkpointed):
                return
            asked_ms = self._around.clock.now_ms()
            span = self._spans.checkpoint(run, before_stop=before_stop)
            wait_s = run.assignment.checkpoint.wait_s
            answer = await driven.checkpoint(wait_s)
            self._spans.answered(span, answer, ended=key not in self._ledger.state.runs, wait_s=wait_s)
            if key not in self._ledger.state.runs:
                return
            if answer is None:
                self._ledger.record(Moved(key=key, event=Event.UNANSWERED))
            else:
                label = "stop" if before_stop else str(run.saves + 1)
                cost_s = (self._around.clock.now_ms() - asked_ms) / 1000
                self._saved(run, Event.ANSWERED, label, answer, cost_s)
        self._reconcile()

    def hear_out(self, key: RunKey, driven: Run) -> None:
        """Take what a run has said and nobody heard, before its end is noted."""
        while (said := driven.unheard()) is not None:
            self._heard(key, said)

    async def _listen(self, key: RunKey, driven: Run) -> None:
        while True:
            said = await driven.news()
            if key in self._ledger.state.runs:
                self._heard(key, said)

    def _heard(self, key: RunKey, said: Answer | Progress) -> None:
        run = self._ledger.state.runs[key]
        if isinstance(said, Progress):
            now_ms = self._around.clock.now_ms()
            self._ledger.pass_on(reports.progressed(self._ledger.node, self._around.cluster, run, said, now_ms))
        elif (said.fraction, said.location) != (run.saved_fraction, run.saved_location) or run.saves == 0:
            # An executor that came later reads the newest answer again: it says nothing new.
            self._saved(run, Event.SAVED, str(run.saves + 1), said, 0.0)
            self._spans.saved(run, said)

    async def _at_intervals(self, key: RunKey) -> None:
        clock = self._around.clock
        asked_ms = 0
        while (run := self._ledger.state.runs.get(key)) is not None and run.facts is not None:
            every_s = self._interval_s(key)
            if every_s is None:
                return
            due_ms = max(run.facts.started_ms, run.saved_ms, asked_ms) + round(every_s * 1000)
            if clock.now_ms() < due_ms:
                await clock.sleep_until(due_ms)
                continue  # it may have saved meanwhile
            asked_ms = clock.now_ms()
            if run.state is State.RUNNING:
                self._ledger.record(Moved(key=key, event=Event.CHECKPOINT, request=run.checkpoint_request))
                await self.ask(key)

    def _interval_s(self, key: RunKey) -> float | None:
        run = self._ledger.state.runs[key]
        nodes = max(1, len(run.assignment.nodes))
        return interval_s(run.assignment.checkpoint, run.save_s, nodes, self._around.node_mtbf_s)

    def _saved(self, run: LocalRun, event: Event, label: str, answer: Answer, cost_s: float) -> None:
        fraction, location = run.safe_with(answer.fraction, answer.location)
        known = msgspec.structs.replace(run, saved_fraction=fraction, saved_location=location)
        now_ms = self._around.clock.now_ms()
        report = reports.checkpointed(self._ledger.node, self._around.cluster, known, label=label, time_ms=now_ms)
        move = Moved(
            key=run.key,
            event=event,
            fraction=answer.fraction,
            location=answer.location,
            time_ms=now_ms,
            cost_s=cost_s,
        )
        self._ledger.record(move, report=report)

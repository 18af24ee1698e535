"""What a node remembers and what it says: one append per fact, entry and report together.

Owns: the journal's order (the report first: if only a part gets to disk, it is made again under the same id), the fold, and the way
of a report to the outbox. Refuses: deciding anything. Read next: `core/journal.py`, `node.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from schemas.codec import encode_payload
from schemas.messages import message
from schemas.records import Message
from schemas.registry import TYPE_OF, TYPES
from services.executor.core import reports
from services.executor.core.journal import Acknowledged, Entry, Moved, NodeState, Opened, Reported
from services.executor.core.lifecycle import advance
from services.executor.shell.dataset_folder import DatasetFolder
from services.executor.shell.device_facts import GpuMemory
from services.executor.shell.drivers.port import Driver
from services.executor.shell.journal_store import JournalStore
from services.executor.shell.nursery import Nursery
from services.executor.shell.outbox import Outbox, Parcel
from services.runtime.clock import Clock
from services.runtime.tracing import Spans

SOURCE = "/gpugrid/executor"
PASSING_WAITING_MAX = 1_000
"""Reports on their way beyond which progress is not sent: the broker is away, and the next progress says more."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all nodes of one executor share. `partition`: of the cluster's topics; `node_mtbf_s`: what is at risk."""

    cluster: str
    partition: int
    clock: Clock
    driver: Driver
    outbox: Outbox
    nursery: Nursery
    spans: Spans
    memory: GpuMemory
    node_mtbf_s: float
    datasets: DatasetFolder


class Ledger:
    """One node's journal and its voice. `state` is the fold of everything recorded."""

    def __init__(self, node: str, store: JournalStore, around: Surroundings) -> None:
        self.node = node
        self.state = NodeState()
        self._store = store
        self._around = around

    def open(self) -> None:
        """Read the journal and put unsent reports back on their way."""
        self.state = NodeState.of(self._store.read())
        machine = self._around.driver.boot_id()
        survives = self.state.boot_id.startswith(f"{machine}/")
        boot_id = self.state.boot_id if survives else f"{machine}/{self._around.clock.wall_ms()}"
        self.state.fold(Opened(boot_id=boot_id, count=self.state.count + 1))
        self.compact()
        for report in list(self.state.reports.values()):
            self._post(report)

    def record(self, entry: Entry | None = None, *, report: reports.Report | None = None) -> None:
        """Append and fold, and send the report."""
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

    def pass_on(self, report: reports.Report) -> None:
        """Send without remembering: what is outdated by the next of its kind."""
        if self._around.outbox.waiting < PASSING_WAITING_MAX:
            time_ms = getattr(report.event, "time_ms", 0)
            posted = self._message(report.event, report.key, report.id, time_ms, report.traceparent)
            self._around.outbox.put(Parcel(posted, _nothing))

    def sync(self) -> None:
        self._store.sync()

    def compact(self) -> None:
        self._store.replace([self.state.snapshot()])

    def compact_if_long(self) -> None:
        if self._store.oversized:
            self.compact()

    def close(self) -> None:
        self._store.close()

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
        posted = self._message(event, report.key, report.id, report.time_ms, report.traceparent)
        self._around.outbox.put(Parcel(posted, lambda: self._acknowledged(report.number)))

    def _message(self, event: object, key: str, id: str, time_ms: int, traceparent: str) -> Message:
        return message(
            event,  # type: ignore[arg-type]
            key=key,
            id=id,
            source=SOURCE,
            time_ms=time_ms,
            traceparent=traceparent,
            partition=self._around.partition,
        )

    def _acknowledged(self, number: int) -> None:
        acknowledged = Acknowledged(number=number)
        self._store.append([acknowledged])
        self.state.fold(acknowledged)


def _nothing() -> None:
    """Nobody waits for it."""

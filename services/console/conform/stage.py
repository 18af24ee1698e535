"""The allocator's side, played by hand: placements with rising numbers out, reports in, waiting with a deadline.

Owns: one node's placements in an epoch above everything it has seen, and the wait. Refuses: other nodes. Read next: `scenarios.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from schemas.codec import Envelope
from schemas.executions import JobStarted
from schemas.messages import message
from schemas.placements import Assignment, Desired, NodePlaced
from schemas.records import Message
from services.console.conform.reports import Finding, Judge
from services.console.facts import readable
from services.console.read import POLL_RECORDS_MAX
from services.runtime.bus.port import Bus, Consumer, Producer
from services.runtime.clock import Clock

SOURCE = "/gpugrid/conform"
POLL_WAIT_S = 0.2
E = TypeVar("E")


class Missing(Exception):  # noqa: N818 - not an error of this program: the executor did not do what was expected
    """Something did not come in time; the scenario ends there."""


class Stage:
    """`open` first. `findings` collects what the scenario and the judge noticed."""

    def __init__(self, bus: Bus, clock: Clock, judge: Judge, pool: str, wait_s: float, simulated: bool) -> None:
        self.simulated = simulated
        self.judge = judge
        self._bus = bus
        self._clock = clock
        self._pool = pool
        self._wait_s = wait_s
        self._epoch = 1
        self._tag = f"{clock.wall_ms():x}"
        self._sequence = 0
        self._seen: list[Envelope] = []
        self._producer: Producer | None = None
        self._reader: Consumer | None = None

    async def open(self) -> None:
        """Find the newest placement of the node, and listen from now on."""
        await self._newest()
        self._producer = self._bus.producer("gpugrid-conform")
        await self._producer.start()
        part = ("executions", self.judge.partition)
        self._reader = self._bus.reader("gpugrid-conform", [part])
        await self._reader.start()
        await self._reader.seek(part, (await self._reader.end_offsets([part]))[part])

    async def close(self) -> None:
        """Leave the node with nothing to do."""
        if self._producer is not None:
            await self.place()
            await self._producer.stop()
        if self._reader is not None:
            await self._reader.stop()

    async def place(self, *assignments: Assignment, epoch: int | None = None, sequence: int | None = None) -> int:
        """The node's whole desired state. `epoch` and `sequence`: of an older one, sent late."""
        if sequence is None:
            self._sequence += 1
        number = self._sequence if sequence is None else sequence
        if epoch is None and sequence is None:
            self.judge.placed.update({(each.job_id, each.attempt): each for each in assignments})
        placed = NodePlaced(
            node=self.judge.node,
            cluster=self.judge.cluster,
            pool=self._pool,
            sequence=number,
            epoch=self._epoch if epoch is None else epoch,
            time_ms=self._clock.now_ms(),
            assignments=list(assignments),
        )
        identity = f"conform/{placed.epoch}/{number}/{self._clock.wall_ms()}"
        await self._send(
            message(
                placed,
                key=placed.node,
                id=identity,
                source=SOURCE,
                time_ms=placed.time_ms,
                partition=self.judge.partition,
            )
        )
        return number

    async def place_garbage(self) -> None:
        """A record on `placements` that nobody can read."""
        await self._send(Message("placements", b"garbage", b"{", (), self.judge.partition))

    @property
    def numbers(self) -> tuple[int, int]:
        """Epoch and sequence of the newest placement sent."""
        return self._epoch, self._sequence

    async def until(self, kind: type[E], job_id: str, *, attempt: int = 1, what: str = "") -> E:
        """The report of this kind about the attempt. Raises Missing."""
        found = await self.until_any(lambda event: isinstance(event, kind) and _about(event, job_id, attempt))
        if found is None:
            raise Missing(what or f"no {kind.__name__} about {job_id}/{attempt} within {self._wait_s:.0f} s")
        return found  # type: ignore[no-any-return]

    async def until_any(self, matches: Callable[[Any], bool]) -> Any:
        """The first event that matches, or None after the wait."""
        until_s = self._clock.wall_s() + self._wait_s
        while True:
            for envelope in self._seen:
                if matches(envelope.event):
                    return envelope.event
            if self._clock.wall_s() >= until_s:
                return None
            assert self._reader is not None
            records = await self._reader.poll(max_records=POLL_RECORDS_MAX, timeout_s=POLL_WAIT_S)
            self._seen += self.judge.take(records)

    async def counted(self, kind: type, job_id: str, many: int) -> bool:
        """Whether that many such reports come within the wait."""
        return await self.until_any(lambda _: self.count(kind, job_id) >= many) is not None

    def count(self, kind: type, job_id: str, *, attempt: int = 1) -> int:
        return sum(isinstance(each.event, kind) and _about(each.event, job_id, attempt) for each in self._seen)

    def first(self, kind: type, job_id: str) -> int:
        """Place of the first such report among all seen."""
        places = [
            number
            for number, each in enumerate(self._seen)
            if isinstance(each.event, kind) and _about(each.event, job_id)
        ]
        return places[0] if places else -1

    async def settled(self, *beside: Assignment) -> None:
        """Return when the executor has carried out everything placed so far: a job placed now has started. Raises Missing."""
        marker = self.job(f"conform-marker-{self._sequence}", gpu=1, run_s=600.0)
        await self.place(*beside, marker)
        await self.until(JobStarted, marker.job_id, what="it carries out no newer placement any more")
        await self.place(*beside)

    def expect(self, rule: str, holds: bool, detail: str) -> None:
        if not holds:
            self.judge.findings.append(Finding(rule, detail))

    # --- assignments

    def job(self, name: str, *, gpu: int = 0, run_s: float = 0.2, exit_code: int = 0, **changed: Any) -> Assignment:
        """A job that takes `run_s` seconds and ends with `exit_code`, under an id that no executor has seen."""
        fields: dict[str, Any] = {"desired": Desired.RUN, "gpus": [gpu], "attempt": 1}
        if self.simulated:
            labels = {"simulated/run_s": msgspec.json.encode({"1": run_s, "2": run_s}).decode()}
            if exit_code:
                labels["simulated/fails_at"] = "0.5"
            fields |= {"template": "simulated", "labels": labels}
        else:
            fields["command"] = ["sh", "-c", f"sleep {run_s}; exit {exit_code}"]
        return Assignment(job_id=f"{name}-{self._tag}", **(fields | changed))

    async def _send(self, one: Message) -> None:
        assert self._producer is not None
        await self._producer.send(one)

    async def _newest(self) -> None:
        part = ("placements", self.judge.partition)
        reader = self._bus.reader("gpugrid-conform", [part])
        await reader.start()
        try:
            end = (await reader.end_offsets([part]))[part]
            while await reader.position(part) < end:
                for record in await reader.poll(max_records=POLL_RECORDS_MAX, timeout_s=POLL_WAIT_S):
                    envelope = readable(record) if record.value is not None else None
                    placed = None if envelope is None else envelope.event
                    if isinstance(placed, NodePlaced) and placed.node == self.judge.node:
                        self._epoch = max(self._epoch, placed.epoch + 1)
        finally:
            await reader.stop()


def _about(event: Any, job_id: str, attempt: int | None = None) -> bool:
    return getattr(event, "job_id", None) == job_id and attempt in (None, event.attempt)

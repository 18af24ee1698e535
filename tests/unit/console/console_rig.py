"""A console in front of a memory bus on which a real allocator has decided: commands meet real records, not hand-made ones."""

from __future__ import annotations

import asyncio
import json
import weakref
from typing import Any

from typer.testing import CliRunner

from schemas.base import Event
from schemas.decisions import Covered
from schemas.messages import message
from schemas.records import Message, Record
from schemas.registry import topic_of
from services.allocator.core.config import Policy
from services.allocator.core.decide import INPUT_TOPICS, Settings
from services.allocator.shell.owner import ClusterOwner
from services.console.app import build_app
from services.console.session import Session
from services.runtime.bus.memory import MemoryBus
from services.runtime.clock import WallClock
from tests import build

SETTINGS = Settings(policy=Policy(), memory_mib={}, code_version="rig", writer="rig")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class StillClock(WallClock):
    """Domain time stands where a test puts it; wall time passes."""

    def __init__(self, at_ms: int) -> None:
        super().__init__()
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return self.at_ms


class Rig:
    """`give` publishes events and lets the allocator decide on them; `run` runs one command."""

    def __init__(self) -> None:
        self.bus = MemoryBus(build.topic_partitions())
        self.clock = StillClock(build.START_MS)
        self.session = Session(make_bus=lambda _: self.bus, make_clock=lambda: self.clock, run_root=None)
        self.owner: ClusterOwner | None = None
        self._runner = CliRunner()
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, self._loop.close)

    def take_over(self) -> Rig:
        async def work() -> None:
            producer = self.bus.producer("rig")
            await producer.start()
            self.owner = ClusterOwner(self.bus, self.clock, build.catalog(), build.CLUSTER, SETTINGS, producer, "rig")
            await self.owner.take_over()
            await self._quiet()

        self._loop.run_until_complete(work())
        return self

    def snapshot(self) -> Rig:
        """Have the allocator write one now."""

        async def work() -> None:
            assert self.owner is not None
            self.owner.projections.start()
            await self.owner.snapshot()
            await self._quiet()

        self._loop.run_until_complete(work())
        return self

    async def _quiet(self) -> None:
        """Everything is on the bus and no task is left while commands run on loops of their own."""
        assert self.owner is not None
        await self.owner.projections.drained()
        await self.owner.projections.stop()

    def give(self, *events: Event, at_ms: int | None = None) -> Rig:
        """Publish to their topics, then one decision over them in canonical order."""
        if at_ms is not None:
            self.clock.at_ms = at_ms
        if self.owner is None:
            self.take_over()
        canonical = sorted(events, key=lambda event: INPUT_TOPICS.index(topic_of(event)))
        self._loop.run_until_complete(self._give(canonical))
        return self

    async def _give(self, events: list[Event]) -> None:
        assert self.owner is not None
        inputs, covered = [], {}
        for event in events:
            key = getattr(event, "job_id", None) or getattr(event, "app_id", None) or getattr(event, "node", "c0")
            place = await self._send(event, key)
            inputs.append(build.decision_input(event, place, traceparent=TRACEPARENT))
            covered[topic_of(event)] = place + 1
        covers = [
            Covered(topic=topic, partition=0, next_offset=covered[topic]) for topic in INPUT_TOPICS if topic in covered
        ]
        self.owner.projections.start()
        await self.owner.decide(inputs, covers)
        await self._quiet()

    def publish(self, *events: Event, key: str | None = None, partition: int | None = None) -> Rig:
        """Only publish: nobody decides."""

        async def work() -> None:
            for event in events:
                name = key or getattr(event, "job_id", None) or getattr(event, "app_id", None) or event.node
                await self._send(event, name, partition)

        asyncio.run(work())
        return self

    def publish_raw(self, raw: Message) -> Rig:
        async def work() -> None:
            producer = self.bus.producer("rig")
            await producer.start()
            await producer.send(raw)

        asyncio.run(work())
        return self

    async def _send(self, event: Event, key: str, partition: int | None = 0) -> int:
        producer = self.bus.producer("rig")
        await producer.start()
        keyed = topic_of(event) in ("job-events", "job-status", "node-telemetry", "dead-letters")
        delivery = await producer.send(
            message(
                event,
                key=key,
                id=f"{key}/{type(event).__name__}",
                source="/test",
                time_ms=self.clock.at_ms,
                traceparent=TRACEPARENT,
                partition=None if keyed else partition,
            )
        )
        return delivery.offset

    def run(self, *words: str, code: int = 0, stdin: str | None = None) -> str:
        """Standard output of one command, which must end with `code`."""
        result = self._runner.invoke(build_app(), list(words), obj=self.session, input=stdin, env={"COLUMNS": "250"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, f"exit code {result.exit_code}: {result.stdout} {result.stderr}"
        self.stderr = result.stderr
        return result.stdout

    def json(self, *words: str, code: int = 0) -> Any:
        """What a command says with --json."""
        return json.loads(self.run(words[0], "--json", *words[1:], code=code))

    def json_of(self, group: str, command: str, *words: str) -> Any:
        """What a command of a group says with --json."""
        return json.loads(self.run(group, command, "--json", *words))

    def records(self, topic: str) -> list[Record]:
        return self.bus.records(topic)


def contended() -> Rig:
    """Two nodes of 8 GPUs; `big` holds both, `small` waits for it, `web` an application that has not got anything yet."""
    rig = Rig()
    rig.give(build.node("n00", order=0), build.node("n01", order=1))
    rig.give(build.accepted("big", 16), build.forecast("big", {16: 7200}))
    rig.give(build.started("big", "n00", build.START_MS + 1000), build.started("big", "n01", build.START_MS + 1000))
    rig.give(
        build.accepted("small", 2, 4, priority=7, user="bob", team="red", at_ms=build.START_MS + 60_000),
        build.forecast("small", {2: 1800, 4: 1000}),
        at_ms=build.START_MS + 60_000,
    )
    return rig

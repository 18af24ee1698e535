"""Run a Handler under faust: agents take raw bytes, the handler answers, answers are acknowledged, then offsets commit.

Owns: the thin layer between faust's streams and `handler.Handler` (the same handler runs under `hop.Hop` in simulation).
One agent per input topic; it handles whatever has arrived (one record when idle, up to BATCH_RECORDS_MAX under load), so
nothing ever waits for a batch to fill. (`take_events` would poll a timer a thousand times a second for that.) Records are
acknowledged by hand once their answers are: processing is at least once. Anything unexpected ends the process at once,
because faust would log it, acknowledge the record and go on. Refuses: tables, `exactly_once`, faust's web server, its
leader topic and topic creation. Read next: `faust_transport.py`, `hop.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import faust
from faust.app.base import BootStrategy
from yarl import URL

from services.runtime.bus.kafka import KafkaBus
from services.runtime.bus.kafka_retry import AssignmentPace
from services.runtime.bus.port import Message, OffsetGoneError, Record, TopicPartition, check_sizes
from services.runtime.clock import Clock
from services.runtime.faust_transport import GpugridTransport
from services.runtime.handler import TICK_PERIOD_S, Handler, Now, Owner, Savable
from services.runtime.hop import DeadLetter, Handle, Observe, Rebuilder, answers, handled
from services.runtime.process import EXIT_FAILED
from services.runtime.saved_state import SavedState

BATCH_RECORDS_MAX = 200
"""Records handled before their answers are sent: bounds what is repeated after a crash and the pause between heartbeats."""
BUFFER_RECORDS_MAX = 2_000
"""Records waiting in one agent's queue before faust stops fetching its partitions."""
COMMIT_INTERVAL_S = 0.5
"""Acknowledged records that a crash may repeat: half a second's worth."""
SAVED_FILE = "state.pickle"
SAVE_EVERY_RECORDS = 50_000
"""What a restart reads at most, 0.1 ms each; saving costs the process 20 ms, and its child a second or two."""
GROUP_ERRORS_MAX = 5
"""Group errors between two assignments; with more the process ends (another one uses its instance id, say)."""
SWITCH_INTERVAL_S = 0.0005
"""faust consumes in a second thread. With Python's 5 ms between forced switches every socket write of one thread could wait
5 ms for the other: measured 58 ms against 16 ms per hop at 300/s on busy cores."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FaustConfig:
    """`group` is the consumer group; `instance_id` makes the member static, so a restart returns to its partitions at once."""

    bootstrap: str
    group: str
    instance_id: str
    data_dir: Path


class _NoWeb(BootStrategy):
    enable_web = False


class _App(faust.App):
    BootStrategy = _NoWeb


class FaustHop:
    """One handler under one faust app. Make it inside the running loop; `run` returns after `stop` is set."""

    def __init__(
        self,
        handler: Handler,
        config: FaustConfig,
        clock: Clock,
        *,
        dead_letter: DeadLetter | None = None,
        handle: Handle = handled,
        observe: Observe | None = None,
        fail: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._handler = handler
        self._config = config
        self._clock = clock
        self._dead_letter = dead_letter
        self._handle = handle
        self._observe = observe
        self._fail = fail or end_process
        self._bus = KafkaBus(config.bootstrap)
        self._saved = SavedState(config.data_dir / SAVED_FILE, handler) if isinstance(handler, Savable) else None
        self._unsaved = 0
        self._rebuilder = Rebuilder(self._bus, handler, config.instance_id, self._saved)
        self._rebuilt = asyncio.Event()
        self._group_errors = 0
        self._pace = AssignmentPace(config.group, config.instance_id)
        # Handling and handing over to the producer happen together, so that answers leave in the order of folding.
        self._in_order = asyncio.Lock()
        self.app = self._new_app()

    async def run(self, stop: asyncio.Event) -> None:
        """Start, process until `stop` is set, stop with everything acknowledged committed."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        await self._check_offsets()
        self._unsaved += await self._rebuilder.catch_up()
        await self.app.start()
        ticking = asyncio.create_task(self._tick_until(stop))
        try:
            await self.app.wait_first(stop.wait())
            if self.app.crashed:
                self._fail(self.app.crash_reason or RuntimeError("faust crashed without saying why"))
        finally:
            ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticking
            await self.app.stop()
            await self._rebuilder.stop()

    def _new_app(self) -> faust.App:
        config = self._config
        app = _App(
            config.group,
            broker=[URL(f"kafka://{address}") for address in config.bootstrap.split(",")],
            store="memory://",
            datadir=config.data_dir,
            consumer_group_instance_id=config.instance_id,
            broker_client_id=config.instance_id,
            broker_commit_interval=COMMIT_INTERVAL_S,
            processing_guarantee="at_least_once",
            stream_buffer_maxsize=BUFFER_RECORDS_MAX,
            stream_wait_empty=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            key_serializer="raw",
            value_serializer="raw",
            web_enabled=False,
            autodiscover=False,
        )
        app.transport = GpugridTransport(app.conf.broker_consumer, app)
        app.producer_transport = GpugridTransport(app.conf.broker_producer, app)
        for topic in self._handler.inputs:
            self._add_agent(app, topic)
        app.on_partitions_revoked.connect(self._revoked, weak=False)
        app.on_partitions_assigned.connect(self._assigned, weak=False)
        return app

    def _add_agent(self, app: faust.App, topic: str) -> None:
        channel = app.topic(topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")

        async def consume(stream: Any) -> None:
            try:
                await self._consume(stream)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._fail(error)
                raise

        app.agent(channel, name=f"{self._config.group}.{topic}")(consume)

    async def _consume(self, stream: Any) -> None:
        # noack: records are acknowledged below, when their answers are; faust would do it as soon as we ask for the next.
        stream = stream.noack()
        batch: list[Any] = []
        async for event in stream.events():
            batch.append(event)
            if len(batch) < BATCH_RECORDS_MAX and not stream.channel.queue.empty():
                continue
            await self._process(stream, batch)
            batch = []

    async def _process(self, stream: Any, events: Sequence[Any]) -> None:
        await self._rebuilt.wait()
        records = [to_record(event.message) for event in events]
        async with self._in_order:
            sent = await self._hand_over(answers(self._handler, self._handle, self._dead_letter, records, self._now))
        await _acknowledged(sent)
        self._unsaved += len(records)
        for event in events:
            await stream.ack(event)
        if self._observe is not None:
            self._observe(records, self._now())

    async def _hand_over(self, messages: Sequence[Message]) -> list[Any]:
        check_sizes(messages)
        send = self.app.producer.send
        return [
            await send(message.topic, message.key, message.value, message.partition, None, list(message.headers))
            for message in messages
        ]

    @property
    def ready(self) -> bool:
        """Whether partitions are assigned and the state is rebuilt."""
        return self._rebuilt.is_set() and self.app.started and not self.app.rebalancing

    @property
    def records_recovered(self) -> int:
        """Records that the state has been rebuilt from so far."""
        return self._rebuilder.read

    def lag(self) -> dict[TopicPartition, int]:
        """Records of the assigned partitions not yet handled, as far as faust knows."""
        ends, read = self.app.monitor.tp_end_offsets, self.app.monitor.tp_read_offsets
        return {(part.topic, part.partition): max(0, end - read.get(part, end - 1) - 1) for part, end in ends.items()}

    async def _tick_until(self, stop: asyncio.Event) -> None:
        try:
            while not stop.is_set():
                await self._clock.sleep_wall(TICK_PERIOD_S)
                async with self._in_order:
                    sent = await self._hand_over(self._handler.tick(self._now()))
                    self._save()
                await _acknowledged(sent)
                await self._look_at_group()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)
            raise

    def _save(self) -> None:
        """Between two records, and only what is whole."""
        if (
            self._saved is None
            or self._saved.busy()
            or self._unsaved < SAVE_EVERY_RECORDS
            or not self._rebuilt.is_set()
        ):
            return
        self._saved.save()  # what fails has been told, and is tried again with as many records
        self._unsaved = 0

    async def _look_at_group(self) -> None:
        consumer: Any = self.app.consumer
        error = await consumer.take_coordination_error()
        if error is None:
            return
        self._group_errors += 1
        if self._group_errors > GROUP_ERRORS_MAX:
            raise error
        log.warning("group %s: %r, joining again", self._config.group, error)

    def _now(self) -> Now:
        return Now(domain_ms=self._clock.now_ms(), wall_ms=self._clock.wall_ms())

    async def _revoked(self, *_: Any, **__: Any) -> None:
        self._rebuilt.clear()
        if isinstance(self._handler, Owner):
            self._handler.own(frozenset())

    async def _assigned(self, *sent: Any, **__: Any) -> None:
        # Whoever owned these partitions before has published meanwhile: fold it before the next record.
        try:
            self._pace.assigned(self._clock.wall_s())
            self._unsaved += await self._rebuilder.catch_up()
        except Exception as error:
            self._fail(error)
            raise
        if isinstance(self._handler, Owner):
            *_, assigned = sent  # after the app: all partitions that are assigned now
            self._handler.own(frozenset(part.partition for part in assigned))
        self._group_errors = 0
        self._rebuilt.set()

    async def _check_offsets(self) -> None:
        """faust can't be told to refuse a removed offset, so look before it starts."""
        for topic in self._handler.inputs:
            partitions = [(topic, number) for number in range(await self._bus.partition_count(topic))]
            committed = await self._bus.group_offsets(self._config.group, partitions)
            reader = self._bus.reader(f"{self._config.instance_id}-check", partitions)
            await reader.start()
            starts = await reader.beginning_offsets(partitions)
            await reader.stop()
            for partition, offset in committed.items():
                if offset < starts[partition]:
                    raise OffsetGoneError(
                        f"group {self._config.group} stands at offset {offset} of {topic}/{partition[1]}, but retention has "
                        f"removed everything below {starts[partition]}: events are lost; reset the group to go on"
                    )


def to_record(message: Any) -> Record:
    """The record of a faust message; headers as they came, not as the dict faust makes of them."""
    headers = tuple((name, value if value is not None else b"") for name, value in message.headers or ())
    return Record(
        message.topic,
        message.partition,
        message.offset,
        message.key,
        message.value,
        headers,
        round((message.timestamp or 0) * 1000),
    )


async def _acknowledged(sent: Sequence[Any]) -> None:
    if sent:
        await asyncio.wait(sent)
        for future in sent:
            future.result()


def end_process(error: BaseException) -> NoReturn:
    """Leave without stopping anything in order: what isn't committed is repeated, and nothing else may be acknowledged."""
    log.critical("ending the process: %r", error, exc_info=error)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(EXIT_FAILED)

"""A handler under faust on a real Kafka: bytes in and out, nothing lost by kills, errors never acknowledged silently."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deploy.local.broker import EmbeddedBroker
from schemas.records import Mark, Message, Now, Record
from services.runtime import faust_hop
from services.runtime.bus.kafka import KafkaBus
from services.runtime.clock import WallClock
from services.runtime.faust_hop import FaustConfig, FaustHop
from services.runtime.process import EXIT_FAILED
from tests.contract.faust_echo import Echo
from tests.contract.kafka_topics import create_topics, delete_records

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0


class Echoing:
    """The echo process with its topics, a producer and a reader of its answers."""

    def __init__(self, bootstrap: str, data_dir: Path) -> None:
        self.bootstrap = bootstrap
        suffix = uuid4().hex[:8]
        self.incoming, self.outgoing, self.dead = f"in-{suffix}", f"out-{suffix}", f"dead-{suffix}"
        self.group = f"echo-{suffix}"
        self.bus = KafkaBus(bootstrap)
        self._data_dir = data_dir
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        await create_topics(self.bootstrap, {self.incoming: 3, self.outgoing: 3, self.dead: 1})
        self.producer = self.bus.producer("test")
        await self.producer.start()
        self.answers = self.bus.reader("test", [(self.outgoing, number) for number in range(3)])
        await self.answers.start()

    async def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        await self.answers.stop()
        await self.producer.stop()

    def spawn(self) -> subprocess.Popen[bytes]:
        topics = [self.incoming, self.outgoing, self.dead, self.group, str(self._data_dir)]
        command = [sys.executable, "-m", "tests.contract.faust_echo", self.bootstrap, *topics]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=(self._data_dir / "log").open("ab"))
        return self.process

    async def send(self, first: int, last: int) -> None:
        messages = [
            Message(self.incoming, b"k%d" % n, b"%d" % n, (("n", b"%d" % n),), n % 3) for n in range(first, last)
        ]
        await self.producer.send_all(messages)

    async def answered(self, keys: int, seen: list[Record], *, again: bool = False) -> None:
        """`again`: a process that ends itself meanwhile is started anew, as its supervisor would."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + DEADLINE_S
        while len({record.key for record in seen}) < keys:
            if again and self.process is not None and self.process.poll() is not None:
                self.spawn()
            assert loop.time() < until_s, f"{len({record.key for record in seen})} of {keys} answered"
            seen.extend(await self.answers.poll(max_records=500, timeout_s=0.5))


@pytest.fixture
async def echo(kafka: str, tmp_path: Path) -> AsyncIterator[Echoing]:
    echoing = Echoing(kafka, tmp_path)
    await echoing.start()
    yield echoing
    await echoing.stop()


async def ended(process: subprocess.Popen[bytes]) -> int:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + DEADLINE_S
    while process.poll() is None:
        assert loop.time() < until_s, "the process does not end"
        await asyncio.sleep(0.05)
    return process.returncode


async def test_bytes_headers_partitions_and_tombstones_pass_and_sigterm_is_clean(echo: Echoing):
    process = echo.spawn()
    headers = (("ce_id", b"1"), ("twice", b"a"), ("twice", b"b"))
    await echo.producer.send_all(
        [Message(echo.incoming, b"x", b"\xff\x00", headers, 2), Message(echo.incoming, b"x", None, (), 2)]
    )
    await echo.send(0, 300)
    seen: list[Record] = []
    await echo.answered(301, seen)
    mine = [record for record in seen if record.key == b"x"]
    assert [(record.value, record.partition) for record in mine] == [(b"\xff\x00", 2), (None, 2)]
    assert mine[0].headers[:3] == headers
    for partition in range(3):
        values = [int(record.value or b"-1") for record in seen if record.partition == partition and record.key != b"x"]
        assert values == sorted(values)
    process.send_signal(signal.SIGTERM)
    assert await ended(process) == 0
    ends = await echo.answers.end_offsets([(echo.incoming, number) for number in range(3)])
    assert await echo.bus.group_offsets(echo.group, sorted(ends)) == ends, "a clean stop commits what it has answered"


async def test_kill_9_at_random_loses_nothing_and_repeats_the_same_answers(echo: Echoing):
    seen: list[Record] = []
    for life in range(3):
        process = echo.spawn()
        await echo.send(life * 200, life * 200 + 200)
        await echo.answered(life * 200 + 40, seen)
        process.kill()
        process.wait(10)
    echo.spawn()
    await echo.answered(600, seen)
    numbers: dict[bytes | None, set[str | None]] = {}
    for record in seen:
        numbers.setdefault(record.key, set()).add(record.header("number"))
    assert {key for key, found in numbers.items() if len(found) != 1} == set()
    assert len({next(iter(found)) for found in numbers.values()}) == 600, "state was rebuilt: no number was given twice"


async def test_an_error_becomes_a_dead_letter_or_ends_the_process_unacknowledged(echo: Echoing):
    process = echo.spawn()
    await echo.producer.send(Message(echo.incoming, b"a", b"bad", (), 0))
    await echo.send(3, 4)
    dead = echo.bus.reader("dead", [(echo.dead, 0)])
    await dead.start()
    assert [record.value for record in await dead.poll(max_records=5, timeout_s=DEADLINE_S)] == [b"bad"]
    await dead.stop()
    poison = await echo.producer.send(Message(echo.incoming, b"a", b"poison", (), 0))
    assert await ended(process) == EXIT_FAILED
    committed = await echo.bus.group_offsets(echo.group, [(echo.incoming, 0)])
    assert committed.get((echo.incoming, 0), 0) <= poison.offset, "the poison is repeated, not skipped"


async def test_a_group_whose_offset_was_removed_refuses_to_start(echo: Echoing):
    process = echo.spawn()
    await echo.send(0, 9)
    seen: list[Record] = []
    await echo.answered(9, seen)
    process.send_signal(signal.SIGTERM)
    assert await ended(process) == 0
    await echo.send(9, 18)
    await delete_records(echo.bootstrap, (echo.incoming, 0), 5)
    assert await ended(echo.spawn()) == 1


async def test_what_nobody_committed_is_read_again_from_the_beginning(
    echo: Echoing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """What a rebalance throws away comes back by this seek: also where a member died before its first commit."""
    monkeypatch.setattr(faust_hop, "COMMIT_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(faust_hop, "SWITCH_INTERVAL_S", sys.getswitchinterval())
    config = FaustConfig(echo.bootstrap, echo.group, f"{echo.group}-0", tmp_path)
    hop = FaustHop(Echo(echo.incoming, echo.outgoing), config, WallClock())
    stop = asyncio.Event()
    running = asyncio.create_task(hop.run(stop))
    seen: list[Record] = []
    try:
        await echo.send(0, 9)
        await echo.answered(9, seen)
        consumer: Any = hop.app.consumer
        await consumer.perform_seek()
        again: list[Record] = []
        await echo.answered(9, again)
    finally:
        stop.set()
        await running
    assert sorted(record.key or b"" for record in again) == [b"k%d" % number for number in range(9)]


async def test_a_second_life_goes_on_from_what_the_first_one_saved(
    echo: Echoing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Kept beside the run by a child of the process, with its second thread and its connections."""

    class Keeping(Echo):
        marked: dict[tuple[str, int], Mark]

        def __init__(self) -> None:
            super().__init__(echo.incoming, echo.outgoing)
            self.rebuilt_from = (echo.incoming,)
            self.marked = {}
            self.recovered = 0

        def recover(self, record: Record) -> None:
            self.recovered += 1
            self._fold(record)

        def handle(self, record: Record, now: Now) -> list[Message]:
            self._fold(record)
            return [Message(self._outgoing, record.key, record.value)]

        def _fold(self, record: Record) -> None:
            place = (record.topic, record.partition)
            if place not in self.marked or self.marked[place].offset < record.offset:
                self.marked[place] = Mark(record.offset, record.timestamp_ms)
                self._keys[record.key] = record.value or b""

        def made_with(self) -> bytes:
            return b"alike"

        def marks(self) -> dict[tuple[str, int], Mark]:
            return self.marked

        def state(self) -> object:
            return self._keys, self.marked

        def use_state(self, state: Any) -> None:
            self._keys, self.marked = state

    monkeypatch.setattr(faust_hop, "SAVE_EVERY_RECORDS", 300)
    monkeypatch.setattr(faust_hop, "SWITCH_INTERVAL_S", sys.getswitchinterval())
    config = FaustConfig(echo.bootstrap, echo.group, f"{echo.group}-0", tmp_path)
    lives: list[Keeping] = []
    for first, last in ((0, 300), (300, 330)):
        handler = Keeping()
        hop, stop = FaustHop(handler, config, WallClock()), asyncio.Event()
        running = asyncio.create_task(hop.run(stop))
        seen: list[Record] = []
        try:
            await echo.send(first, last)
            await echo.answered(last - first, seen)
            until_s = asyncio.get_running_loop().time() + DEADLINE_S
            while not (tmp_path / faust_hop.SAVED_FILE).exists():
                assert asyncio.get_running_loop().time() < until_s, "nothing was saved"
                await asyncio.sleep(0.05)
        finally:
            stop.set()
            await running
        lives.append(handler)
    assert lives[1].recovered <= 30, "only what came since"
    assert lives[1]._keys == {b"k%d" % number: b"%d" % number for number in range(330)}


async def test_a_killed_broker_costs_no_event(kafka_factory: Callable[[], EmbeddedBroker], tmp_path: Path):
    broker = kafka_factory()
    echo = Echoing(broker.address, tmp_path)
    await echo.start()
    echo.spawn()
    seen: list[Record] = []
    try:
        await echo.send(0, 100)
        await echo.answered(100, seen)
        broker.kill()
        broker.start()
        await asyncio.to_thread(broker.ready)
        await echo.send(100, 200)
        await echo.answered(200, seen, again=True)
    finally:
        await echo.stop()

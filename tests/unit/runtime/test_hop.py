"""The hop loses nothing: rebuilds first, repeats alike after failed sends, commits last, and errors never pass silently."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from schemas.records import Message, Now, Record
from services.runtime.bus.faults import FaultPlan, TopicFaults, Unknown
from services.runtime.bus.memory import MemoryBus
from services.runtime.hop import Hop, run_hop
from services.runtime.virtual import VirtualClock, run_virtual

START_MS = 1_800_000_000_000
TOPICS = {"in": 4, "out": 4, "dead": 1}


class Numbering:
    """Answers each key with the number of different keys seen before it; the answers are its changelog."""

    inputs = ("in",)
    rebuilt_from = ("out",)

    def __init__(self) -> None:
        self.numbers: dict[bytes, bytes] = {}
        self.ticks = 0

    def recover(self, record: Record) -> None:
        assert record.key is not None
        assert record.value is not None
        self.numbers.setdefault(record.key, record.value)

    def handle(self, record: Record, now: Now) -> list[Message]:
        if record.value == b"bad":
            raise ZeroDivisionError("bad record")
        assert record.key is not None
        number = self.numbers.setdefault(record.key, b"%d-%d" % (record.partition, record.offset))
        return [Message("out", record.key, number, (("ce_id", b"x"),))]

    def tick(self, now: Now) -> list[Message]:
        self.ticks += 1
        return []


async def publish(bus: MemoryBus, first: int, last: int) -> None:
    producer = bus.producer("upstream")
    await producer.start()
    for number in range(first, last):
        await producer.send(Message("in", b"key-%d" % number, b"x"))


async def until_committed(bus: MemoryBus, clock: VirtualClock, group: str = "g", limit_s: float = 600) -> None:
    ends = {part: bus.log(part).end for part in bus.partitions("in")}
    for _ in range(int(limit_s * 10)):
        if all(bus.committed(group).get(part, 0) >= end for part, end in ends.items()):
            return
        await clock.sleep_wall(0.1)
    raise AssertionError("the hop does not get through")


def test_everything_is_answered_and_committed_and_stop_is_clean():
    async def main(clock: VirtualClock) -> tuple[int, int, int]:
        bus = MemoryBus(TOPICS, clock=clock)
        handler, stop = Numbering(), asyncio.Event()
        running = asyncio.ensure_future(run_hop(handler, bus, clock, "g", client_id="hop", stop=stop))
        await publish(bus, 0, 300)
        await until_committed(bus, clock)
        await clock.sleep_wall(10)
        stop.set()
        await running
        return len(bus.records("out")), sum(bus.committed("g").values()), handler.ticks

    outputs, committed, ticks = run_virtual(main, START_MS)
    assert (outputs, committed) == (300, 300)
    assert 18 <= ticks <= 22


def test_kills_failed_sends_and_duplicates_lose_nothing_and_answers_stay_the_same():
    async def main(clock: VirtualClock) -> list[Record]:
        faults = TopicFaults(
            duplicate_share=0.1, send_delay_s_max=0.02, unknown_before_share=0.05, unknown_after_share=0.05
        )
        plan = FaultPlan(seed=11, by_topic={"out": faults, "in": TopicFaults(duplicate_share=0.1)})
        bus = MemoryBus(TOPICS, clock=clock, faults=plan, session_timeout_s=2)
        upstream = asyncio.create_task(publish(bus, 0, 400))
        for life in range(12):
            hop = Hop(Numbering(), bus, clock, "g", client_id=f"hop-{life}", batch_records_max=7)
            running = asyncio.create_task(hop.run())
            await clock.sleep_wall(0.3 + 0.1 * (life % 3))
            bus.kill(hop.consumer)
            running.cancel()
            await asyncio.wait({running})
        await upstream
        await clock.sleep_wall(5)
        hop = Hop(Numbering(), bus, clock, "g", client_id="hop-last")
        running = asyncio.create_task(hop.run())
        await until_committed(bus, clock)
        return bus.records("out")

    records = run_virtual(main, START_MS)
    answers: dict[bytes, set[bytes]] = {}
    for record in records:
        assert record.key is not None
        assert record.value is not None
        answers.setdefault(record.key, set()).add(record.value)
    assert len(answers) == 400
    assert {key: len(values) for key, values in answers.items() if len(values) != 1} == {}
    assert len(records) > 400, "the faults did strike"
    assert records == run_virtual(main, START_MS)


def test_two_hops_share_the_work_and_a_takeover_folds_what_the_other_published():
    async def main(clock: VirtualClock) -> Counter:
        bus = MemoryBus(TOPICS, clock=clock, session_timeout_s=2)
        hops = [Hop(Numbering(), bus, clock, "g", client_id=f"hop-{index}") for index in range(2)]
        tasks = [asyncio.create_task(hop.run()) for hop in hops]
        await publish(bus, 0, 100)
        await until_committed(bus, clock)
        bus.kill(hops[0].consumer)
        tasks[0].cancel()
        await publish(bus, 0, 100)  # the same keys again: whoever owns them now must know the old answers
        await until_committed(bus, clock)
        return Counter((record.key, record.value) for record in bus.records("out"))

    answers = run_virtual(main, START_MS)
    assert len(answers) == 100
    assert set(answers.values()) == {2}


class Owning(Numbering):
    """Notes what it is told to own."""

    def __init__(self) -> None:
        super().__init__()
        self.owned: frozenset[int] = frozenset()

    def own(self, partitions: frozenset[int]) -> None:
        self.owned = partitions


def test_a_handler_that_asks_is_told_its_own_partitions_as_they_move():
    async def main(clock: VirtualClock) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
        bus = MemoryBus(TOPICS, clock=clock, session_timeout_s=2)
        handlers = [Owning(), Owning()]
        hops = [Hop(handler, bus, clock, "g", client_id=f"hop-{n}") for n, handler in enumerate(handlers)]
        tasks = [asyncio.create_task(hop.run()) for hop in hops]
        await clock.sleep_wall(5)
        shared = [handler.owned for handler in handlers]
        bus.kill(hops[0].consumer)
        tasks[0].cancel()
        await clock.sleep_wall(10)
        return shared[0], shared[1], handlers[1].owned

    first, second, after = run_virtual(main, START_MS)
    assert first | second == after == {0, 1, 2, 3}
    assert not first & second
    assert len(first) == 2


def test_a_failed_send_is_repeated_with_a_new_producer_before_anything_is_committed():
    async def main(clock: VirtualClock) -> list[int]:
        bus = MemoryBus(TOPICS, clock=clock)
        bus.fail_next_send("out", Unknown.AFTER_STORING)
        bus.fail_next_send("out", Unknown.BEFORE_STORING)
        task = asyncio.ensure_future(run_hop(Numbering(), bus, clock, "g", client_id="hop"))
        await publish(bus, 0, 1)
        await until_committed(bus, clock)
        task.cancel()
        return [len(bus.records("out")), sum(bus.committed("g").values())]

    assert run_virtual(main, START_MS) == [2, 1]


def test_an_exception_ends_the_hop_without_committing_the_record():
    async def main(clock: VirtualClock) -> int:
        bus = MemoryBus(TOPICS, clock=clock)
        producer = bus.producer("upstream")
        await producer.start()
        await producer.send(Message("in", b"k", b"bad"))
        with pytest.raises(ZeroDivisionError):
            await run_hop(Numbering(), bus, clock, "g", client_id="hop")
        return sum(bus.committed("g").values())

    assert run_virtual(main, START_MS) == 0


def test_an_exception_becomes_a_dead_letter_where_the_service_says_how():
    async def main(clock: VirtualClock) -> list:
        bus = MemoryBus(TOPICS, clock=clock)
        producer = bus.producer("upstream")
        await producer.start()
        await producer.send_all([Message("in", b"k", value, partition=0) for value in (b"bad", b"good")])

        def letter(record: Record, error: Exception, now: Now) -> Message:
            return Message("dead", record.key, f"{type(error).__name__}: {error}".encode())

        task = asyncio.ensure_future(run_hop(Numbering(), bus, clock, "g", client_id="hop", dead_letter=letter))
        await until_committed(bus, clock)
        task.cancel()
        return [record.value for record in bus.records("dead")] + [len(bus.records("out"))]

    assert run_virtual(main, START_MS) == [b"ZeroDivisionError: bad record", 1]

"""The lag of services that read the bus port themselves: measured beside the reading, told for what is read here."""

from __future__ import annotations

import asyncio

from schemas.records import Message
from services.allocator.core.decide import INPUT_TOPICS
from services.allocator.shell.inbox import Inbox
from services.allocator.shell.loop import Allocator
from services.runtime.bus.memory import MemoryBus
from services.runtime.bus.port import BusError
from services.runtime.lag import lag_measured, lag_of
from services.runtime.metrics import LAG_PERIOD_S, Metrics
from services.runtime.virtual import run_virtual
from tests import build
from tests.allocator_driver import SETTINGS
from tests.unit.executor.executor_rig import assignment, placed, virtually

PART = ("jobs", 0)


async def filled(bus: MemoryBus, count: int) -> None:
    producer = bus.producer("p")
    await producer.start()
    await producer.send_all([Message("jobs", b"k", b"v", (), 0) for _ in range(count)])
    await producer.stop()


def told(metrics: Metrics, topic: str = "jobs", partition: str = "0") -> float | None:
    labels = {"topic": topic, "partition": partition}
    return metrics.registry.get_sample_value("gpugrid_consumer_lag_records", labels)


def test_lag_is_what_is_in_the_log_and_not_read() -> None:
    async def main(clock) -> None:
        bus = MemoryBus({"jobs": 2}, clock=clock)
        await filled(bus, 5)
        reader = bus.reader("r", [PART, ("jobs", 1)])
        await reader.start()
        assert await lag_of(reader, reader.assignment()) == {PART: 5, ("jobs", 1): 0}
        await reader.poll(max_records=3, timeout_s=1.0)
        assert await lag_of(reader, [PART]) == {PART: 2}
        assert await lag_of(reader, []) == {}
        await reader.stop()

    run_virtual(main, 0)


def test_the_gauge_follows_and_an_unreachable_broker_ends_nothing() -> None:
    metrics = Metrics("allocator", "a")
    answers: list = [{PART: 7}, BusError("away"), RuntimeError("closed"), {("placements", 0): 1}]
    seen = []

    async def ask() -> dict:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main(clock) -> None:
        async with lag_measured(metrics, clock, ask):
            for _ in range(4):
                await clock.sleep_wall(LAG_PERIOD_S / 2)
                seen.append(told(metrics))
                await clock.sleep_wall(LAG_PERIOD_S / 2)

    run_virtual(main, 0)
    assert seen == [7.0, 7.0, 7.0, None], "kept while nothing is known, gone with the partition"
    assert told(metrics, "placements") == 1.0


def test_what_is_in_line_for_a_decision_still_counts() -> None:
    async def main(clock) -> tuple[int, int]:
        bus = MemoryBus({"jobs": 1}, clock=clock)
        await filled(bus, 3)
        reader = bus.reader("r", [PART])
        await reader.start()
        inbox = Inbox(reader)
        reading = asyncio.ensure_future(inbox.read())
        await inbox.filled.wait()
        waiting = inbox.waiting(PART)
        inbox.take()
        reading.cancel()
        return waiting, inbox.waiting(PART)

    assert run_virtual(main, 0) == (3, 0)


def test_an_allocator_tells_the_inputs_of_its_clusters() -> None:
    async def main(clock) -> tuple[dict, dict]:
        bus = MemoryBus(build.topic_partitions(), clock=clock)
        stop = asyncio.Event()
        allocator = Allocator(bus, clock, build.catalog(), lambda _: SETTINGS, instance_id="a")
        before = await allocator.lag()
        running = asyncio.ensure_future(allocator.run(stop))
        while not allocator.owned:
            await clock.sleep_wall(0.1)
        after = await allocator.lag()
        stop.set()
        await running
        return before, after

    before, after = run_virtual(main, build.START_MS)
    assert before == {}
    assert after == {(topic, 0): 0 for topic in INPUT_TOPICS}


def test_an_executor_tells_its_placements() -> None:
    async def scenario(rig) -> dict:
        await rig.start()
        await rig.place(placed(1, assignment("a", 0)))
        await rig.wait_s(1.0)
        return await rig.executor.lag()

    assert virtually(scenario) == {("placements", 0): 0}

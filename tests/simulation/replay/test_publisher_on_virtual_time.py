"""The publisher on the memory bus: everything once, at its time, in order; a restart or a lost answer adds nothing."""

from __future__ import annotations

import asyncio

import pytest

from schemas.codec import decode_record
from schemas.demand import DemandObserved
from schemas.jobs import ApplicationRegistered, JobSubmitted
from schemas.topics import CLUSTER_PARTITIONS, TOPICS
from services.replay.core.day import Day
from services.replay.core.schedule import arrivals, history, registrations
from services.replay.core.workload import build_day
from services.replay.shell.bundled import bundled_trace
from services.replay.shell.publisher import Publisher
from services.runtime.bus.faults import Unknown
from services.runtime.bus.memory import MemoryBus
from services.runtime.virtual import VirtualClock, run_virtual

PARTITION = 1


@pytest.fixture(scope="module")
def day() -> Day:
    return build_day(bundled_trace(), "2017-11-09", 1, hours=6.0)


def bus_of(clock: VirtualClock) -> MemoryBus:
    return MemoryBus({topic.name: CLUSTER_PARTITIONS for topic in TOPICS}, clock=clock)


def test_everything_once_and_when_due(day: Day) -> None:
    async def main(clock: VirtualClock) -> MemoryBus:
        bus = bus_of(clock)
        publisher = Publisher(bus, clock)
        await publisher.publish([*history(day, PARTITION), *registrations(day)], wait=False)
        assert clock.now_ms() == day.start_ms
        await publisher.publish(arrivals(day, PARTITION))
        await publisher.close()
        return bus

    bus = run_virtual(main, day.start_ms)
    jobs = [decode_record(record) for record in bus.records("job-events")]
    stored_ms = {record.header("ce_id"): record.timestamp_ms for record in bus.records("job-events")}
    submitted = {entry.event.job_id: entry for entry in jobs if isinstance(entry.event, JobSubmitted)}
    assert sorted(submitted) == [job.job_id for job in day.jobs]
    for job in day.jobs:
        entry = submitted[job.job_id]
        assert entry.time_ms == entry.event.submitted_ms == job.arrival_ms == stored_ms[entry.id]
        assert entry.traceparent.startswith("00-")
    assert sum(isinstance(entry.event, ApplicationRegistered) for entry in jobs) == len(day.apps)
    assert len({entry.traceparent for entry in jobs}) == len(jobs)

    loads = [decode_record(record) for record in bus.records("demand")]
    assert {record.partition for record in bus.records("demand")} == {PARTITION}
    for app in day.apps:
        mine = [
            entry.event
            for entry in loads
            if isinstance(entry.event, DemandObserved) and entry.event.app_id == app.app_id
        ]
        assert [event.load for event in mine] == [*app.history, *app.loads]
        assert [event.time_ms for event in mine] == sorted(event.time_ms for event in mine)
        assert mine[len(app.history) - 1].time_ms == day.start_ms
        assert mine[-1].time_ms == day.end_ms


def test_a_restart_goes_on_where_the_first_stopped(day: Day) -> None:
    async def main(clock: VirtualClock) -> list[bytes | None]:
        bus = bus_of(clock)
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(3600, stop.set)
        first = Publisher(bus, clock)
        sent = await first.publish(arrivals(day, PARTITION), stop=stop)
        await first.close()
        assert 0 < sent < len(arrivals(day, PARTITION))
        second = Publisher(bus, clock)
        sent += await second.publish(arrivals(day, PARTITION))
        assert sent == len(arrivals(day, PARTITION))
        assert await second.publish(arrivals(day, PARTITION)) == 0
        await second.close()
        return [record.value for topic in ("job-events", "demand") for record in bus.records(topic)]

    values = run_virtual(main, day.start_ms)
    assert sorted(value or b"" for value in values) == sorted(
        entry.message.value or b"" for entry in arrivals(day, PARTITION)
    )


@pytest.mark.parametrize("how", list(Unknown))
def test_an_unknown_send_is_looked_up_before_it_is_repeated(day: Day, how: Unknown) -> None:
    async def main(clock: VirtualClock) -> int:
        bus = bus_of(clock)
        bus.fail_next_send("job-events", how)
        publisher = Publisher(bus, clock)
        await publisher.publish(arrivals(day, PARTITION))
        await publisher.close()
        return len(bus.records("job-events"))

    assert run_virtual(main, day.start_ms) == len(day.jobs)

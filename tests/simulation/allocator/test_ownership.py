"""Several allocators alive at once, killed, stopped and continued at random: the log never forks, every job is decided once."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import msgspec
import pytest

from schemas.codec import decode_record
from schemas.decisions import DecisionMade
from schemas.jobs import JobAccepted, JobRevoked
from schemas.messages import message
from schemas.status import JobState, JobStatusChanged
from services.allocator.core.reader import read
from services.allocator.core.silence import START_WALL_MS_MAX
from services.allocator.core.state import State
from services.allocator.shell.loop import Allocator
from services.runtime.bus.faults import FaultPlan, TopicFaults, Unknown
from services.runtime.bus.memory import MemoryBus
from services.runtime.bus.port import BusError
from services.runtime.virtual import VirtualClock, run_virtual
from tests import build
from tests.allocator_driver import SETTINGS

JOBS = 60


class StoppableBus:
    """A process's view of the bus that can be stopped like by SIGSTOP: whatever it was about to send goes out on SIGCONT."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self.going = asyncio.Event()
        self.going.set()

    def __getattr__(self, name: str):
        return getattr(self._bus, name)

    def producer(self, client_id: str):
        inner, going = self._bus.producer(client_id), self.going

        class Gated:
            start, stop = inner.start, inner.stop

            async def send(self, sent):
                await going.wait()
                return await inner.send(sent)

            async def send_all(self, sent):
                await going.wait()
                return await inner.send_all(sent)

        return Gated()


class Process:
    """One allocator process of the simulation."""

    def __init__(self, bus: MemoryBus, clock: VirtualClock, instance: str) -> None:
        self.bus = StoppableBus(bus)
        self.raw_bus = bus
        self.stop = asyncio.Event()
        self.allocator = Allocator(
            self.bus,
            clock,
            build.catalog(),
            lambda cluster: msgspec.structs.replace(SETTINGS, writer=instance),
            instance_id=instance,
        )
        self.task = asyncio.ensure_future(self.allocator.run(self.stop))

    async def kill(self) -> None:
        self.raw_bus.kill(self.allocator.consumer)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def submit(bus: MemoryBus, clock: VirtualClock, dice: Random) -> None:
    producer = bus.producer("upstream")
    await producer.start()

    async def send(event, key: str) -> None:
        await producer.send(
            message(
                event, key=key, id=f"{key}/{type(event).__name__}", source="/t", time_ms=clock.now_ms(), partition=0
            )
        )

    for i in range(2):
        await send(build.node(f"n{i:02}", order=i), f"n{i:02}")
    for number in range(JOBS):
        await send(build.accepted(f"j{number:03}", dice.choice([1, 2, 4, 8])), f"j{number:03}")
        if dice.random() < 0.7:
            await send(build.forecast(f"j{number:03}", {1: 600, 2: 600, 4: 600, 8: 600}), f"j{number:03}")
        await clock.sleep_wall(dice.uniform(0, 0.5))


async def disturb(bus: MemoryBus, clock: VirtualClock, processes: dict[str, Process], dice: Random) -> None:
    for _ in range(15):
        await clock.sleep_wall(dice.uniform(0.2, 4))
        name = dice.choice(sorted(processes))
        what = dice.choice(["kill", "stop", "unknown-before", "unknown-after"])
        if what == "kill":
            await processes[name].kill()
            await clock.sleep_wall(dice.uniform(0, 2))
            processes[name] = Process(bus, clock, name)
        elif what == "stop":
            stopped = processes[name]
            stopped.bus.going.clear()
            await clock.sleep_wall(dice.uniform(0, 1))
            bus.expel(stopped.allocator.consumer)
            await clock.sleep_wall(dice.uniform(0, 5))
            stopped.bus.going.set()
        else:
            how = Unknown.BEFORE_STORING if what == "unknown-before" else Unknown.AFTER_STORING
            bus.fail_next_send(dice.choice(["decisions", "job-status", "placements"]), how)


def accepted_log(bus: MemoryBus) -> tuple[State, list[DecisionMade], int]:
    """The state and records a reader accepts, and how many records lost a race."""
    state, found, lost = State(cluster=build.CLUSTER), [], 0
    for record in bus.records("decisions"):
        decision = decode_record(record).event
        assert isinstance(decision, DecisionMade)
        if read(state, decision, SETTINGS.policy.step_ms) is None:
            lost += 1
        else:
            found.append(decision)
    return state, found, lost


@pytest.mark.parametrize("seed", range(8))
def test_the_log_never_forks_and_every_job_is_decided_once(seed: int) -> None:
    async def main(clock: VirtualClock) -> MemoryBus:
        dice = Random(seed)
        late = TopicFaults(fetch_delay_s_max=0.05, send_delay_s_max=0.02)
        bus = MemoryBus(build.topic_partitions(), clock=clock, faults=FaultPlan(seed=seed, default=late))
        processes = {name: Process(bus, clock, name) for name in ("a", "b")}
        feeding = asyncio.ensure_future(submit(bus, clock, dice))
        await disturb(bus, clock, processes, dice)
        await feeding
        for _ in range(2_000):
            states = [owner.state for process in processes.values() for owner in process.allocator.owned.values()]
            if any(len(state.jobs) + len(state.finished) == JOBS for state in states):
                break
            for name, process in processes.items():
                if process.task.done():
                    assert isinstance(process.task.exception(), BusError), process.task.exception()
                    processes[name] = Process(bus, clock, name)
            await clock.sleep_wall(0.1)
        for process in processes.values():
            process.stop.set()
        await asyncio.gather(*[process.task for process in processes.values()], return_exceptions=True)
        return bus

    bus = run_virtual(main, build.START_MS)
    state, log, _ = accepted_log(bus)
    decided = Counter((item.topic, item.partition, item.offset) for record in log for item in record.inputs)
    assert max(decided.values()) == 1, "an input was decided twice"
    jobs = {
        decode_record(record).event.job_id
        for record in bus.records("jobs")
        if isinstance(decode_record(record).event, JobAccepted)
    }
    assert set(state.jobs) | set(state.finished) == jobs
    for topic in ("jobs", "forecasts", "node-states"):
        offsets = [item.offset for record in log for item in record.inputs if item.topic == topic]
        assert offsets == sorted(offsets)
        assert len(offsets) == len(bus.records(topic)), f"not every record of {topic} is covered"
    shown = {
        event.job_id: event
        for event in (decode_record(record).event for record in bus.records("job-status"))
        if isinstance(event, JobStatusChanged)
    }
    for job_id, job in state.jobs.items():
        assert shown[job_id].state is job.state, f"{job_id}: people are shown another state than the log's"
        assert job.state is not JobState.QUEUED or shown[job_id].reason


def test_a_stopped_writer_that_goes_on_is_refused_by_every_reader() -> None:
    async def main(clock: VirtualClock) -> tuple[MemoryBus, int]:
        bus = MemoryBus(build.topic_partitions(), clock=clock)
        first = Process(bus, clock, "a")
        producer = bus.producer("upstream")
        await producer.start()
        await producer.send(message(build.node("n00"), key="n00", id="n", source="/t", time_ms=0, partition=0))
        await clock.sleep_wall(1)
        first.bus.going.clear()
        await producer.send(message(build.accepted("j", 8), key="j", id="j", source="/t", time_ms=0, partition=0))
        await clock.sleep_wall(1)
        second = Process(bus, clock, "b")
        bus.expel(first.allocator.consumer)
        await clock.sleep_wall(30)
        records_before = len(bus.records("decisions"))
        first.bus.going.set()
        await clock.sleep_wall(30)
        for process in (first, second):
            process.stop.set()
        await asyncio.gather(first.task, second.task, return_exceptions=True)
        return bus, records_before

    bus, records_before = run_virtual(main, build.START_MS)
    state, log, lost = accepted_log(bus)
    assert len(bus.records("decisions")) > records_before, "the stopped writer did append its stale record"
    assert lost >= 1, "and it was refused"
    assert state.jobs["j"].attempt == 1
    assert (
        sum(
            len(record.effects)
            for record in log
            if any(effect.__class__.__name__ == "Placed" for effect in record.effects)
        )
        == 1
    )


def test_a_rebalance_during_the_way_out_breaks_nothing():
    """Found by a seed: while the process lets go of its clusters one after the other, the group gives it another one."""

    async def main(clock: VirtualClock) -> list[str]:
        stopped: list[str] = []
        bus = MemoryBus({}, clock=clock)
        allocator = Allocator(bus, clock, build.catalog(), lambda cluster: SETTINGS, instance_id="one")

        class Owner:
            def __init__(self, name: str) -> None:
                self._name = name

            async def stop(self) -> None:
                stopped.append(self._name)
                if self._name == "c0":
                    allocator._owned["late"] = Owner("late")

        allocator._owned = {"c0": Owner("c0"), "c1": Owner("c1")}
        await allocator._drop_all()
        return stopped

    assert run_virtual(main, build.START_MS) == ["c0", "c1", "late"]


def test_the_end_of_a_cancelled_job_whose_start_is_given_up_is_told_though_nothing_else_happens() -> None:
    """Time alone ends it: there is no event to decide on, nor anything to start or stop."""

    async def main(clock: VirtualClock) -> tuple[list[JobState], int, int]:
        bus = MemoryBus(build.topic_partitions(), clock=clock)
        process = Process(bus, clock, "a")
        producer = bus.producer("upstream")
        await producer.start()
        placed = [build.node("n00"), build.accepted("j", 8), build.forecast("j", {8: 600})]
        for number, event in enumerate(placed):
            key = "n00" if number == 0 else "j"
            await producer.send(
                message(event, key=key, id=str(number), source="/t", time_ms=clock.now_ms(), partition=0)
            )
        await clock.sleep_wall(5)
        revoked = JobRevoked(job_id="j", cluster=build.CLUSTER, revoked_ms=clock.now_ms())
        await producer.send(message(revoked, key="j", id="r", source="/t", time_ms=clock.now_ms(), partition=0))
        await clock.sleep_wall(START_WALL_MS_MAX / 1000 - 60)
        before = len(bus.records("decisions"))
        await clock.sleep_wall(120)
        after = len(bus.records("decisions"))
        await clock.sleep_wall(3_600)
        process.stop.set()
        await process.task
        told = [decode_record(record).event for record in bus.records("job-status")]
        states = [event.state for event in told if isinstance(event, JobStatusChanged)]
        return states, after - before, len(bus.records("decisions")) - after

    states, written, later = run_virtual(main, build.START_MS)
    assert states[-2:] == [JobState.STOPPING, JobState.CANCELLED]
    assert (written, later) == (1, 0), "one decision tells it, and none is written for nothing"

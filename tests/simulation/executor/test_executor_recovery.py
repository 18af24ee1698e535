"""Crashes, failed sends, rubbish and orderly stops, on the memory bus in virtual time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from schemas.executions import (
    JobCompleted,
    JobStarted,
    JobStopped,
    NodeReported,
    StopCause,
)
from schemas.placements import Desired
from schemas.records import Message
from services.runtime.bus.faults import Unknown
from tests.unit.executor.executor_rig import SAVES, START_MS, Rig, assignment, placed, virtually


def test_an_attempt_that_ended_is_never_started_again():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=5.0)))
        await rig.wait_s(10)
        await rig.place(placed(2, assignment("a", 0, run_s=5.0)))
        await rig.wait_s(10)
        await rig.crash()
        await rig.start()
        await rig.place(placed(3, assignment("a", 0, run_s=5.0)), placed(4, assignment("a", 0, run_s=5.0)))
        await rig.wait_s(10)
        await rig.place(placed(5, assignment("a", 0, run_s=5.0, attempt=2)))
        await rig.wait_s(10)

    rig = virtually(scenario)
    assert rig.said() == ["started", "completed"] * 2
    assert [event.attempt for event in rig.events(JobStarted)] == [1, 2]


def test_a_job_survives_the_crash_of_its_executor_and_ends_at_its_own_time():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=100.0), assignment("b", 1, run_s=300.0)))
        await rig.wait_s(50)
        await rig.crash()
        await rig.wait_s(150)
        await rig.start()
        await rig.wait_s(150)

    rig = virtually(scenario)
    assert rig.said("a") == rig.said("b") == ["started", "completed"]
    ends = {event.job_id: event.time_ms - START_MS for event in rig.events(JobCompleted)}
    assert ends == {"a": 100_000, "b": 300_000}
    first, second = rig.events(NodeReported)
    assert first.boot_id == second.boot_id
    assert [held.job_id for held in second.running] == ["a", "b"]
    assert (second.applied, second.epoch) == (1, 1)


def test_what_ended_before_its_limit_while_the_executor_was_dead_is_completed():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=100.0, time_limit_s=150.0)))
        await rig.wait_s(50)
        await rig.crash()
        await rig.wait_s(150)
        await rig.start()
        await rig.wait_s(1)

    rig = virtually(scenario)
    assert rig.said() == ["started", "completed"]
    assert rig.events(JobCompleted)[0].run_s == 100.0


def test_a_stop_that_a_crash_interrupted_is_finished_by_the_next_executor():
    async def scenario(rig: Rig):
        await rig.start()
        saver = assignment("a", 0, run_s=1000.0, checkpoint=SAVES)
        await rig.place(placed(1, saver))
        await rig.wait_s(100)
        await rig.place(placed(2, msgspec.structs.replace(saver, desired=Desired.STOP, stop_cause=StopCause.DRAIN)))
        await rig.wait_s(1)
        await rig.crash()
        await rig.start()
        await rig.wait_s(30)

    rig = virtually(scenario)
    assert rig.said() == ["started", "checkpointed", "stopped"]
    assert rig.events(JobStopped)[0].cause is StopCause.DRAIN


@pytest.mark.parametrize("how", list(Unknown))
def test_a_report_whose_sending_failed_is_sent_again_under_the_same_id(how):
    async def scenario(rig: Rig):
        await rig.start()
        await rig.wait_s(1)
        rig.bus.fail_next_send("executions", how)
        await rig.place(placed(1, assignment("a", 0, run_s=10.0)))
        await rig.wait_s(30)

    rig = virtually(scenario)
    ids = list(dict.fromkeys(envelope.id for envelope in rig.envelopes()))
    assert ids[1:] == ["a/1/n00/started", "a/1/n00/completed"]
    assert rig.said() == ["started"] * (2 if how is Unknown.AFTER_STORING else 1) + ["completed"]


def test_unsent_reports_survive_a_crash():
    async def scenario(rig: Rig):
        await rig.start()
        for _ in range(20):
            rig.bus.fail_next_send("executions", Unknown.BEFORE_STORING)
        await rig.place(placed(1, assignment("a", 0, run_s=5.0)))
        await rig.wait_s(10)
        said = rig.said()
        await rig.crash()
        await rig.start()
        await rig.wait_s(120)
        return said, rig.said()

    said, later = virtually(scenario)
    assert said == []
    assert later == ["started", "completed"]


def test_garbage_among_placements_becomes_dead_letters_and_the_rest_is_carried_out():
    async def scenario(rig: Rig):
        await rig.start()
        producer = rig.bus.producer("vandal")
        await producer.start()
        await producer.send(Message("placements", b"n00", b"not json", (), 0))
        await producer.send(Message("placements", b"n00", None, (), 0))
        await rig.place(placed(1, assignment("a", 0)), placed(1, assignment("z", 0), node="n77"))
        await rig.wait_s(5)

    rig = virtually(scenario)
    assert rig.said() == ["started"]
    assert len(rig.bus.records("dead-letters")) == 1


def test_an_orderly_stop_leaves_jobs_alive_unless_told_to_stop_them():
    async def scenario(rig: Rig, stop_jobs: bool):
        await rig.start(stop_jobs=stop_jobs)
        await rig.place(placed(1, assignment("a", 0, run_s=1000.0, checkpoint=SAVES)))
        await rig.wait_s(100)
        await rig.leave()
        return rig.said()

    assert virtually(lambda rig: scenario(rig, False)) == ["started"]
    # A checkpoint takes 10 domain seconds: at speed 10 one wall second, at speed 1 longer than the way out may last.
    assert virtually(lambda rig: scenario(rig, True), speed=10.0) == ["started", "checkpointed", "stopped"]
    assert virtually(lambda rig: scenario(rig, True)) == ["started", "stopped"]


def test_a_bug_in_a_task_ends_the_executor_and_not_the_job():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0)))
        await rig.wait_s(1)
        node = rig.executor.nodes["n00"]
        node._around.nursery.spawn(_broken())
        with pytest.raises(ZeroDivisionError):
            await rig.task
        await rig.start()
        await rig.wait_s(200)
        return rig.said()

    assert virtually(scenario) == ["started", "completed"]


async def _broken() -> None:
    await asyncio.sleep(1)
    raise ZeroDivisionError


def test_the_same_scenario_twice_gives_the_same_bytes():
    async def scenario(rig: Rig):
        await rig.start()
        jobs = [assignment(f"j{i}", i, run_s=10.0 + i, checkpoint=SAVES) for i in range(8)]
        await rig.place(placed(1, *jobs))
        await rig.wait_s(5)
        await rig.place(placed(2, *(msgspec.structs.replace(job, checkpoint_request=1) for job in jobs[:4])))
        await rig.crash()
        await rig.start()
        await rig.wait_s(100)
        return [(record.key, record.value, record.headers) for record in rig.bus.records("executions")]

    assert virtually(scenario) == virtually(scenario)


def test_an_application_stopped_on_the_executors_way_out_runs_again_after_its_start():
    async def scenario(rig: Rig):
        await rig.start(stop_jobs=True)
        await rig.place(placed(1, assignment("app", 0, application=True), assignment("job", 1)))
        await rig.wait_s(10)
        await rig.leave()
        await rig.start()
        await rig.wait_s(10)

    rig = virtually(scenario)
    assert rig.said("app") == ["started", "stopped", "started"]
    assert rig.said("job") == ["started", "stopped"]

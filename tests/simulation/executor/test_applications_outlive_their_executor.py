"""An application needs no executor to serve: what its executor does when it comes back after a silence."""

from __future__ import annotations

from schemas.executions import JobStarted, JobStopped, StopCause
from tests.simulation.executor.scripted_rig import Scripted, scripted
from tests.unit.executor.executor_rig import Rig, assignment, placed


def app(*gpus: int, **changed):
    return assignment("app", *gpus, application=True, **changed)


def test_it_serves_on_and_hears_of_its_new_gpus_once_its_executor_is_back():
    async def scenario(rig: Rig, script: Scripted):
        await rig.start()
        await rig.place(placed(1, app(0)))
        await rig.wait_s(10)
        await rig.crash()
        await rig.place(placed(2, app(0, 1)))
        await rig.wait_s(3600)
        assert script.told == []
        await rig.start()
        await rig.wait_s(10)
        return rig, script.told

    rig, told = scripted(scenario)
    assert told == [(0,), (0, 1)], "what it holds by the journal is said again first"
    assert rig.said() == ["started"]


def test_what_was_placed_elsewhere_meanwhile_is_stopped_on_the_return():
    async def scenario(rig: Rig, script: Scripted):
        script.drained.set()
        await rig.start()
        await rig.place(placed(1, app(0)))
        await rig.wait_s(10)
        await rig.crash()
        await rig.place(placed(2))
        await rig.wait_s(3600)
        assert rig.said() == ["started"]
        await rig.start()
        await rig.wait_s(10)

    rig = scripted(scenario)
    assert rig.said() == ["started", "stopped"]
    assert rig.events(JobStopped)[0].cause is StopCause.FENCED


def test_one_that_ended_meanwhile_is_started_again_by_its_executor():
    async def scenario(rig: Rig, script: Scripted):
        await rig.start()
        await rig.place(placed(1, app(0)))
        await rig.wait_s(10)
        await rig.crash()
        script.ends[-1].set()
        await rig.wait_s(600)
        await rig.start()
        await rig.wait_s(60)

    rig = scripted(scenario)
    assert rig.said() == ["started", "failed", "started"]
    assert [event.attempt for event in rig.events(JobStarted)] == [1, 1]


def test_gpus_that_a_dead_executor_wrote_down_and_did_not_tell_are_told_by_the_next():
    async def scenario(rig: Rig, script: Scripted):
        await rig.start()
        await rig.place(placed(1, app(0)))
        await rig.wait_s(10)
        script.tell_s = 5.0
        await rig.place(placed(2, app(0, 1)))
        await rig.wait_s(2)
        assert rig.executor.nodes["n00"].state.runs["app/1"].gpus == [0, 1]
        await rig.crash()
        await rig.wait_s(20)
        untold = list(script.told)
        script.tell_s = 0.0
        await rig.start()
        await rig.wait_s(5)
        return untold, script.told

    untold, told = scripted(scenario)
    assert untold == []
    assert told == [(0, 1)]

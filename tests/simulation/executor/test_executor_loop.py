"""The executor's own loop on the memory bus in virtual time, with the simulated driver."""

from __future__ import annotations

import msgspec
import pytest

from schemas.executions import (
    FailureCause,
    JobCheckpointed,
    JobCompleted,
    JobFailed,
    JobStarted,
    JobStopped,
    StopCause,
)
from schemas.placements import Desired
from tests.unit.executor.executor_rig import SAVES, START_MS, Rig, assignment, placed, virtually


def test_a_job_starts_runs_its_time_and_completes():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, 1, run_s=100.0)))
        await rig.wait_s(200)

    rig = virtually(scenario)
    assert rig.said() == ["started", "completed"]
    (started,) = rig.events(JobStarted)
    (completed,) = rig.events(JobCompleted)
    assert (started.gpus, started.sequence, started.attempt) == ([0, 1], 1, 1)
    assert completed.time_ms - started.time_ms == 100_000
    assert completed.run_s == 100.0


def test_reports_are_keyed_by_job_and_land_in_the_clusters_partition():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=1.0)))
        await rig.wait_s(5)

    rig = virtually(scenario)
    records = rig.bus.records("executions")
    assert [record.key for record in records] == [b"n00", b"a", b"a"]
    assert {record.partition for record in records} == {0}
    assert [envelope.id for envelope in rig.envelopes()][1:] == ["a/1/n00/started", "a/1/n00/completed"]


def test_a_resumed_job_runs_only_what_is_left():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=100.0, resume_fraction=0.75)))
        await rig.wait_s(200)

    (completed,) = virtually(scenario).events(JobCompleted)
    assert completed.run_s == 25.0


def test_a_job_that_is_to_fail_fails_at_its_fraction():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=100.0, labels={"simulated/fails_at": "0.3"})))
        await rig.wait_s(200)

    (failed,) = virtually(scenario).events(JobFailed)
    assert (failed.run_s, failed.cause, failed.exit_code) == (30.0, FailureCause.EXIT_CODE, 1)


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"template": None, "command": ["true"]}, "template 'simulated'"),
        ({"labels": {"simulated/run_s": '{"4": 10}'}}, "no duration for 1 GPUs"),
        ({"labels": {"simulated/run_s": "soon"}}, "simulated/run_s"),
        ({"labels": {"simulated/run_s": '{"1": -5}'}}, "no duration for 1 GPUs"),
        ({"labels": {"simulated/fails_at": "half"}}, "simulated/fails_at"),
    ],
)
def test_a_job_that_can_not_be_simulated_fails_clearly(changed, wanted):
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, **changed)))
        await rig.wait_s(10)

    rig = virtually(scenario)
    assert rig.said() == ["failed"]
    (failed,) = rig.events(JobFailed)
    assert failed.cause is FailureCause.PREFLIGHT
    assert wanted in failed.detail


def test_what_is_no_longer_listed_is_stopped_and_its_gpus_are_free_for_the_next():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, 1)))
        await rig.wait_s(10)
        await rig.place(placed(2, assignment("b", 1, 2)))
        await rig.wait_s(10)

    rig = virtually(scenario)
    assert rig.said("a") == ["started", "stopped"]
    assert rig.said("b") == ["started"]
    (stopped,) = rig.events(JobStopped)
    assert (stopped.cause, stopped.checkpointed, stopped.run_s) == (StopCause.FENCED, False, 10.0)


def test_a_job_waits_for_the_checkpoint_of_the_one_before_it():
    async def scenario(rig: Rig):
        await rig.start()
        saver = assignment("a", 0, run_s=1000.0, checkpoint=SAVES)
        await rig.place(placed(1, saver))
        await rig.wait_s(500)
        stop = msgspec.structs.replace(saver, desired=Desired.STOP, stop_cause=StopCause.DRAIN)
        await rig.place(placed(2, stop, assignment("b", 0)))
        await rig.wait_s(20)

    rig = virtually(scenario)
    assert rig.said("a") == ["started", "checkpointed", "stopped"]
    (saved,) = rig.events(JobCheckpointed)
    (stopped,) = rig.events(JobStopped)
    assert (saved.fraction, stopped.fraction, stopped.checkpointed) == (0.5, 0.5, True)
    second = rig.events(JobStarted)[1]
    assert second.time_ms == stopped.time_ms == START_MS + 510_000


def test_a_checkpoint_that_takes_longer_than_its_wait_is_reported_as_missing():
    async def scenario(rig: Rig):
        await rig.start()
        hasty = msgspec.structs.replace(SAVES, wait_s=2.0)
        saver = assignment("a", 0, run_s=1000.0, checkpoint=hasty)
        await rig.place(placed(1, saver))
        await rig.wait_s(500)
        await rig.place(placed(2, msgspec.structs.replace(saver, desired=Desired.STOP)))
        await rig.wait_s(20)

    rig = virtually(scenario)
    assert rig.said() == ["started", "stopped"]
    (stopped,) = rig.events(JobStopped)
    assert (stopped.cause, stopped.checkpointed, stopped.fraction) == (StopCause.CANCELLED, False, 0.0)


def test_a_checkpoint_request_is_answered_once_per_value_and_the_job_goes_on():
    async def scenario(rig: Rig):
        await rig.start()
        saver = assignment("a", 0, run_s=100.0, checkpoint=SAVES)
        await rig.place(placed(1, saver))
        await rig.wait_s(20)
        for sequence, request in ((2, 1), (3, 1), (4, 2), (5, 2)):
            await rig.place(placed(sequence, msgspec.structs.replace(saver, checkpoint_request=request)))
            await rig.wait_s(1)
        await rig.wait_s(200)

    rig = virtually(scenario)
    assert rig.said() == ["started", "checkpointed", "checkpointed", "completed"]
    assert [envelope.id for envelope in rig.envelopes() if isinstance(envelope.event, JobCheckpointed)] == [
        "a/1/n00/checkpointed/1",
        "a/1/n00/checkpointed/2",
    ]


def test_older_and_repeated_placements_change_nothing():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(5, assignment("a", 0), epoch=2))
        await rig.wait_s(1)
        await rig.place(placed(4, epoch=2), placed(9, epoch=1), placed(5, assignment("a", 0), epoch=2))
        await rig.wait_s(1)
        return rig.said(), dict(rig.executor.nodes["n00"].refused)

    said, refused = virtually(scenario)
    assert said == ["started"]
    assert [refused[reason] for reason in refused] == [1, 2]


def test_an_assignment_withdrawn_before_it_was_seen_is_reported_as_stopped():
    async def scenario(rig: Rig):
        gone = assignment("a", 0, desired=Desired.STOP, stop_cause=StopCause.CANCELLED, resume_fraction=0.4)
        await rig.place(placed(7, gone))
        await rig.start()
        await rig.wait_s(1)
        await rig.place(placed(8, gone))
        await rig.wait_s(1)

    rig = virtually(scenario)
    assert rig.said() == ["stopped"]
    (stopped,) = rig.events(JobStopped)
    assert (stopped.run_s, stopped.fraction, stopped.cause) == (0.0, 0.4, StopCause.CANCELLED)


def test_the_time_limit_is_enforced_without_an_order():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=1000.0, time_limit_s=150.0, checkpoint=SAVES)))
        await rig.wait_s(500)

    rig = virtually(scenario)
    assert rig.said() == ["started", "checkpointed", "stopped"]
    (stopped,) = rig.events(JobStopped)
    assert (stopped.cause, stopped.run_s, stopped.fraction) == (StopCause.TIME_LIMIT, 160.0, 0.15)


@pytest.mark.parametrize("set_s", [60.0, -60.0])
def test_a_system_clock_that_is_set_takes_nothing_from_a_time_limit(set_s: float):
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=1000.0, time_limit_s=150.0)))
        await rig.wait_s(50)
        rig.clock._domain_skew_ms += round(set_s * 1000)
        begun_s = rig.clock.wall_s()
        while "stopped" not in rig.said():
            await rig.clock.sleep_wall(1.0)
        return rig.clock.wall_s() - begun_s

    assert 100.0 <= virtually(scenario) <= max(100.0, 100.0 - set_s) + 2.0


@pytest.mark.parametrize(("changed_s", "stopped_s"), [(400.0, 400.0), (50.0, 100.0), (0.0, None)])
def test_a_time_limit_that_is_changed_while_the_job_runs_counts_at_once(changed_s, stopped_s):
    async def scenario(rig: Rig):
        await rig.start()
        job = assignment("a", 0, run_s=1000.0, time_limit_s=150.0)
        await rig.place(placed(1, job))
        await rig.wait_s(100)
        await rig.place(placed(2, msgspec.structs.replace(job, time_limit_s=changed_s)))
        await rig.wait_s(2000)

    rig = virtually(scenario)
    stops = [event.run_s for event in rig.events(JobStopped)]
    assert stops == ([] if stopped_s is None else [stopped_s])


def test_an_application_grows_and_shrinks_under_one_attempt_and_never_takes_a_held_gpu():
    async def scenario(rig: Rig):
        await rig.start()

        def app(*gpus: int):
            return assignment("app", *gpus, application=True)

        await rig.place(placed(1, app(0, 1), assignment("b", 2, run_s=50.0)))
        await rig.wait_s(10)
        await rig.place(placed(2, app(1, 2, 3), assignment("b", 2, run_s=50.0)))
        await rig.wait_s(1)
        before = list(rig.executor.nodes["n00"].state.runs["app/1"].gpus)
        await rig.wait_s(60)
        after = list(rig.executor.nodes["n00"].state.runs["app/1"].gpus)
        return before, after, rig.said("app")

    before, after, said = virtually(scenario)
    assert before == [1, 3]
    assert after == [1, 2, 3]
    assert said == ["started"]


def test_two_assignments_that_want_one_gpu_run_one_after_the_other():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=10.0), assignment("b", 0, run_s=10.0)))
        await rig.wait_s(30)

    rig = virtually(scenario)
    starts = [event.time_ms - START_MS for event in rig.events(JobStarted)]
    assert starts == [0, 10_000]


def test_an_application_that_left_a_node_may_come_back_under_its_attempt():
    async def scenario(rig: Rig):
        await rig.start()
        app = assignment("app", 0, application=True)
        for sequence, listed in ((1, [app]), (2, []), (3, [app])):
            await rig.place(placed(sequence, *listed))
            await rig.wait_s(10)
        await rig.crash()
        await rig.start()
        await rig.wait_s(10)

    rig = virtually(scenario)
    assert rig.said() == ["started", "stopped", "started"]
    assert [envelope.id for envelope in rig.envelopes() if isinstance(envelope.event, JobStarted)] == [
        "app/1/n00/started",
        "app/1/n00/started/2",
    ]

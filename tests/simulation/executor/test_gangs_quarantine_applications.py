"""Gangs over several executors, GPUs that are not free, applications that fail and serve: in virtual time on the memory bus."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
import pytest

from schemas.executions import (
    FailureCause,
    JobCheckpointed,
    JobFailed,
    JobPrepared,
    JobReady,
    JobStarted,
    JobStopped,
    NodeReported,
    QuarantinedGpu,
    StopCause,
)
from schemas.jobs import CheckpointMode, CheckpointPolicy, ProbeKind, Readiness
from schemas.placements import Desired
from services.executor.shell.drivers.port import Answer
from services.executor.shell.gangs import WAIT_S_MAX
from services.executor.shell.loop import Executor, Settings
from services.executor.shell.quarantine import REPORT_AFTER_S
from services.runtime.virtual import VirtualClock, run_virtual
from tests.simulation.executor.scripted_rig import Pair, Scripted, scripted, together
from tests.unit.executor.executor_rig import START_MS, Rig, assignment, placed, virtually

# --- checkpoints


def saver(**changed):
    policy = CheckpointPolicy(mode=CheckpointMode.SIGNAL, interval_s=100.0)
    return assignment("a", 0, run_s=1000.0, checkpoint=policy, **changed)


def test_a_running_job_is_asked_at_its_interval_which_every_checkpoint_sets_back():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, saver()))
        await rig.wait_s(250)
        await rig.place(placed(2, saver(checkpoint_request=1)))
        await rig.wait_s(200)

    rig = virtually(scenario)
    times = [event.time_ms - START_MS for event in rig.events(JobCheckpointed)]
    assert times == [110_000, 220_000, 260_000, 370_000]


def test_the_interval_goes_on_where_it_was_after_a_crash():
    async def scenario(rig: Rig):
        await rig.start()
        await rig.place(placed(1, saver()))
        await rig.wait_s(150)
        await rig.crash()
        await rig.wait_s(20)
        await rig.start()
        await rig.wait_s(100)

    rig = virtually(scenario)
    assert [event.time_ms - START_MS for event in rig.events(JobCheckpointed)] == [110_000, 220_000]


def test_a_checkpoint_nobody_asked_for_counts_and_sets_the_interval_back():
    async def scenario(rig: Rig, script: Scripted):
        await rig.start()
        await rig.place(placed(1, saver()))
        await rig.wait_s(60)
        script.said.append(Answer(0.05, "own"))
        await rig.wait_s(130)
        await rig.place(placed(2, msgspec.structs.replace(saver(), desired=Desired.STOP, stop_cause=StopCause.DRAIN)))
        await rig.wait_s(30)

    rig = scripted(scenario)
    own, asked, last = rig.events(JobCheckpointed)
    assert (own.fraction, own.location) == (0.05, "own")
    assert 170_000 <= asked.time_ms - START_MS <= 172_000
    assert last.time_ms - START_MS == 200_000
    assert len({envelope.id for envelope in rig.envelopes()}) == len(rig.envelopes())


# --- gangs


def starts(rig: Rig) -> list[int]:
    return [event.time_ms - START_MS for event in rig.events(JobStarted)]


def test_a_gang_starts_nowhere_before_all_its_nodes_are_prepared():
    async def scenario(pair: Pair):
        await pair.left.start()
        await pair.place(1)
        await pair.left.wait_s(30)
        assert starts(pair.left) == []
        await pair.right.start()
        await pair.left.wait_s(100)

    rig = together(scenario)
    first, second = starts(rig)
    assert 30_000 <= min(first, second) <= max(first, second) <= 31_500
    assert rig.said().count("completed") == 2


def test_a_node_that_waits_too_long_for_the_others_gives_up_and_says_so_without_an_order():
    async def scenario(pair: Pair):
        await pair.left.start()
        await pair.place(1)
        await pair.left.wait_s(WAIT_S_MAX - 10)
        assert pair.left.events(JobStopped) == []
        await pair.left.wait_s(20)
        await pair.place(2)  # what ended is not started again
        await pair.right.start()
        await pair.left.wait_s(30)

    rig = together(scenario)
    stopped = next(event for event in rig.events(JobStopped) if event.node == "n00")
    assert (stopped.cause, stopped.run_s) == (StopCause.GANG_BROKEN, 0.0)
    assert "n00" not in {event.node for event in rig.events(JobStarted)}


def test_a_node_with_another_gpu_model_fails_alone_and_the_others_never_start():
    async def scenario(pair: Pair):
        pair.right.driver.models["n01"] = "A100"
        await pair.left.start()
        await pair.right.start()
        await pair.place(1)
        await pair.left.wait_s(20)
        await pair.place(2, desired=Desired.STOP, stop_cause=StopCause.GANG_BROKEN)
        await pair.left.wait_s(20)

    rig = together(scenario)
    (failed,) = rig.events(JobFailed)
    assert (failed.node, failed.cause) == ("n01", FailureCause.PREFLIGHT)
    assert "A100" in failed.detail
    (stopped,) = rig.events(JobStopped)
    assert (stopped.node, stopped.run_s) == ("n00", 0.0)
    assert starts(rig) == []


def test_an_executor_that_crashes_while_its_gang_waits_goes_on_waiting():
    async def scenario(pair: Pair):
        await pair.left.start()
        await pair.place(1)
        await pair.left.wait_s(5)
        await pair.left.crash()
        await pair.left.start()
        await pair.left.wait_s(5)
        await pair.right.start()
        await pair.left.wait_s(100)

    rig = together(scenario)
    assert len(starts(rig)) == 2
    assert rig.said().count("completed") == 2


def test_a_gang_within_one_executor_needs_no_topic_to_agree():
    async def main(clock: VirtualClock):
        rig = Rig(clock, nodes=("n00", "n01"))
        await rig.start()
        gang = [assignment("g", 0, run_s=50.0, nodes=["n00", "n01"], node_rank=rank, world_size=1) for rank in (0, 1)]
        await rig.place(placed(1, gang[0]), placed(1, gang[1], node="n01"))
        await rig.wait_s(100)
        await rig.crash()
        return rig

    rig = run_virtual(main, START_MS)
    assert starts(rig) == [0, 0]
    assert rig.events(JobPrepared) == []


# --- quarantine


class Memory:
    def __init__(self) -> None:
        self.used: dict[int, str] = {}

    def indices(self) -> list[int]:
        return [0, 1, 2, 3]

    def in_use(self, gpus):
        return {gpu: self.used[gpu] for gpu in gpus if gpu in self.used}


def test_a_gpu_in_use_after_a_job_is_reported_kept_free_of_jobs_and_given_back_once_it_is_free():
    async def scenario(rig: Rig):
        memory = Memory()
        settings = Settings(nodes=("n00",), cluster="c0", partition=0, client_id="executor")
        rig.executor = Executor(
            settings, rig.bus, rig.clock, rig.driver, lambda name: rig.journals[name], memory=memory
        )
        rig.task = asyncio.get_running_loop().create_task(rig.executor.run(rig.stop))
        await rig.executor.ready.wait()
        await rig.place(
            placed(1, assignment("a", 0, 1, run_s=10.0), assignment("b", 1, run_s=10.0), assignment("c", 2, run_s=5.0))
        )
        await rig.wait_s(5)
        memory.used[1] = "512 MiB in use by pid 99"
        await rig.wait_s(55)
        assert rig.said("b") == []
        memory.used.clear()
        await rig.wait_s(20)

    rig = virtually(scenario)
    assert rig.said("b") == ["started", "completed"]
    reported = [event.quarantined for event in rig.events(NodeReported)]
    assert reported == [[], [QuarantinedGpu(gpu=1, reason="512 MiB in use by pid 99 after a/1 ended")], []]
    told_ms = rig.events(NodeReported)[1].time_ms - START_MS
    assert REPORT_AFTER_S * 1000 <= told_ms - 10_000 <= (REPORT_AFTER_S + 1) * 1000


# --- applications


def app(*gpus: int, **changed):
    return assignment("app", *gpus, application=True, **changed)


def test_an_application_that_keeps_failing_comes_back_with_rising_pauses():
    async def scenario(rig: Rig, script: Scripted):
        await rig.start()
        await rig.place(placed(1, app(0)))
        await rig.wait_s(1)
        for _ in range(4):
            script.ends[-1].set()
            count = len(script.ends)
            for _ in range(200):
                await rig.wait_s(0.1)
                if len(script.ends) > count:
                    break
        await rig.place(placed(2))
        await rig.wait_s(100)

    rig = scripted(scenario)
    assert rig.said() == ["started", "failed"] * 4 + ["started", "stopped"]
    times = starts(rig)
    pauses = [round((after - before) / 1000, 1) for before, after in pairwise(times)]
    assert pauses == pytest.approx([2.0, 2.1, 4.1, 8.1], abs=0.2)


def test_readiness_is_told_when_it_changes_and_who_never_serves_is_started_anew():
    async def scenario(rig: Rig, script: Scripted):
        probe = Readiness(kind=ProbeKind.TCP, period_s=1.0, wait_s=20.0)
        await rig.start()
        await rig.place(placed(1, app(0, readiness=probe)))
        await rig.wait_s(30)
        script.serving = True
        await rig.wait_s(30)
        script.serving = False
        await rig.wait_s(5)

    rig = scripted(scenario)
    assert rig.said() == ["started", "failed", "started", "ready", "ready"]
    assert [event.ready for event in rig.events(JobReady)] == [True, False]


@pytest.mark.parametrize(("acknowledged_s", "free_s"), [(7.0, 7.0), (None, 30.0)])
def test_gpus_taken_from_an_application_are_free_once_it_let_go_or_its_time_is_over(acknowledged_s, free_s):
    async def scenario(rig: Rig, script: Scripted):
        await rig.start()
        await rig.place(placed(1, app(0, 1, drain_s=30.0)))
        await rig.wait_s(10)
        await rig.place(placed(2, app(0, drain_s=30.0), assignment("b", 1, run_s=500.0)))
        if acknowledged_s is not None:
            await rig.wait_s(acknowledged_s)
            script.drained.set()
        await rig.wait_s(50)
        script.drained.set()
        await rig.place(placed(3))
        await rig.wait_s(50)
        return rig, script.told

    rig, told = scripted(scenario)
    (begun,) = [event.time_ms - START_MS for event in rig.events(JobStarted) if event.job_id == "b"]
    assert begun == 10_000 + free_s * 1000
    assert told == [(0,), ()]
    assert rig.said("app") == ["started", "stopped"]

"""A checkpoint request reaches every node of a gang whatever its reason, and a start that takes long is not silent."""

from __future__ import annotations

from schemas.executions import JobCheckpointed, JobStopped, NodeReported, StopCause
from schemas.jobs import CheckpointMode, CheckpointPolicy
from schemas.placements import Desired
from services.executor.shell.node import SLOW_START_S
from tests.simulation.executor.scripted_rig import Pair, Scripted, scripted, together
from tests.unit.executor.executor_rig import START_MS, Rig, assignment, placed


def test_every_node_of_a_gang_is_asked_at_intervals_by_order_and_before_a_stop():
    policy = CheckpointPolicy(mode=CheckpointMode.SIGNAL, interval_s=100.0)

    async def scenario(pair: Pair):
        await pair.left.start()
        await pair.right.start()
        await pair.place(1, run_s=1000.0, checkpoint=policy)
        await pair.left.wait_s(150)
        await pair.place(2, run_s=1000.0, checkpoint=policy, checkpoint_request=1)
        await pair.left.wait_s(30)
        stop = {"desired": Desired.STOP, "stop_cause": StopCause.DRAIN}
        await pair.place(3, run_s=1000.0, checkpoint=policy, checkpoint_request=1, **stop)
        await pair.left.wait_s(30)

    saved = [(event.node, event.time_ms - START_MS) for event in together(scenario).events(JobCheckpointed)]
    for node in ("n00", "n01"):
        at_ms = [time_ms for name, time_ms in saved if name == node]
        assert len(at_ms) == 3, "at the interval, by order, before the stop"
        assert all(abs(found - due) <= 2_000 for found, due in zip(at_ms, (110_000, 160_000, 190_000), strict=True))


def test_a_start_that_waits_in_a_queue_is_taken_back_when_the_job_is_to_stop():
    async def scenario(rig: Rig, script: Scripted):
        script.queues = True
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=10.0)))
        await rig.wait_s(20)
        await rig.place(placed(2, assignment("a", 0, desired=Desired.STOP, stop_cause=StopCause.CANCELLED, run_s=10.0)))
        await rig.wait_s(1)
        assert rig.said("a") == ["stopped"]
        script.queues = False
        await rig.place(placed(3, assignment("b", 0, run_s=10.0)))
        await rig.wait_s(1)

    rig = scripted(scenario)
    assert rig.said("b") == ["started"], "the GPU is free again"
    (stopped,) = rig.events(JobStopped)
    assert (stopped.cause, stopped.run_s) == (StopCause.CANCELLED, 0.0)


def test_a_start_that_takes_long_is_said_to_be_under_way():
    async def scenario(rig: Rig, script: Scripted):
        script.start_s = 3 * SLOW_START_S
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=10.0)))
        await rig.wait_s(SLOW_START_S - 1)
        assert len(rig.events(NodeReported)) == 1
        await rig.wait_s(2)

    first, second = scripted(scenario).events(NodeReported)
    assert (first.running, [held.job_id for held in second.running]) == ([], ["a"])

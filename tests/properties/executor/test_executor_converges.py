"""Any history of placements, crashes and failed sends: nothing runs twice, no GPU is shared, the node ends as placed."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.executions import JobCompleted, JobFailed, JobStarted, JobStopped, StopCause
from schemas.placements import Assignment, Desired
from services.executor.core.journal import NodeState
from services.executor.core.lifecycle import State
from services.executor.shell.drivers.port import Order
from services.executor.shell.drivers.simulated import SimulatedDriver, SimulatedRun
from services.runtime.bus.faults import Unknown
from services.runtime.virtual import VirtualClock, run_virtual
from tests.unit.executor.executor_rig import SAVES, Rig, assignment, placed

START_MS = 1_800_000_000_000
GPUS = 4


class Slow(SimulatedRun):
    """An application of this driver takes two seconds to let go of GPUs."""

    async def let_go(self, wait_s: float) -> None:
        await self._clock.sleep_wall(min(wait_s, 2.0))


class Watched(SimulatedDriver):
    """Counts what it is asked to start, as an observer outside the executor. Applications take a second to begin: a crash meanwhile leaves
    a wish that nothing came of."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.starts: Counter[tuple[str, int, int]] = Counter()

    async def start(self, order: Order):
        self.starts[order.assignment.job_id, order.assignment.attempt, order.spawn] += 1
        if order.assignment.application:
            await self._clock.sleep_wall(1.0)
        run = await super().start(order)
        return Slow(self._clock, run._course, run.facts, self._checkpoint_s)


@st.composite
def assignments(draw) -> list[Assignment]:
    found = []
    for job in draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4)):
        desired = draw(st.sampled_from([Desired.RUN, Desired.RUN, Desired.RUN, Desired.STOP]))
        first = draw(st.integers(0, GPUS - 1))
        gpus = [first] if draw(st.booleans()) else [first, (first + 1) % GPUS]
        fields = {
            "attempt": draw(st.integers(1, 2)),
            "desired": desired,
            "run_s": draw(st.sampled_from([0.0, 3.0, 40.0])),
        }
        if job == "d":
            fields |= {"application": True, "drain_s": draw(st.sampled_from([0.0, 4.0]))}
        if draw(st.booleans()):
            saves = msgspec.structs.replace(SAVES, interval_s=draw(st.sampled_from([0.0, 30.0])))
            fields |= {"checkpoint": saves, "checkpoint_request": draw(st.integers(0, 2))}
        if draw(st.integers(0, 4)) == 0:
            fields["time_limit_s"] = 10.0
        found.append(assignment(job, *gpus, **fields))
    return found


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.integers(1, 3), st.integers(1, 12), assignments()),
        st.tuples(st.just("placed while away"), st.integers(1, 3), st.integers(1, 12), assignments()),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 5.0, 30.0])),
        st.tuples(st.just("crash"), st.sampled_from([0.0, 7.0])),
        st.tuples(st.just("fail"), st.sampled_from(list(Unknown)), st.integers(1, 6)),
        st.tuples(st.just("leave"), st.booleans()),
    ),
    max_size=14,
)


def no_gpu_is_shared(state: NodeState) -> None:
    held = [gpu for run in state.runs.values() if run.state is not State.WAITING for gpu in run.held]
    assert len(held) == len(set(held)), held


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_any_history_is_survived(steps):
    async def main(clock: VirtualClock):
        rig = Rig(clock)
        rig.driver = driver = Watched(clock)
        offered: dict[tuple[int, int], list[Assignment]] = {}
        await rig.start()
        for step in steps:
            match step:
                case "place", epoch, sequence, wanted:
                    # One number has one content, as in the log.
                    content = offered.setdefault((epoch, sequence), wanted)
                    await rig.place(placed(sequence, *content, epoch=epoch))
                case "placed while away", epoch, sequence, wanted:
                    await rig.crash()
                    content = offered.setdefault((epoch, sequence), wanted)
                    await rig.place(placed(sequence, *content, epoch=epoch))
                    await rig.start()
                case "wait", duration_s:
                    await rig.wait_s(duration_s)
                case "crash", duration_s:
                    await rig.crash()
                    await rig.wait_s(duration_s)
                    await rig.start()
                case "fail", how, times:
                    for _ in range(times):
                        rig.bus.fail_next_send("executions", how)
                case "leave", stop_jobs:
                    await rig.leave()
                    await rig.start(stop_jobs=stop_jobs)
            no_gpu_is_shared(rig.executor.nodes["n00"].state)
        await rig.wait_s(600)
        check_reports(rig, driver)
        check_end(rig, offered)
        await rig.crash()

    run_virtual(main, START_MS)


def check_reports(rig: Rig, driver: Watched) -> None:
    """Every (job, attempt, spawn) was started at most once; a job's attempt has at most one start and one end."""
    assert all(count == 1 for count in driver.starts.values()), driver.starts
    said: dict[str, bytes] = {}
    ends: Counter[tuple[str, int]] = Counter()
    begun: Counter[tuple[str, int]] = Counter()
    for envelope in rig.envelopes():
        content = msgspec.json.encode(envelope.event)
        known = said.setdefault(envelope.id, content)
        assert known == content, f"{envelope.id} was said with two contents"
        if known is content and getattr(envelope.event, "job_id", "d") != "d":
            key = (envelope.event.job_id, envelope.event.attempt)
            ends[key] += isinstance(envelope.event, JobCompleted | JobFailed | JobStopped)
            begun[key] += isinstance(envelope.event, JobStarted)
    assert all(count <= 1 for count in ends.values()), ends
    assert all(count <= 1 for count in begun.values()), begun
    for key in rig.executor.nodes["n00"].state.ended:
        job_id, _, attempt = key.rpartition("/")
        assert job_id == "d" or ends[job_id, int(attempt)] == 1, f"nobody was told that {key} ended"


def check_end(rig: Rig, offered: dict[tuple[int, int], list[Assignment]]) -> None:
    """After a long while only what the newest placement lists runs, and every job that could run has ended."""
    state = rig.executor.nodes["n00"].state
    assert not state.reports, "every report was acknowledged"
    if not offered:
        return
    newest = max(offered)
    assert (state.epoch, state.sequence) == newest
    wanted = {f"{each.job_id}/{each.attempt}": each for each in offered[newest]}
    for key, run in state.runs.items():
        assert wanted[key].desired is Desired.RUN
        assert run.assignment.application
    for key, each in wanted.items():
        if not each.application:
            assert key in state.ended or _blocked(each, state), key
    stopped = [event for event in rig.events(JobStopped) if event.cause is StopCause.TIME_LIMIT]
    assert all(event.run_s >= 10.0 for event in stopped)


def _blocked(each: Assignment, state: NodeState) -> bool:
    """An application holds a GPU that this job waits for, for ever: the placement contradicts itself."""
    held = [gpu for run in state.runs.values() for gpu in run.gpus]
    return any(gpu in held for gpu in each.gpus)

"""What the collector makes of records: attempts, holds, waits, latency marks. Folding twice changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from schemas.base import Event
from schemas.decisions import DecisionMade, Effect, Placed, RecordKind, Scaled, Waits
from schemas.executions import (
    FailureCause,
    JobCheckpointed,
    JobCompleted,
    JobFailed,
    JobStarted,
    JobStopped,
    StopCause,
)
from schemas.jobs import ApplicationSpec, JobSpec, JobSubmitted, Kind
from schemas.messages import message
from schemas.placements import Assignment, Desired, NodePlaced
from schemas.records import Record
from schemas.status import NodeGpus
from services.replay.core.day import Day, DayApp, DayJob
from services.replay.core.latency import latencies
from services.replay.core.observation import Observation
from services.replay.core.outcome import End

START_MS = 1_500_000_000_000
WALL_MS = 1_700_000_000_000


def job(job_id: str, run_s: dict[int, float]) -> DayJob:
    spec = JobSpec(kind=Kind.TRAINING, team="a", user="b", priority=1, sizes=sorted(run_s), template="simulated")
    return DayJob(job_id, START_MS, spec, run_s)


@pytest.fixture
def observation() -> Observation:
    spec = ApplicationSpec(team="s", user="u", priority=3, floor_gpus=1, peak_gpus=8, switch_max=2)
    app = DayApp("chat", spec, 10.0, 600, (), (10.0,) * 24)
    jobs = (job("a", {1: 1000.0}), job("b", {16: 1000.0}))
    return Observation(Day("d", 1, START_MS, 4.0, 32, 8, "c0", "h100", jobs, (app,)))


offsets: Iterator[int] = itertools.count()


def record(event: Event, *, wall_ms: int = WALL_MS) -> Record:
    sent = message(event, key="k", id="i", source="/test", time_ms=START_MS, partition=0)
    return Record(sent.topic, 0, next(offsets), sent.key, sent.value, sent.headers, wall_ms)


def decision(sequence: int, *effects: Effect, parent: str = "", now_ms: int = START_MS) -> DecisionMade:
    return DecisionMade(
        cluster="c0",
        sequence=sequence,
        id=f"d{sequence}",
        parent=parent or (f"d{sequence - 1}" if sequence > 1 else ""),
        epoch=1,
        kind=RecordKind.DECISION,
        writer="w",
        now_ms=now_ms,
        wall_ms=WALL_MS,
        effects=list(effects),
    )


def started(job_id: str, node: str, at_s: int, gpus: int, attempt: int = 1) -> JobStarted:
    return JobStarted(
        job_id=job_id,
        attempt=attempt,
        node=node,
        cluster="c0",
        time_ms=START_MS + at_s * 1000,
        wall_ms=WALL_MS + 90,
        gpus=list(range(gpus)),
        sequence=1,
    )


def completed(job_id: str, node: str, at_s: int, attempt: int = 1) -> JobCompleted:
    return JobCompleted(
        job_id=job_id, attempt=attempt, node=node, cluster="c0", time_ms=START_MS + at_s * 1000, run_s=1.0
    )


def stopped(
    job_id: str, at_s: int, cause: StopCause, *, checkpointed: bool = False, fraction: float = 0.0
) -> JobStopped:
    return JobStopped(
        job_id=job_id,
        attempt=1,
        node="n00",
        cluster="c0",
        time_ms=START_MS + at_s * 1000,
        cause=cause,
        checkpointed=checkpointed,
        fraction=fraction,
    )


def test_a_gang_starts_with_its_last_part_and_ends_with_its_last(observation: Observation) -> None:
    for event in (started("b", "n00", 10, 8), started("b", "n01", 12, 8), completed("b", "n00", 1012)):
        observation.fold(record(event))
    (running,) = observation.attempts()
    assert (running.end, running.end_ms, running.gpus) == (End.RUNNING, None, 16)
    observation.fold(record(completed("b", "n01", 1013)))
    (attempt,) = observation.attempts()
    assert (attempt.start_ms, attempt.end_ms) == (START_MS + 12_000, START_MS + 1_013_000)
    assert attempt.end is End.COMPLETED


def test_repeated_records_change_nothing(observation: Observation) -> None:
    events = [started("a", "n00", 10, 1), completed("a", "n00", 1010), started("a", "n00", 10, 1)]
    for event in events * 3:
        observation.fold(record(event))
    assert len(observation.attempts()) == 1
    assert observation.attempts()[0].end is End.COMPLETED


def test_ends_that_are_no_completion(observation: Observation) -> None:
    failure = JobFailed(
        job_id="a",
        attempt=1,
        node="n00",
        cluster="c0",
        time_ms=START_MS + 50_000,
        cause=FailureCause.EXIT_CODE,
    )
    cases = [
        (failure, End.LOST, 0.0),
        (stopped("a", 50, StopCause.TIME_LIMIT), End.TIMED_OUT, 0.0),
        (stopped("a", 50, StopCause.DRAIN), End.LOST, 0.0),
        (stopped("a", 50, StopCause.DRAIN, checkpointed=True, fraction=0.04), End.SAVED, 40.0),
    ]
    for event, end, kept_s in cases:
        fresh = Observation(observation.day)
        fresh.fold(record(started("a", "n00", 0, 1)))
        fresh.fold(record(event))
        (attempt,) = fresh.attempts()
        assert (attempt.end, attempt.kept_s) == (end, pytest.approx(kept_s))


def test_a_second_attempt_keeps_only_what_it_added(observation: Observation) -> None:
    saved = JobCheckpointed(job_id="a", attempt=1, node="n00", cluster="c0", time_ms=START_MS + 400_000, fraction=0.4)
    again = replace(saved, attempt=2, fraction=0.7)
    lost = replace(stopped("a", 900, StopCause.NODE_LOST), attempt=2)
    for event in (
        started("a", "n00", 0, 1),
        saved,
        stopped("a", 500, StopCause.NODE_LOST),
        started("a", "n00", 600, 1, attempt=2),
        again,
        lost,
    ):
        observation.fold(record(event))
    first, second = observation.attempts()
    assert (first.end, first.kept_s) == (End.SAVED, pytest.approx(400))
    assert (second.end, second.kept_s) == (End.SAVED, pytest.approx(300))


def test_only_decisions_the_log_accepts_count(observation: Observation) -> None:
    scaled = Scaled(app_id="chat", pool="h100", placed=[NodeGpus(node="n03", gpus=[6, 7])], switched=2)
    observation.fold(record(decision(1, scaled)))
    observation.fold(record(decision(1, replace(scaled, placed=[]))))  # repeated number
    observation.fold(record(decision(2, replace(scaled, placed=[]), parent="somebody-else")))
    observation.fold(record(decision(2, Waits(job_id="a", reason="fragmented"))))
    assert (observation.decisions, observation.rejected) == (2, 1)
    assert [(hold.app_id, hold.gpus) for hold in observation.holds] == [("chat", 2)]
    assert observation.waits["a"].reason == "fragmented"


def placed(job_id: str) -> Placed:
    return Placed(
        job_id=job_id,
        attempt=1,
        pool="h100",
        gpus=1,
        placed=[NodeGpus(node="n00", gpus=[0])],
        p50_s=600.0,
        p90_s=900.0,
    )


def test_blocks_open_with_the_decision_and_close_with_the_report(observation: Observation) -> None:
    observation.fold(record(decision(1, placed("a"))))
    assert observation.blocks["a"].until_p50_ms == START_MS + 600_000
    observation.fold(record(started("a", "n00", 1, 1)))
    observation.fold(record(completed("a", "n00", 700)))
    assert not observation.blocks
    assert observation.past[0].until_ms == START_MS + 700_000


def test_blocks_close_whichever_topic_is_read_first(observation: Observation) -> None:
    observation.fold(record(started("a", "n00", 1, 1)))
    observation.fold(record(completed("a", "n00", 700)))
    observation.fold(record(decision(1, placed("a"))))
    assert not observation.blocks
    assert observation.past[0].until_ms == START_MS + 700_000


def test_a_late_report_of_an_older_attempt_closes_nothing(observation: Observation) -> None:
    observation.fold(record(decision(1, replace(placed("a"), attempt=2))))
    observation.fold(record(started("a", "n00", 1, 1)))
    observation.fold(record(completed("a", "n00", 700)))
    assert observation.blocks["a"].attempt == 2


def test_latency_leaves_queueing_out(observation: Observation) -> None:
    for job_id in ("a", "b"):
        submitted = JobSubmitted(job_id=job_id, submitted_ms=START_MS, spec=job(job_id, {1: 1.0}).spec)
        observation.fold(record(submitted))
    observation.fold(record(decision(1, Waits(job_id="a", reason="awaiting_forecast")), wall_ms=WALL_MS + 20))
    effects = (placed("a"), Waits(job_id="b", reason="waiting_for_gpus"))
    observation.fold(record(decision(2, *effects), wall_ms=WALL_MS + 30))
    assignment = Assignment(job_id="a", attempt=1, desired=Desired.RUN, gpus=[0])
    node = NodePlaced(
        node="n00", cluster="c0", pool="h100", sequence=2, epoch=1, time_ms=START_MS, assignments=[assignment]
    )
    observation.fold(record(node, wall_ms=WALL_MS + 35))
    observation.fold(record(started("a", "n00", 1, 1)))  # wall: + 90
    hops = latencies(observation.marks.values())
    assert {name: (hop.jobs, hop.p50_ms, hop.p99_ms) for name, hop in hops.items()} == {
        "submit → decided": (2, 20.0, 30.0),
        "decided → placed": (1, 5.0, 5.0),
        "placed → running": (1, 55.0, 55.0),
        "submit → running": (1, 90.0, 90.0),
    }


def test_rubbish_is_counted_not_raised(observation: Observation) -> None:
    good = record(started("a", "n00", 0, 1))
    observation.fold(Record("executions", 0, 9, b"k", b"{", good.headers, WALL_MS))
    observation.fold(Record("dead-letters", 0, 9, b"k", b"{}", (), WALL_MS))
    observation.fold(record(started("stranger", "n00", 0, 1)))
    assert (observation.unreadable, observation.dead_letters, observation.attempts()) == (1, 1, [])

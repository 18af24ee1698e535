"""The soak's script repeats itself, every job of it must end in one way, and its judge finds each kind of violation when it is planted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec import Raw

from bench.soak.evidence import End, Evidence, Start
from bench.soak.judge import ENDING, certain_counts, compare, judge, recorded_gpu_ms
from bench.soak.kills import SECOND_FIRST_AT, VICTIMS, plan
from bench.soak.publish import CHUNK, OPEN_MAX, Progress
from bench.soak.script import ATTEMPTS, CANCELLED, FAILS_AT, Fate, Script, Step, Verb, job_id_of, made
from bench.soak.stack import SECOND, catalog, second_name
from schemas.codec import decode_record, encode
from schemas.decisions import DecisionInput, DecisionMade, Placed, RecordKind
from schemas.executions import JobStarted
from schemas.records import Now, Record
from schemas.status import FINAL_STATES, JobState, JobStatusChanged
from services.intake.core.handler import IntakeHandler
from tests.build import CLUSTER

EVENTS = 3_000


def drawn(seed: int = 1, count: int = EVENTS) -> Script:
    script = Script(seed, count, ("c0", "c1"))
    assert sum(1 for _ in script.steps()) == count
    return script


def perfect(script: Script) -> tuple[Evidence, dict[str, int]]:
    """What a run shows in which nothing went wrong, and what it is metered."""
    evidence = Evidence()
    clock_ms = 0
    for job in script.jobs:
        evidence.events.add(f"{job.job_id}/submit")
        evidence.finals[job.number] = evidence.newest[job.number] = (1, job.final)
        if job.fate is not Fate.REFUSED:
            evidence.digests[job.number] = "digest"
        if job.fate in CANCELLED:
            evidence.revoked.add(job.number)
            evidence.events.add(f"{job.job_id}/cancel")
        whole_ms = round(job.run_s * (FAILS_AT if job.final is JobState.FAILED else 1) * 1000)
        for attempt in range(1, ATTEMPTS[job.fate][1] + 1):
            evidence.placed.setdefault(job.number, []).append(attempt)
            key = (job.number, attempt, f"{job.cluster}-n00")
            evidence.starts[key] = Start(clock_ms, tuple(range(job.gpus)))
            clock_ms += whole_ms if job.gpu_ms is not None else 700
            evidence.ends[key] = End(ENDING[job.fate], "", clock_ms)
    evidence.amended = set(script.changed)
    evidence.events |= {f"{job_id_of(number)}/change" for number in script.changed}
    return evidence, {job_id_of(number): spent for number, spent in recorded_gpu_ms(evidence).items()}


def test_same_seed_same_script_and_every_fate_is_in_it() -> None:
    first, again, other = drawn(), drawn(), drawn(seed=2)
    assert first.jobs == again.jobs
    assert first.jobs != other.jobs
    assert {job.fate for job in first.jobs} == set(Fate)
    assert {job.final for job in first.jobs} == FINAL_STATES


def test_what_follows_a_submission_comes_after_its_chunk_and_every_cancellation_comes() -> None:
    script = Script(3, EVENTS, ("c0", "c1"))
    steps = list(script.steps())
    submitted = {
        step.number: place for place, step in enumerate(steps) if step.verb is Verb.SUBMIT and not step.repeats
    }
    assert sorted(submitted) == list(range(len(script.jobs)))
    for place, step in enumerate(steps):
        if step.repeats or step.verb is not Verb.SUBMIT:
            assert place // CHUNK > submitted[step.number] // CHUNK
    cancelled = {step.number for step in steps if step.verb is Verb.CANCEL}
    assert cancelled == {job.number for job in script.jobs if job.fate in CANCELLED}
    assert script.ids == len({step.id for step in steps})


def test_jobs_that_wait_for_a_later_event_never_fill_the_publishers_window() -> None:
    script = Script(4, 30_000, ("c0", "c1"))
    waiting, most = set(), 0
    for step in script.steps():
        if step.verb is Verb.SUBMIT and script.jobs[step.number].fate in CANCELLED and not step.repeats:
            waiting.add(step.number)
        elif step.verb is Verb.CANCEL:
            waiting.discard(step.number)
        most = max(most, len(waiting))
    assert 0 < most < OPEN_MAX / 2


def test_intake_lets_in_and_refuses_as_the_script_says() -> None:
    handler = IntakeHandler(catalog(64))
    for offset, job in enumerate(drawn().jobs[:400]):
        sent = made(job, Step(Verb.SUBMIT, job.number), 1_000)
        record = Record(sent.topic, 0, offset, sent.key, sent.value, sent.headers, 1_000)
        topics = {message.topic for message in handler.handle(record, Now(1_000, 1_000))}
        assert topics == ({"dead-letters", "job-status"} if job.fate is Fate.REFUSED else {"jobs"}), job


def test_a_perfect_run_has_nothing_wrong_and_equals_itself() -> None:
    script = drawn()
    evidence, metered = perfect(script)
    assert judge(script, evidence, metered) == []
    counts = certain_counts(script, evidence)
    assert counts["jobs completed"] > 0
    assert compare(counts, counts) == []
    assert compare(counts, {**counts, "jobs completed": 0}) == [
        f"jobs completed: {counts['jobs completed']} undisturbed, 0 disturbed"
    ]


def _first(script: Script, fate: Fate) -> int:
    return next(job.number for job in script.jobs if job.fate is fate)


def _status(number: int, state: JobState, sequence: int) -> Callable[[Evidence], None]:
    return lambda evidence: evidence._of_job(
        JobStatusChanged(job_id=job_id_of(number), state=state, time_ms=1, sequence=sequence)
    )


def _start(number: int, attempt: int, node: str, time_ms: int) -> Callable[[Evidence], None]:
    started = JobStarted(
        job_id=job_id_of(number),
        attempt=attempt,
        node=node,
        cluster="c0",
        time_ms=time_ms,
        wall_ms=time_ms,
        gpus=[0],
        sequence=1,
    )
    return lambda evidence: evidence._of_job(started)


def _lose(name: str, number: int) -> Callable[[Evidence], None]:
    return lambda evidence: getattr(evidence, name).pop(number)


SCRIPT = drawn()
DONE, FAILED, WAITING = (_first(SCRIPT, fate) for fate in (Fate.COMPLETES, Fate.FAILS, Fate.CANCELLED_WAITING))
PLANTED: dict[str, Callable[[Evidence], None]] = {
    "jobs without a final state": _lose("finals", DONE),
    "jobs with two final states": _status(DONE, JobState.FAILED, 9),
    "jobs with another final state": lambda evidence: evidence.finals.update({FAILED: (1, JobState.COMPLETED)}),
    "jobs that went on after their end": _status(DONE, JobState.RUNNING, 9),
    "jobs let in or refused wrongly": _lose("digests", DONE),
    "jobs that ran too often or too seldom": _start(WAITING, 1, "c0-n07", 5),
    "attempts that started twice": _start(DONE, 1, f"{SCRIPT.jobs[DONE].cluster}-n00", 10**9),
    "attempts placed twice": lambda evidence: evidence.placed[DONE].append(1),
    "executions without an end": lambda evidence: evidence.ends.pop(
        next(key for key in evidence.ends if key[0] == DONE)
    ),
    "GPUs held twice": lambda evidence: evidence.starts.update(
        {next(key for key in evidence.starts if key[0] == FAILED): Start(0, (0, 1, 2, 3))}
    ),
    "changes lost or invented": lambda evidence: evidence.amended.pop(),
    "cancellations lost or invented": lambda evidence: evidence.revoked.pop(),
    "events lost": lambda evidence: evidence.events.pop(),
    "refusals without a dead letter": lambda evidence: evidence.refusable.add(("job-events", 0, 7)),
    "dead letters of what is right": lambda evidence: evidence.letters.update({("jobs", 0, 7): "internal_error"}),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_violation_is_found(kind: str) -> None:
    evidence, metered = perfect(SCRIPT)
    PLANTED[kind](evidence)
    assert any(sentence.startswith(kind) for sentence in judge(SCRIPT, evidence, metered)), kind


@pytest.mark.parametrize(
    ("spent", "kind"), [(1, "jobs metered otherwise"), (1, "metered hours differ from the executions")]
)
def test_one_gpu_millisecond_too_much_on_the_bill_is_found(spent: int, kind: str) -> None:
    evidence, metered = perfect(SCRIPT)
    metered[job_id_of(DONE)] += spent
    assert any(sentence.startswith(kind) for sentence in judge(SCRIPT, evidence, metered))


def _decision(sequence: int, id: str, parent: str, epoch: int, offset: int, writer: str = "a-1") -> Record:
    placed = Placed(job_id=job_id_of(0), attempt=sequence, pool="h100", gpus=1, placed=[], p50_s=1.0, p90_s=1.0)
    made_of = DecisionInput(topic="jobs", partition=0, offset=offset, type="t", id="i", payload=Raw(b"{}"))
    event = DecisionMade(
        cluster=CLUSTER,
        sequence=sequence,
        id=id,
        parent=parent,
        epoch=epoch,
        kind=RecordKind.DECISION,
        writer=writer,
        now_ms=1,
        wall_ms=1,
        inputs=[made_of],
        effects=[placed],
    )
    headers, value = encode(event, id=id, source="/t", time_ms=1)
    return Record("decisions", 0, sequence, b"c0", value, headers, 1)


def test_only_decisions_of_the_accepted_chain_count_and_inputs_only_once() -> None:
    evidence = Evidence()
    for record in (
        _decision(1, "one", "", 1, 0),
        _decision(2, "loser", "other", 1, 1),
        _decision(2, "two", "one", 1, 1, "b-2"),
        _decision(3, "old", "two", 0, 2),
    ):
        assert decode_record(record)
        evidence.fold(record)
    assert evidence.placed == {0: [1, 2]}
    assert evidence.counts["decisions that don't count"] == 2
    assert evidence.writers == {CLUSTER: {"a-1": 1, "b-2": 1}}
    assert evidence.violations.sentences() == []
    evidence.fold(_decision(3, "again", "two", 1, 1))
    assert evidence.violations.sentences() == ["inputs decided twice (1): jobs 0/1"]


def test_kills_are_seeded_ordered_and_spare_nobody() -> None:
    planned = plan(5, 2, 1)
    assert planned == plan(5, 2, 1)
    assert planned != plan(6, 2, 1)
    assert all(one.at <= other.at for one, other in pairwise(planned))
    names = [each.name for each in planned]
    seconds = {second_name(name) for name in SECOND}
    assert sorted(names) == sorted([*VICTIMS, *VICTIMS, *seconds])
    assert all(each.at >= SECOND_FIRST_AT for each in planned if each.name in seconds)


def test_progress_counts_a_jobs_end_once() -> None:
    script = drawn(count=1_300)
    progress = Progress(script)
    progress.published = 1_300
    for _ in range(2):
        progress.end(3)
    assert (progress.ended, progress.open) == (1, len(script.jobs) - 1)
    assert job_id_of(3) not in " ".join(progress.unfinished(len(script.jobs)))

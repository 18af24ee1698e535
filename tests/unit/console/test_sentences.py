"""Every public code has a sentence and advice; every state is explained."""

from __future__ import annotations

import pytest

from schemas.executions import FailureCause, StopCause
from schemas.placements import Assignment, Desired, NodePlaced
from schemas.status import JobState, JobStatusChanged, NodeGpus
from services.allocator.core.reasons import SENTENCES as REASON_SENTENCES
from services.allocator.core.reasons import Reason
from services.console import sentences
from services.console.advice import REASON_HELP, REFUSAL_HELP, code_sentence, refusal_help
from services.console.facts import JobView, World
from services.intake.core.refusals import Reason as Refused
from tests import build

NOW_MS = build.START_MS + 3_600_000


def status(state: JobState, **fields) -> JobStatusChanged:
    base = {
        "job_id": "j1",
        "state": state,
        "time_ms": NOW_MS,
        "sequence": 7,
        "cluster": "c0",
        "submitted_ms": build.START_MS,
    }
    return JobStatusChanged(**(base | fields))


def explained(state: JobState, world: World | None = None, **fields) -> sentences.Explanation:
    view = JobView("j1", status=status(state, **fields), job=build.spec(2, 4))
    return sentences.explain(view, world or World(), NOW_MS)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_for_waiting_has_a_sentence_and_advice(reason: Reason) -> None:
    answer = explained(JobState.QUEUED, reason=reason.public_name)
    assert answer.reason == reason.public_name
    assert answer.sentence.startswith(f"j1 waits ({reason.public_name}): ")
    assert reason in REASON_HELP
    if reason is not Reason.NONE:
        assert REASON_SENTENCES[reason][1:] in answer.sentence
        assert answer.would_help == list(REASON_HELP[reason]) != []


def test_a_size_that_never_fits_is_told_so_and_names_nobody_to_wait_for() -> None:
    world = World(nodes={name: build.node(name, gpus=2) for name in ("n00", "n01")})
    view = JobView("j1", status=status(JobState.QUEUED, reason="size_exceeds_pool", holders=["j0"]), job=build.spec(8))
    answer = sentences.explain(view, world, NOW_MS)
    assert "form no block of any size the job offers" in answer.sentence
    assert answer.sentence.endswith("As it is, it can never start.")
    assert answer.holders == []
    assert any(
        "can never form a block of 8 GPUs" in line and "its blocks have 1, 2, 4." in line for line in answer.lines
    )
    assert "a size the pool can form" in answer.would_help[0]


@pytest.mark.parametrize("refused", list(Refused))
def test_every_refusal_has_a_sentence_and_advice(refused: Refused) -> None:
    assert code_sentence(refused.value) == refused.sentence
    assert REFUSAL_HELP[refused] == refusal_help(refused.value) != ()
    answer = explained(JobState.REFUSED, reason=refused.value, detail="sizes: 3 is no power of two")
    assert answer.sentence == f"j1 was refused ({refused.value}): sizes: 3 is no power of two."
    assert answer.lines == [refused.sentence]


def test_a_code_of_a_newer_service_still_gets_an_answer() -> None:
    assert (
        explained(JobState.REFUSED, reason="brand_new", detail="Because.").sentence
        == "j1 was refused (brand_new): Because."
    )
    assert (
        "j1 waits (brand_new): because." in explained(JobState.QUEUED, reason="brand_new", detail="Because.").sentence
    )


@pytest.mark.parametrize("cause", list(FailureCause))
def test_every_failure_has_words(cause: FailureCause) -> None:
    answer = explained(
        JobState.FAILED, detail=cause.value, started_ms=build.START_MS + 60_000, ended_ms=NOW_MS - 60_000, attempt=2
    )
    assert answer.sentence == f"j1 failed 60 s ago after running 58 min because {sentences.FAILURE_SENTENCES[cause]}."
    assert answer.lines == ["It had waited 60 s before it started; attempts: 2."]


@pytest.mark.parametrize("cause", list(StopCause))
def test_every_stop_has_words(cause: StopCause) -> None:
    world = World()
    stop = Assignment(job_id="j1", attempt=1, desired=Desired.STOP, gpus=[0, 1], stop_cause=cause)
    world.placements["n00"] = NodePlaced(
        node="n00", cluster="c0", pool="h100", sequence=1, epoch=1, time_ms=NOW_MS, assignments=[stop]
    )
    answer = explained(JobState.STOPPING, world, placed=[NodeGpus(node="n00", gpus=[0, 1])])
    assert answer.sentence == f"j1 is being stopped on 2 GPUs at n00: 0-1 because {sentences.STOP_SENTENCES[cause]}."


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_is_explained(state: JobState) -> None:
    answer = explained(state)
    assert answer.state == state.value
    assert answer.sentence.startswith("j1 ")
    assert answer.sentence.endswith(".")


def test_an_accepted_job_without_a_decision_is_explained() -> None:
    answer = sentences.explain(JobView("j1", accepted_ms=NOW_MS - 2000), World(), NOW_MS)
    assert (answer.state, answer.sentence) == ("accepted", "j1 was let in 2 s ago; no decision has named it yet.")


def test_a_waiting_job_says_when_and_who() -> None:
    world = World()
    big = JobView(
        "big",
        status=status(JobState.RUNNING, placed=[NodeGpus(node="n00", gpus=[0, 1]), NodeGpus(node="n01", gpus=[0])]),
    )
    world.jobs["big"] = big
    answer = explained(
        JobState.QUEUED,
        world,
        reason="waiting_for_gpus",
        position=3,
        planned_start_p50_ms=NOW_MS + 2_100_000,
        planned_start_p90_ms=NOW_MS + 4_200_000,
        holders=["big", "gone"],
    )
    assert "Position 3 in the queue." in answer.sentence
    assert "Earliest planned start 09:35 (in 35 min), by 10:10" in answer.sentence
    assert "held by big (3 GPUs on n00 and 1 more)." in answer.sentence
    assert "Planned on them before it: gone." in answer.sentence


def test_many_holders_are_cut_in_the_sentence_but_not_in_the_data() -> None:
    answer = explained(JobState.QUEUED, reason="waiting_for_gpus", holders=[f"h{i}" for i in range(8)])
    assert "h4 and 3 more." in answer.sentence
    assert len(answer.holders) == 8


def test_a_job_nobody_answered_for_is_told_from_one_that_does_not_exist() -> None:
    waiting = sentences.explain_unseen("j1", NOW_MS - 5000, [], NOW_MS)
    assert waiting.state == "submitted"
    assert "intake has not handled it" in waiting.sentence
    unknown = sentences.explain_unseen("j1", None, ["j11"], NOW_MS)
    assert unknown.sentence == "No job or application is named j1. Did you mean j11?"


@pytest.mark.parametrize(("gpus", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 3, 6], "0-3,6"), ([7, 5, 6, 1], "1,5-7")])
def test_gpu_ranges(gpus: list[int], text: str) -> None:
    assert sentences.gpu_ranges(gpus) == text

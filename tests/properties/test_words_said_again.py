"""Whatever executors say may be stored twice, the second time late: the state is what it would be without."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.base import Event
from schemas.decisions import DecisionInput
from schemas.executions import HeldGpus, JobReady, StopCause
from schemas.jobs import ProbeKind, Readiness
from schemas.records import Now
from services.allocator.core.advance import fold_all
from services.allocator.core.state import Changes, State, forget_index
from tests import build
from tests.allocator_driver import Driver


@cache
def placed() -> Driver:
    """A node with an application and a job on it, of which nobody has said a word."""
    app = build.application("app", floor=2, peak=2)
    app = replace(app, spec=replace(app.spec, readiness=Readiness(kind=ProbeKind.TCP, port=80)))
    driver = Driver().give(build.node("n00"), app, build.accepted("j", 1), build.forecast("j", {1: 600}))
    assert driver.job("j").holds_gpus
    assert driver.state.apps["app"].parts
    return driver


def report(at_ms: int, boot: int, runs: bool, quarantined: list[int]) -> Event:
    return build.reported(
        "n00",
        at_ms,
        applied=placed().state.sequence,
        boot_id=f"{boot}/1",
        running=[HeldGpus(job_id="j", attempt=1, gpus=[0])] if runs else [],
        quarantined=quarantined,
    )


def readiness(at_ms: int, serves: bool) -> Event:
    return JobReady(job_id="app", attempt=1, node="n00", cluster=build.CLUSTER, time_ms=at_ms, ready=serves)


WORDS: st.SearchStrategy[tuple[Any, ...]] = st.one_of(
    st.tuples(st.just(report), st.integers(1, 2), st.booleans(), st.sampled_from([[], [5], [6]])),
    st.tuples(st.just(readiness), st.booleans()),
    st.tuples(st.just(lambda at_ms, name: build.started(name, "n00", at_ms)), st.sampled_from(["app", "j"])),
    st.tuples(st.just(lambda at_ms: build.stopped("app", "n00", at_ms, StopCause.FENCED))),
)


def folded(items: list[DecisionInput]) -> bytes:
    """What is believed of nodes, applications and jobs after these words, one after the other."""
    state = msgspec.json.decode(msgspec.json.encode(placed().state), type=State)
    for number, item in enumerate(items):
        forget_index(state)
        fold_all(state, [item], Now(placed().now_ms + 1_000_000 + number, placed().wall_ms + number), Changes())
    for job in state.jobs.values():
        job.heard_ms = 0  # when it was heard of last
        job.not_before_ms = job.queued_ms = 0  # by the clock of the decision that heard it
    return msgspec.json.encode((state.nodes, state.apps, state.jobs))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_words_said_again_change_nothing(data: st.DataObject):
    words = data.draw(st.lists(WORDS, min_size=2, max_size=8))
    items = [
        build.decision_input(kind(placed().now_ms + number, *args), number)
        for number, (kind, *args) in enumerate(words)
    ]
    repeated = list(items)
    for again in data.draw(st.lists(st.sampled_from(items), min_size=1, max_size=4)):
        repeated.insert(data.draw(st.integers(repeated.index(again) + 1, len(repeated))), again)
    assert folded(repeated) == folded(items)

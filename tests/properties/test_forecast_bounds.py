"""Whatever comes in, forecasts are finite, monotone, within their limits, and the same for the same input."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.codec import decode
from schemas.demand import DemandObserved
from schemas.executions import FailureCause, JobCompleted, JobFailed, JobStarted, JobStopped, StopCause
from schemas.forecasts import ArrivalForecast, DemandForecast, DurationForecast
from schemas.jobs import JobAccepted, JobAmended, JobRevoked, Kind, ModelFacts, Technique, Tuning
from schemas.messages import message
from schemas.records import Message, Now, Record
from services.forecaster.core.demand import DemandHistory
from services.forecaster.core.handler import ForecasterHandler, Settings
from services.forecaster.core.history import DurationHistory, Subject
from services.forecaster.core.prior import unknown_hazard
from services.forecaster.core.survival import LOG_S_MAX
from tests.build import CLUSTER, POOL, START_MS, catalog, spec
from tests.oracle.naive_durations import NaiveHistory

PRIOR = unknown_hazard()
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

job_ids = st.sampled_from([f"j{number}" for number in range(6)])
moments = st.integers(0, 40 * 86_400_000).map(lambda ms: START_MS - 20 * 86_400_000 + ms)
durations = st.floats(0, 315_360_000)
facts = st.builds(
    ModelFacts,
    parameters=st.none() | st.floats(0, 1e15),
    tuning=st.none() | st.sampled_from(Tuning),
    technique=st.none() | st.sampled_from(Technique),
    dataset_tokens=st.none() | st.floats(0, 1e18),
    epochs=st.none() | st.floats(0, 1e6),
    sequence_length=st.none() | st.integers(1, 100_000_000),
)


@st.composite
def accepted_jobs(draw) -> JobAccepted:
    sizes = draw(st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=5, unique=True))
    wanted = draw(st.none() | st.sampled_from(sizes))
    changed = {
        "kind": draw(st.sampled_from(Kind)),
        "team": draw(st.sampled_from(["blue", "red"])),
        "time_limit_s": draw(st.floats(1e-3, 31_536_000)),
        "model": draw(st.none() | facts),
        "requested_gpus": wanted,
    }
    at_ms = draw(moments)
    return JobAccepted(
        job_id=draw(job_ids),
        cluster=CLUSTER,
        pools=[POOL],
        submitted_ms=at_ms,
        accepted_ms=at_ms,
        digest="d",
        spec=spec(*sizes, **changed),
    )


ends = {"job_id": job_ids, "attempt": st.integers(1, 3), "node": st.sampled_from(["n00", "n01"])}
ends |= {"cluster": st.just(CLUSTER), "time_ms": moments}
observations = st.builds(
    DemandObserved,
    app_id=st.sampled_from(["chat", "code"]),
    cluster=st.just(CLUSTER),
    time_ms=moments,
    window_s=st.floats(0.001, 86_400),
    load=st.floats(0, 1e12),
    per_gpu=st.floats(1e-6, 1e12),
)
happenings = st.one_of(
    accepted_jobs(),
    st.builds(
        JobStarted,
        wall_ms=st.just(0),
        sequence=st.just(1),
        gpus=st.lists(st.integers(0, 7), max_size=8, unique=True),
        **ends,
    ),
    st.builds(JobCompleted, run_s=durations, **ends),
    st.builds(JobStopped, run_s=durations, cause=st.sampled_from(StopCause), **ends),
    st.builds(JobFailed, run_s=durations, cause=st.sampled_from(FailureCause), **ends),
    st.builds(JobRevoked, job_id=job_ids, cluster=st.just(CLUSTER), revoked_ms=moments),
    st.builds(
        JobAmended,
        job_id=job_ids,
        cluster=st.just(CLUSTER),
        amended_ms=moments,
        time_limit_s=st.floats(0.001, 31_536_000),
    ),
    observations,
    st.binary(max_size=20),
)
histories = st.lists(st.tuples(happenings, st.integers(0, 86_400_000)), max_size=40)


class Wild:
    """A model that answers anything."""

    version = "wild"
    trust = 1.0

    def corrections(self, rows: np.ndarray) -> np.ndarray:
        seed = np.nan_to_num(rows).sum(axis=1) % 7
        return np.column_stack([np.where(seed > 5, np.nan, seed * 10 - 30), np.where(seed < 1, np.inf, -seed)])


def records_of(history) -> list[tuple[Record, Now]]:
    """Numbered records, each with a moment; time may jump but doesn't run backwards."""
    offsets: dict[str, int] = {}
    now_ms, records = START_MS, []
    for number, (event, pause_ms) in enumerate(history):
        now_ms += pause_ms
        if isinstance(event, bytes):
            carried = Message("jobs", b"k", event, (("ce_id", event),))
        else:
            carried = message(event, key="k", id=f"e{number}", source="test", time_ms=START_MS)
        offset = offsets.get(carried.topic, 0)
        offsets[carried.topic] = offset + 1
        record = Record(carried.topic, 0, offset, carried.key, carried.value, carried.headers, 0)
        records.append((record, Now(domain_ms=now_ms, wall_ms=0)))
    return records


def handler(wild: bool) -> ForecasterHandler:
    return ForecasterHandler(catalog(), Settings(), model=Wild() if wild else None)


def assert_sound(said: Message) -> None:
    event = decode(said.headers, said.value).event
    if isinstance(event, DurationForecast):
        for size in event.sizes:
            assert 1.0 <= size.p50_s <= size.p90_s < math.inf
            assert size.p50_s >= event.elapsed_s or event.elapsed_s > 5_184_000
    elif isinstance(event, DemandForecast):
        assert len(event.p50) == len(event.p90) == 96
        assert all(0 <= low <= high <= 16 for low, high in zip(event.p50, event.p90, strict=True))
    elif isinstance(event, ArrivalForecast):
        assert all(0 <= work < math.inf for work in event.gpu_seconds)


@FEW
@given(history=histories, wild=st.booleans())
def test_any_history_gives_sound_answers_and_the_same_ones_again(history, wild: bool):
    first, second = handler(wild), handler(wild)
    for record, now in records_of(history):
        answers = first.handle(record, now)
        for said in answers:
            assert_sound(said)
        assert second.handle(record, now) == answers
        assert first.handle(record, now) == answers, "a repetition is answered with the same bytes"
        later = Now(domain_ms=now.domain_ms + 1, wall_ms=0)
        ticked = first.tick(later)
        for said in ticked:
            assert_sound(said)
        assert second.tick(later) == ticked


@FEW
@given(history=histories)
def test_rebuilding_twice_is_rebuilding_once(history):
    records = records_of(history)
    once, twice = handler(False), handler(False)
    for record, _ in records:
        once.recover(record)
    for record, _ in records + records:
        twice.recover(record)
    question = message(
        JobAccepted(
            job_id="question",
            cluster=CLUSTER,
            pools=[POOL],
            submitted_ms=START_MS,
            accepted_ms=START_MS,
            digest="d",
            spec=spec(1, 2),
        ),
        key="k",
        id="q",
        source="test",
        time_ms=START_MS,
    )
    record = Record("jobs", 0, 10_000, question.key, question.value, question.headers, 0)
    now = Now(domain_ms=START_MS + 86_400_000, wall_ms=0)
    assert once.handle(record, now) == twice.handle(record, now)
    assert once.tick(now) == twice.tick(now)


subjects = st.builds(
    Subject,
    team=st.sampled_from("ab"),
    gpus=st.sampled_from([1, 2]),
    kind=st.sampled_from(["", "training"]),
    user=st.sampled_from(["", "u"]),
    what=st.just("w"),
)


@FEW
@given(
    runs=st.lists(st.tuples(subjects, durations, st.sampled_from(["ended", "cut", "runs"])), max_size=25),
    asked=subjects,
)
def test_history_equals_the_naive_count(runs, asked: Subject):
    fast, slow = DurationHistory(), NaiveHistory()
    for number, (subject, duration_s, fate) in enumerate(runs):
        pair = fast.start(subject, number * 1000), slow.start(subject, number * 1000)
        if fate != "runs":
            fast.finish(pair[0], duration_s, observed=fate == "ended")
            slow.finish(pair[1], duration_s, observed=fate == "ended")
    view = fast.view(asked, 5_000_000, PRIOR)
    np.testing.assert_allclose(view.hazards, slow.hazards(asked, 5_000_000, list(PRIOR)), rtol=1e-3, atol=1e-6)
    quantiles = [view.log_quantile(share) for share in (0.1, 0.25, 0.5, 0.75, 0.9)]
    assert quantiles == sorted(quantiles)
    assert all(0.0 <= value <= LOG_S_MAX for value in quantiles)


@FEW
@given(
    windows=st.lists(
        st.tuples(st.integers(0, 12 * 86_400), st.floats(1, 86_400), st.floats(0, 1e12), st.floats(1e-6, 1e12)),
        max_size=40,
    ),
    now_s=st.integers(0, 14 * 86_400),
    step_s=st.sampled_from([300, 900, 3_600]),
    gpus=st.sampled_from([0.0, 8.0, 4_096.0]),
)
def test_any_observations_give_demand_within_the_cluster(windows, now_s: int, step_s: int, gpus: float):
    history = DemandHistory(step_s)
    for time_s, window_s, load, per_gpu in windows:
        history.observe(time_s * 1000, window_s, load, per_gpu)
    forecast = history.forecast(now_s * 1000, 86_400 // step_s, gpus)
    assert len(forecast.p50) == len(forecast.p90) == 86_400 // step_s
    assert all(0.0 <= low <= high <= gpus for low, high in zip(forecast.p50, forecast.p90, strict=True))

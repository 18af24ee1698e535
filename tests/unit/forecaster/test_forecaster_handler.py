"""What the forecaster answers to events, and what it learns from them."""

from __future__ import annotations

import pytest

from schemas.demand import DemandObserved
from schemas.executions import FailureCause, JobFailed, JobStopped, StopCause
from schemas.forecasts import ArrivalForecast, DemandForecast, DurationForecast
from schemas.jobs import JobAmended, JobRevoked, Kind, ModelFacts, Technique, Tuning
from schemas.records import Message, Record
from services.forecaster.core.handler import ForecasterHandler
from tests.build import CLUSTER, START_MS, accepted
from tests.unit.forecaster.forecaster_builders import (
    TRACE,
    Constant,
    Stream,
    completed,
    events,
    handler,
    now,
    started,
)

MINUTE_MS = 60_000


def run_jobs(
    forecaster: ForecasterHandler, stream: Stream, count: int, run_s: float, *, first: int = 0, **changed
) -> list[Message]:
    """Accept, start and complete jobs one after the other; returns everything said meanwhile."""
    heard: list[Message] = []
    for number in range(first, first + count):
        job_id, at_ms = f"past{number}", START_MS + number * MINUTE_MS
        end_ms = at_ms + round(run_s * 1000)
        for event in (
            accepted(job_id, 1, at_ms=at_ms, **changed),
            started(job_id, at_ms),
            completed(job_id, end_ms, run_s),
        ):
            heard += forecaster.handle(stream.add(event), now(at_ms))
    return heard


def answer(forecaster: ForecasterHandler, record: Record, at_ms: int = START_MS) -> DurationForecast:
    forecast = events(forecaster.handle(record, now(at_ms)))[0]
    assert isinstance(forecast, DurationForecast)
    return forecast


def test_a_job_gets_a_forecast_for_every_offered_size_at_once():
    record = Stream().add(accepted("j1", 1, 2, 4, 8, 16, requested_gpus=4), id="abc")
    messages = handler().handle(record, now())
    assert [sent.topic for sent in messages] == ["forecasts"]
    assert messages[0].key == b"j1"
    headers = dict(messages[0].headers)
    assert headers["ce_id"] == b"abc/forecast"
    assert headers["traceparent"] == TRACE.encode()
    forecast = answer(handler(), record)
    assert [size.gpus for size in forecast.sizes] == [1, 2, 4, 8, 16]
    times = [size.p50_s for size in forecast.sizes]
    assert times == sorted(times, reverse=True), "more GPUs, less time"
    assert all(1 <= size.p50_s <= size.p90_s <= 604_800 for size in forecast.sizes)


def test_without_history_the_answer_is_a_wide_prior_that_says_so():
    forecast = answer(handler(), Stream().add(accepted("j1", 1)))
    assert forecast.prior
    assert forecast.sizes[0].p90_s > 10 * forecast.sizes[0].p50_s


def test_facts_narrow_the_prior():
    facts = ModelFacts(parameters=7e9, dataset_tokens=1e9, tuning=Tuning.FULL, technique=Technique.SFT)
    size = answer(handler(), Stream().add(accepted("j1", 8, model=facts))).sizes[0]
    assert size.p90_s < 6 * size.p50_s
    longer = ModelFacts(parameters=70e9, dataset_tokens=1e9, tuning=Tuning.FULL, technique=Technique.SFT)
    assert answer(handler(), Stream().add(accepted("j2", 8, model=longer))).sizes[0].p50_s > 5 * size.p50_s


def test_history_replaces_the_prior():
    forecaster, stream = handler(), Stream()
    run_jobs(forecaster, stream, 12, 300.0)
    forecast = answer(forecaster, stream.add(accepted("new", 1)))
    assert not forecast.prior
    assert forecast.sizes[0].p50_s == pytest.approx(300.0, rel=0.4)


def test_the_limit_only_caps():
    forecaster, stream = handler(), Stream()
    run_jobs(forecaster, stream, 12, 300.0)
    assert answer(forecaster, stream.add(accepted("long", 1, time_limit_s=500_000.0))).sizes[0].p50_s < 600
    capped = answer(forecaster, stream.add(accepted("short", 1, time_limit_s=100.0))).sizes[0]
    assert (capped.p50_s, capped.p90_s) == (100.0, 100.0)
    amended = JobAmended(job_id="short", cluster=CLUSTER, amended_ms=START_MS, time_limit_s=50.0)
    assert answer(forecaster, stream.add(amended)).sizes[0].p90_s == 50.0


def test_the_model_corrects_history_and_can_be_replaced():
    plain, corrected, stream = handler(model=Constant(0.0, 0.0)), handler(model=Constant(1.0, 1.0)), Stream()
    run_jobs(plain, stream, 12, 300.0)
    for record in stream.records:
        corrected.handle(record, now())
    record = stream.add(accepted("new", 1))
    history, model = answer(plain, record), answer(corrected, record)
    assert model.sizes[0].p50_s == pytest.approx(2.718 * history.sizes[0].p50_s, rel=0.02)
    assert model.model == "constant"
    assert answer(handler(), stream.add(accepted("plain", 1))).model == "history"
    corrected.use_model(Constant(float("nan"), float("inf")))
    assert answer(corrected, stream.add(accepted("newer", 1))).sizes[0].p50_s == history.sizes[0].p50_s


def test_a_repeated_record_gets_the_same_bytes_and_is_not_learnt_twice():
    forecaster, stream = handler(), Stream()
    record = stream.add(accepted("j1", 1))
    first = forecaster.handle(record, now())
    run_jobs(forecaster, stream, 5, 300.0)
    assert forecaster.handle(record, now(START_MS + 1)) == first
    state = forecaster.cluster(CLUSTER)
    assert state is not None
    for repeated in list(stream.records):
        forecaster.handle(repeated, now())
    assert state.durations.history.ended == 5


def test_a_job_that_outlives_its_p90_gets_a_longer_forecast():
    forecaster, stream = handler(), Stream()
    run_jobs(forecaster, stream, 12, 300.0)
    state = forecaster.cluster(CLUSTER)
    assert state is not None
    missed_before = state.durations.calibration.missed
    begin_ms = START_MS + 30 * MINUTE_MS
    forecaster.handle(stream.add(accepted("slow", 1, at_ms=begin_ms)), now(begin_ms))
    forecaster.handle(stream.add(started("slow", begin_ms)), now(begin_ms))
    elapsed_s, heard = 0.0, []
    for minutes in range(0, 6_000, 5):
        elapsed_s = minutes * 60.0
        at_ms = begin_ms + minutes * MINUTE_MS
        for forecast in events(forecaster.tick(now(at_ms))):
            if isinstance(forecast, DurationForecast) and forecast.job_id == "slow":
                heard.append(forecast)
                assert forecast.sizes[0].p50_s > forecast.elapsed_s == elapsed_s
    assert 3 <= len(heard) <= 60, "often enough to stay ahead, seldom enough not to churn"
    assert [f.sizes[0].p90_s for f in heard] == sorted(f.sizes[0].p90_s for f in heard)
    assert state.durations.calibration.missed == missed_before + 1


def test_a_waiting_job_is_looked_at_again_when_its_sweep_turns_out_long():
    forecaster, stream = handler(), Stream()
    run_jobs(forecaster, stream, 12, 60.0)
    begin_ms = START_MS + 30 * MINUTE_MS
    before = answer(forecaster, stream.add(accepted("waiting", 1, at_ms=begin_ms)), begin_ms)
    heard = run_jobs(forecaster, stream, 60, 20_000.0, first=31)
    again = [
        forecast
        for forecast in events(heard + forecaster.tick(now(begin_ms + 61 * MINUTE_MS)))
        if isinstance(forecast, DurationForecast) and forecast.job_id == "waiting"
    ]
    assert len(again) == 1
    assert again[0].sizes[0].p50_s > 10 * before.sizes[0].p50_s


def test_the_same_thing_on_another_size_has_a_history_of_its_own():
    forecaster, stream = handler(), Stream()
    run_jobs(forecaster, stream, 30, 1_000.0)
    scaled = answer(forecaster, stream.add(accepted("a", 1, 2, requested_gpus=1))).sizes[1].p50_s
    assert scaled == pytest.approx(1_000.0 / 2**0.9, rel=0.4)
    for number in range(60):
        forecaster.handle(stream.add(accepted(f"two{number}", 2)), now())
        forecaster.handle(stream.add(started(f"two{number}", START_MS, gpus=2)), now())
        forecaster.handle(stream.add(completed(f"two{number}", START_MS + 1, 5_000.0)), now())
    assert answer(forecaster, stream.add(accepted("b", 1, 2, requested_gpus=1))).sizes[1].p50_s > 2_000


def test_a_gang_counts_once():
    forecaster, stream = handler(), Stream()
    forecaster.handle(stream.add(accepted("gang", 16)), now())
    for node in ("n00", "n01"):
        forecaster.handle(stream.add(started("gang", START_MS, node=node, gpus=8)), now())
    state = forecaster.cluster(CLUSTER)
    assert state is not None
    assert state.durations.history.running == 1
    for node in ("n00", "n01"):
        forecaster.handle(stream.add(completed("gang", START_MS + 60_000, 60.0, node=node)), now())
    assert (state.durations.history.running, state.durations.history.ended) == (0, 1)


def stopped(job_id: str, run_s: float, cause: StopCause = StopCause.CANCELLED) -> JobStopped:
    return JobStopped(job_id=job_id, attempt=1, node="n00", cluster=CLUSTER, time_ms=START_MS, cause=cause, run_s=run_s)


def failed(job_id: str, run_s: float, cause: FailureCause) -> JobFailed:
    return JobFailed(job_id=job_id, attempt=1, node="n00", cluster=CLUSTER, time_ms=START_MS, cause=cause, run_s=run_s)


@pytest.mark.parametrize(
    ("end", "observed"),
    [
        (completed("j", START_MS, 60.0), 1),
        (failed("j", 60.0, FailureCause.EXIT_CODE), 1),
        (failed("j", 60.0, FailureCause.SIGNAL), 1),
        (failed("j", 60.0, FailureCause.SPAWN), 0),
        (failed("j", 60.0, FailureCause.UNKNOWN), 0),
        (stopped("j", 60.0), 0),
        (stopped("j", 60.0, StopCause.NODE_LOST), 0),
        (completed("j", START_MS - 986, 0.0), 0),
    ],
    ids=["completed", "exit code", "signal", "never ran", "unknown", "cancelled", "node lost", "negative time"],
)
def test_what_an_end_is_worth(end, observed: int):
    forecaster, stream = handler(), Stream()
    for event in (accepted("j", 1), started("j", START_MS), end):
        forecaster.handle(stream.add(event), now())
    state = forecaster.cluster(CLUSTER)
    assert state is not None
    assert (state.durations.history.ended, state.durations.history.running) == (observed, 0)


def test_executions_that_overtake_their_job_are_not_lost():
    forecaster, stream = handler(), Stream()
    for event in (started("j", START_MS), completed("j", START_MS + 60_000, 60.0), accepted("j", 1)):
        forecaster.handle(stream.add(event), now())
    state = forecaster.cluster(CLUSTER)
    assert state is not None
    assert state.durations.history.ended == 1


def test_a_second_attempt_makes_the_first_a_lower_bound():
    forecaster, stream = handler(), Stream()
    later_ms = START_MS + 600_000
    for event in (accepted("j", 1), started("j", START_MS), started("j", later_ms, attempt=2)):
        forecaster.handle(stream.add(event), now(later_ms))
    state = forecaster.cluster(CLUSTER)
    assert state is not None
    assert (state.durations.history.running, state.durations.history.ended) == (1, 0)
    forecaster.handle(stream.add(completed("j", later_ms, 600.0)), now(later_ms))
    assert state.ledger.ignored["attempt_over"] == 1
    assert state.durations.history.running == 1


def test_a_cancelled_job_is_forgotten():
    forecaster, stream = handler(), Stream()
    forecaster.handle(stream.add(accepted("j", 1)), now())
    forecaster.handle(stream.add(JobRevoked(job_id="j", cluster=CLUSTER, revoked_ms=START_MS)), now())
    state = forecaster.cluster(CLUSTER)
    assert state is not None
    assert state.ledger.jobs == {}


def observed(at_ms: int, load: float, per_gpu: float = 10.0, app_id: str = "chat") -> DemandObserved:
    return DemandObserved(app_id=app_id, cluster=CLUSTER, time_ms=at_ms, window_s=600.0, load=load, per_gpu=per_gpu)


def test_demand_is_answered_at_most_every_period_and_history_told_is_not_answered():
    forecaster, stream = handler(), Stream()
    heard = []
    for number in range(-144, 7):
        at_ms = START_MS + number * 10 * MINUTE_MS
        heard += forecaster.handle(stream.add(observed(at_ms, 40.0)), now(max(at_ms, START_MS)))
    forecasts = [event for event in events(heard) if isinstance(event, DemandForecast)]
    assert len(forecasts) == 7
    assert len(forecasts[-1].p50) == 96
    assert forecasts[-1].p50[0] == pytest.approx(4.0, abs=0.1)
    assert dict(heard[-1].headers)["ce_id"].endswith(b"/demand")


def test_demand_told_late_is_answered_by_the_next_tick():
    forecaster, stream = handler(), Stream()
    forecaster.handle(stream.add(observed(START_MS - 40 * MINUTE_MS, 40.0)), now())
    ticked = events(forecaster.tick(now()))
    assert [type(event) for event in ticked] == [DemandForecast]
    assert forecaster.tick(now(START_MS + 1000)) == []
    assert len(forecaster.tick(now(START_MS + 61 * MINUTE_MS))) == 1, "planners never run out of horizon"


def test_arrivals_are_told_once_an_hour():
    forecaster, stream = handler(), Stream()
    for number in range(30):
        at_ms = START_MS + number * 10 * MINUTE_MS
        forecaster.handle(stream.add(accepted(f"j{number}", 4, at_ms=at_ms)), now(at_ms))
    at_ms = START_MS + 300 * MINUTE_MS
    forecasts = [event for event in events(forecaster.tick(now(at_ms))) if isinstance(event, ArrivalForecast)]
    assert len(forecasts) == 1
    assert len(forecasts[0].gpu_seconds) == 96
    assert min(forecasts[0].gpu_seconds) > 0
    assert not [e for e in events(forecaster.tick(now(at_ms + 1000))) if isinstance(e, ArrivalForecast)]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda m: Message(m.topic, m.key, b"{", m.headers), "malformed_json"),
        (lambda m: Message(m.topic, m.key, None, m.headers), "no_value"),
        (lambda m: Message(m.topic, m.key, m.value, ()), "missing_header"),
        (lambda m: Message(m.topic, m.key, m.value.replace(b'"c0"', b'"c9"'), m.headers), "unknown_cluster"),
    ],
    ids=["not JSON", "tombstone", "no headers", "unknown cluster"],
)
def test_what_can_not_be_read_becomes_one_dead_letter(spoil, reason: str):
    stream = Stream()
    record = stream.add(accepted("j", 1))
    spoilt = spoil(Message(record.topic, record.key, record.value, record.headers))
    letters = events(handler().handle(stream.add_raw(spoilt), now()))
    assert [letter.reason for letter in letters] == [reason]


def test_rebuilding_gives_the_same_answers_whatever_order_the_topics_are_read_in():
    live, stream = handler(model=Constant(0.2, 0.3)), Stream()
    run_jobs(live, stream, 20, 400.0)
    run_jobs(live, stream, 10, 4_000.0, first=50, kind=Kind.DEBUG)
    question = stream.add(accepted("q", 1, 2))
    expected = live.handle(question, now(START_MS + 90 * MINUTE_MS))
    for topics in (("jobs", "executions"), ("executions", "jobs")):
        rebuilt = handler(model=Constant(0.2, 0.3))
        for topic in topics:
            for record in stream.records[:-1]:
                if record.topic == topic:
                    rebuilt.recover(record)
                    rebuilt.recover(record)
        assert rebuilt.handle(question, now(START_MS + 90 * MINUTE_MS))[0] == expected[0]

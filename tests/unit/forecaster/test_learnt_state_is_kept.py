"""A forecaster that goes on from its saved state says, byte for byte, what one says that never stopped."""

from __future__ import annotations

import pickle

import numpy as np

from schemas.base import Event
from schemas.demand import DemandObserved
from schemas.executions import FailureCause, JobFailed
from schemas.jobs import JobAmended, JobRevoked, ModelFacts
from schemas.records import Message
from services.forecaster.core.handler import ForecasterHandler, Settings
from services.forecaster.core.history import DurationHistory, Subject
from services.forecaster.shell.app import make_handler
from tests.build import CLUSTER, START_MS, accepted, catalog
from tests.unit.forecaster.forecaster_builders import Constant, Stream, completed, handler, now, started

EVENTS = 1_500


def story(seed: int) -> list[tuple[int, Event]]:
    """Jobs of some teams that run, fail, wait and are cancelled, and an application's demand."""
    chance = np.random.default_rng(seed)
    found: list[tuple[int, Event]] = []
    for number in range(EVENTS // 3):
        at_ms = START_MS + number * 120_000
        job_id, team = f"j{number}", f"team{chance.integers(4)}"
        facts = ModelFacts(dataset_tokens=float(10 ** chance.uniform(6, 9))) if chance.random() < 0.3 else None
        run_s = float(chance.lognormal(6.0, 1.0))
        found.append((at_ms, accepted(job_id, 1, 2, 4, at_ms=at_ms, team=team, model=facts)))
        fate = chance.random()
        if fate < 0.1:
            found.append((at_ms + 60_000, JobRevoked(job_id=job_id, cluster=CLUSTER, revoked_ms=at_ms + 60_000)))
            continue
        if fate < 0.2:
            found.append((at_ms + 1, JobAmended(job_id=job_id, cluster=CLUSTER, amended_ms=at_ms, time_limit_s=900.0)))
        start_ms = at_ms + int(chance.integers(1, 600_000))
        end_ms = start_ms + round(run_s * 1000)
        found.append((start_ms, started(job_id, start_ms, gpus=int(chance.choice([1, 2, 4])))))
        if fate < 0.9:
            found.append((end_ms, completed(job_id, end_ms, run_s)))
        else:
            failed = JobFailed(
                job_id=job_id,
                attempt=1,
                node="n00",
                cluster=CLUSTER,
                time_ms=end_ms,
                cause=FailureCause.EXIT_CODE,
                run_s=run_s,
            )
            found.append((end_ms, failed))
        load = float(chance.uniform(0, 9))
        observed = DemandObserved(app_id="chat", cluster=CLUSTER, time_ms=at_ms, window_s=120.0, load=load, per_gpu=1.0)
        found.append((at_ms, observed))
    return sorted(found, key=lambda one: one[0])


def told(forecaster: ForecasterHandler, stream: Stream, part: list[tuple[int, Event]]) -> list[Message]:
    said: list[Message] = []
    for at_ms, event in part:
        said += forecaster.handle(stream.add(event), now(at_ms))
        said += forecaster.tick(now(at_ms))
    return said


def test_the_rest_of_the_story_is_answered_alike_wherever_it_was_saved():
    for seed, model in ((1, None), (2, Constant(0.1, 0.3))):
        events = story(seed)
        for cut in (0, 7, len(events) // 2, len(events) - 40):
            unbroken, stream = handler(model=model), Stream()
            told(unbroken, stream, events[:cut])
            before = Stream()
            before.offsets, before.records = dict(stream.offsets), list(stream.records)
            successor = handler(model=model)
            successor.use_state(pickle.loads(pickle.dumps(unbroken.state())))
            rest = events[cut : cut + 300]
            assert told(successor, before, rest) == told(unbroken, stream, rest)
            assert successor.marks() == unbroken.marks()


def test_what_was_kept_back_is_folded_in_pieces_as_it_is_at_once():
    stream = Stream()
    told(handler(), stream, story(4))
    at_once, in_pieces = handler(), handler()
    for forecaster in (at_once, in_pieces):
        for record in stream.records:
            forecaster.recover(record)
    assert in_pieces.kept_back > 100
    while in_pieces.kept_back:
        in_pieces.settle(7)
    last = accepted("last", 1, 2, 4, at_ms=START_MS, team="team1")
    assert told(at_once, stream, [(START_MS, last)])
    record = stream.records[-1]
    assert in_pieces.handle(record, now()) == at_once.handle(record, now())


def test_a_training_that_was_under_way_does_not_stop_trainings_for_ever():
    trained, stream = make_handler(catalog()), Stream()
    told(trained, stream, story(3)[:50])
    (state,) = trained.owned()
    state.learning.training = True
    successor = make_handler(catalog())
    successor.use_state(pickle.loads(pickle.dumps(trained.state())))
    assert [one.learning.training for one in successor.owned()] == [False]


def test_what_a_state_depends_on_is_told_apart():
    seed = DurationHistory()
    seed.finish(seed.start(Subject("a", 1), 0), 60.0, observed=True)
    handlers = [
        handler(),
        handler(model=Constant(0.1, 0.3)),
        handler(seed=DurationHistory().at_rest()),
        handler(seed=seed.at_rest()),
        ForecasterHandler(catalog(), Settings(step_s=1800)),
        ForecasterHandler(catalog(2), Settings()),
    ]
    assert len({one.made_with() for one in handlers}) == len(handlers)
    assert make_handler(catalog()).made_with() == make_handler(catalog()).made_with()

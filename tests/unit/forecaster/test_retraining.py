"""When a model is trained, what becomes of it, and that a restart answers as before: decisions, child process, whole handlers."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest
from msgspec.structs import replace

from schemas.codec import VALUE_BYTES_MAX, decode_record, encode_payload
from schemas.messages import message
from schemas.models import Choice, ModelChosen, ModelScore, ModelWatched, TrainedModel, Watch
from schemas.records import Message, Record
from services.forecaster.core.features import GIVEN, NAMES
from services.forecaster.core.handler import ForecasterHandler, Settings
from services.forecaster.core.retraining import Fitted, Order, Rhythm, Situation, choose, why_train
from services.forecaster.shell.app import make_handler
from services.forecaster.shell.fitting import NICE, fitted, read_fitted, read_order, write_fitted, write_order
from services.forecaster.shell.model import ModelError, content_version, model_of, packed, shape
from services.forecaster.shell.trainer import COMMAND, Trainer
from services.runtime.clock import WallClock
from tests.build import CLUSTER, START_MS, accepted, catalog
from tests.unit.forecaster.forecaster_builders import Stream, events, now, ran

RHYTHM = Rhythm(period_s=86_400.0, runs_min=300, judged_min=100)
DAY_MS = 86_400_000


def learner(stream: Stream | None = None) -> ForecasterHandler:
    """Without the bundled model: history alone answers until something is learnt."""
    made = ForecasterHandler(catalog(), Settings(rhythm=RHYTHM), load=model_of)
    for record in [] if stream is None else stream.records:
        made.recover(record)
    return made


def only(found: list[Order]) -> Order:
    assert len(found) == 1
    return found[0]


def of_kind(messages: list[Message], kind: type) -> list:
    return [event for event in events(messages) if isinstance(event, kind)]


def score(pinball: float, version: str = "m", runs: int = 500) -> ModelScore:
    return ModelScore(version=version, runs=runs, pinball=pinball, factor=2.0, coverage=0.9)


def a_model(version: str) -> TrainedModel:
    return TrainedModel(
        version=version,
        made_ms=START_MS,
        window_from_ms=0,
        window_to_ms=START_MS,
        runs=1,
        trust=1.0,
        boosters=[packed(""), packed("")],
        **shape(),
    )


def known_row(log_p50: float, log_p90: float) -> np.ndarray:
    """Features of a job of which history knows the quantiles and nothing else."""
    row = np.full(len(NAMES), np.nan)
    row[GIVEN], row[GIVEN + 1], row[NAMES.index("burst")] = log_p50, log_p90, 0.0
    return row


# Decisions


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, "400 runs since"),
        ({"kept": 299}, None),
        ({"ended_since": 99}, None),
        ({"last_ms": START_MS - 1000}, None),
        ({"last_ms": START_MS - 2 * 3_600_000, "drifting": True}, "drift"),
        ({"last_ms": START_MS - 2 * 3_600_000}, None),
        ({"last_ms": -1, "tried_ms": -1, "ended_since": 0}, "first 500 runs"),
        ({"tried_ms": START_MS - 1000}, None),
    ],
)
def test_a_training_is_due_when_time_and_runs_allow(changed, why):
    fields = {
        "now_ms": START_MS, "last_ms": START_MS - DAY_MS, "kept": 500, "ended_since": 400, "drifting": False, "tried_ms": -1,
    }  # fmt: skip
    found = why_train(RHYTHM, Situation(**(fields | changed)))
    assert found is None if why is None else why in (found or "")
    assert why_train(Rhythm(period_s=0), Situation(**(fields | changed))) is None


@pytest.mark.parametrize(
    ("new", "current", "previous", "history", "choice", "version"),
    [
        (0.90, 1.00, 1.10, 1.20, Choice.TRAINED, "new"),
        (0.999, 1.00, 1.10, 1.20, Choice.KEPT, "current"),
        (1.10, 1.00, 1.10, 1.20, Choice.KEPT, "current"),
        (1.10, 1.00, 0.99, 1.20, Choice.KEPT, "current"),
        (1.10, 1.00, 0.97, 1.20, Choice.ROLLED_BACK, "previous"),
        (1.10, 1.00, 0.97, 0.95, Choice.ROLLED_BACK, None),
        (0.96, 1.00, 0.95, 1.20, Choice.ROLLED_BACK, "previous"),
        (1.10, 1.00, None, 0.90, Choice.ROLLED_BACK, None),
    ],
)
def test_the_best_on_the_last_window_answers(new, current, previous, history, choice, version):
    result = Fitted(
        cluster=CLUSTER,
        made_ms=START_MS,
        model=a_model("new"),
        candidate=score(new, "new"),
        current=score(current, "current"),
        previous=None if previous is None else score(previous, "previous"),
        history=score(history, "history"),
    )
    chosen = choose(result, a_model("current"), None if previous is None else a_model("previous"))
    assert chosen.choice is choice
    assert (None if chosen.current is None else chosen.current.version) == version
    if choice is Choice.TRAINED:
        assert chosen.previous is not None
        assert chosen.previous.version == "current"
    assert "on the last 500 runs" in chosen.reason


def test_without_a_model_a_worse_candidate_leaves_history_alone():
    result = Fitted(CLUSTER, START_MS, a_model("new"), score(1.3), None, None, score(1.0, "history"))
    chosen = choose(result, None, None)
    assert (chosen.choice, chosen.current) == (Choice.KEPT, None)


# Published models


def test_a_published_model_is_whole_and_answers_alike():
    stream, forecaster = Stream(), learner()
    end_ms = ran(stream, forecaster, 400)
    result = fitted(only(list(forecaster.orders(now(end_ms)))))
    again = read_fitted(write_fitted(result))
    assert again == result
    first, second = model_of(result.model), model_of(again.model)
    rows = np.random.default_rng(1).normal(5, 3, (50, len(NAMES)))
    np.testing.assert_array_equal(first.corrections(rows), second.corrections(rows))
    assert content_version(first.texts, first.trust) == result.model.version
    wire = ModelChosen(
        cluster=CLUSTER,
        made_ms=1,
        choice=Choice.TRAINED,
        reason="",
        scores=[],
        current=result.model,
        previous=result.model,
    )
    assert len(encode_payload(wire)) < VALUE_BYTES_MAX / 2


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"features": ["one"]}, "other features"),
        ({"boosters": ["%%%", "%%%"]}, "unpacked"),
        ({"boosters": ["eNo=", "eNo="]}, "cut off"),
        ({"boosters": [packed("x" * 9_000_000)] * 2}, "no end"),
        ({"boosters": [packed("hello")] * 2}, "no LightGBM"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_with_a_sentence(changed, why):
    with pytest.raises(ModelError, match=why):
        model_of(replace(a_model("m"), **changed))


# Whole handlers


def test_a_training_is_published_adopted_and_survives_a_restart():
    stream, forecaster = Stream(), learner()
    end_ms = ran(stream, forecaster, 400)
    job = accepted("next", 1, at_ms=end_ms)
    order = only(list(forecaster.orders(now(end_ms))))
    assert not list(forecaster.orders(now(end_ms))), "one training at a time"
    result = fitted(order)
    assert write_fitted(fitted(read_order(write_order(order)))) == write_fitted(result), "same order, same bytes"
    forecaster.fitted(result)
    said = forecaster.tick(now(end_ms + 1000))
    chosen = of_kind(said, ModelChosen)[0]
    assert chosen.choice is Choice.TRAINED
    assert chosen.scores[0].pinball < 0.8 * chosen.scores[-1].pinball
    assert not of_kind(forecaster.tick(now(end_ms + 1500)), ModelChosen)
    for carried in said:
        if carried.topic == "models":
            stream.add_raw(carried)
    restarted = learner(stream)
    question = stream.add(job)
    answer = events(forecaster.handle(question, now(end_ms + 2000)))[0]
    assert answer.model == result.model.version
    repeated = events(restarted.handle(question, now(end_ms + 2000)))[0]
    assert repeated.model == answer.model
    assert repeated.sizes[0].p50_s == answer.sizes[0].p50_s
    # P90's margin is learnt anew from the same ends, as the present model would have forecast them.
    assert repeated.sizes[0].p90_s == pytest.approx(answer.sizes[0].p90_s, rel=0.1)


def test_a_model_that_turns_bad_is_rolled_back():
    stream, forecaster = Stream(), learner()
    end_ms = ran(stream, forecaster, 400)
    forecaster.fitted(fitted(only(list(forecaster.orders(now(end_ms))))))
    good = of_kind(forecaster.tick(now(end_ms)), ModelChosen)[0]
    state = forecaster.cluster(CLUSTER)
    assert state is not None
    assert good.current is not None
    bad_ms = end_ms + 2 * DAY_MS
    # The world turns: the same facts now mean the opposite, so that what was learnt misleads and a new fit has seen too little.
    chance = np.random.default_rng(5)
    for number in range(150):
        row = known_row(8.0, 9.0)
        tokens = chance.uniform(6, 9)
        row[NAMES.index("tokens_log")] = tokens * np.log(10)
        state.learning.lessons.started(f"b{number}", row, bad_ms)
        state.learning.ended(f"b{number}", row, bad_ms + number, 12.0 - 0.5 * tokens * np.log(10) + 4.0, (8.0, 9.0))
    forecaster.fitted(fitted(only(list(forecaster.orders(now(bad_ms + 1000))))))
    chosen = of_kind(forecaster.tick(now(bad_ms + 1000)), ModelChosen)[0]
    assert chosen.choice is Choice.ROLLED_BACK
    assert chosen.current is None
    answer = events(forecaster.handle(stream.add(accepted("next", 1, at_ms=bad_ms)), now(bad_ms + 2000)))[0]
    assert answer.model == "history"


def test_a_forecaster_speaks_only_for_its_own_clusters_when_time_passes():
    two = ForecasterHandler(catalog(clusters=2), Settings(rhythm=RHYTHM), load=model_of)
    stream = Stream()
    ran(stream, two, 400, cluster="c0")
    end_ms = ran(stream, two, 400, cluster="c1")
    two.own(frozenset({1}))
    assert {order.cluster for order in two.orders(now(end_ms))} == {"c1"}
    assert {event.cluster for event in events(two.tick(now(end_ms + 5000)))} == {"c1"}
    two.own(frozenset())
    assert two.tick(now(end_ms + 2 * DAY_MS)) == []


def test_a_training_whose_cluster_moved_away_meanwhile_is_dropped_and_can_be_made_again():
    stream, forecaster = Stream(), learner()
    end_ms = ran(stream, forecaster, 400)
    result = fitted(only(list(forecaster.orders(now(end_ms)))))
    forecaster.own(frozenset())
    forecaster.fitted(result)
    assert forecaster.tick(now(end_ms + 1000)) == []
    forecaster.own(frozenset({0}))
    assert not of_kind(forecaster.tick(now(end_ms + 2000)), ModelChosen)
    assert list(forecaster.orders(now(end_ms + 2 * 3_600_000))), "back here, it is due again"


def test_drift_is_published_at_most_once_an_hour():
    stream, forecaster = Stream(), learner()
    end_ms = ran(stream, forecaster, 100)
    watched = of_kind(forecaster.tick(now(end_ms)), ModelWatched)
    assert [event.watch for event in watched] == [Watch.UNKNOWN]
    assert watched[0].score.runs == 100
    assert not of_kind(forecaster.tick(now(end_ms + 60_000)), ModelWatched)
    assert of_kind(forecaster.tick(now(end_ms + 3_600_000)), ModelWatched)


def test_a_model_of_another_version_of_this_program_is_counted_not_used():
    stream, forecaster = Stream(), learner()
    event = ModelChosen(
        cluster=CLUSTER,
        made_ms=START_MS,
        choice=Choice.TRAINED,
        reason="",
        scores=[],
        current=TrainedModel(
            version="newer", made_ms=0, features=["x"], levels=[], half_lives=[], bins=1, window_from_ms=0, window_to_ms=0,
            runs=1, trust=1.0, boosters=["eNo=", "eNo="],
        ),
    )  # fmt: skip
    carried = message(event, key=CLUSTER, id="m", source="test", time_ms=START_MS)
    forecaster.recover(stream.add_raw(carried))
    answer = events(forecaster.handle(stream.add(accepted("j", 1)), now()))[0]
    assert answer.model != "newer"
    state = forecaster.cluster(CLUSTER)
    assert state is not None
    assert state.learning.refused == 1


def test_a_forecaster_told_never_to_train_uses_no_trained_model_either():
    stream, forecaster = Stream(), learner()
    end_ms = ran(stream, forecaster, 400)
    forecaster.fitted(fitted(only(list(forecaster.orders(now(end_ms))))))
    carried = next(one for one in forecaster.tick(now(end_ms)) if one.topic == "models")
    alone = make_handler(catalog(), model="none", settings=Settings(rhythm=Rhythm(period_s=0)))
    alone.recover(stream.add_raw(carried))
    answer = events(alone.handle(stream.add(accepted("next", 1)), now(end_ms)))[0]
    assert answer.model == "history"
    assert not list(alone.orders(now(end_ms + 30 * DAY_MS)))


# The child process


async def carried_out(forecaster: ForecasterHandler, at_ms: int, **trainer) -> None:
    class Fixed(WallClock):
        def now_ms(self) -> int:
            return at_ms

        async def sleep_wall(self, seconds: float) -> None:
            await asyncio.sleep(0.01)

    running = Trainer(forecaster, Fixed(), **trainer)
    task = asyncio.create_task(running.run())
    deadline_s = asyncio.get_running_loop().time() + 240
    while not forecaster._fitted and not forecaster.counts["trainings_failed"]:
        assert asyncio.get_running_loop().time() < deadline_s
        await asyncio.sleep(0.02)
    await running.stop(task)


async def test_the_child_process_brings_the_same_model():
    stream, forecaster = Stream(), learner()
    end_ms = ran(stream, forecaster, 400)
    beside = learner(stream)
    await carried_out(forecaster, end_ms, command=(*COMMAND, NICE))
    assert forecaster._fitted == [fitted(only(list(beside.orders(now(end_ms)))))]


async def test_a_child_that_fails_costs_a_training_and_nothing_else():
    stream, forecaster = Stream(), learner()
    end_ms = ran(stream, forecaster, 400)
    await carried_out(forecaster, end_ms, command=(sys.executable, "-c", "import sys; sys.exit('no room')"))
    assert forecaster.counts["trainings_failed"] == 1
    assert not list(forecaster.orders(now(end_ms + 1000))), "not again at once"
    assert list(forecaster.orders(now(end_ms + 2 * 3_600_000)))


def test_record_of_the_models_topic_is_readable_by_anyone():
    stream, forecaster = Stream(), learner()
    end_ms = ran(stream, forecaster, 400)
    forecaster.fitted(fitted(only(list(forecaster.orders(now(end_ms))))))
    carried = next(one for one in forecaster.tick(now(end_ms)) if one.key == CLUSTER.encode())
    record = Record(carried.topic, 0, 0, carried.key, carried.value, carried.headers, 0)
    assert decode_record(record).type == "model.chosen.v1"

"""The bundled model and its training: loadable, honest about its window, better than the rule it is built on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from schemas.jobs import ModelFacts, Technique, Tuning
from services.forecaster.core.duration import facts_of
from services.forecaster.core.features import FEATURES, NAMES, VARIANTS, given_features
from services.forecaster.core.history import DurationHistory, Subject
from services.forecaster.core.prior import scale_log_s, unknown_hazard
from services.forecaster.core.rolling import PastRuns, Score, keyed_history, replay, training_rows
from services.forecaster.shell.app import make_handler
from services.forecaster.shell.model import MODEL_FILE, ModelError, load_model, read_card
from services.forecaster.shell.training import PHILLY, TraceError, evaluate, read_runs, train
from services.forecaster.train import main
from tests.build import accepted, catalog, spec
from tests.unit.forecaster.forecaster_builders import Stream, events, now


def some_runs(count: int, first: int = 0) -> PastRuns:
    return read_runs(PHILLY, first_row=first, row_count=count)


def test_there_are_22_features_one_of_them_of_ten_variants():
    assert len(FEATURES) == len(set(NAMES)) == 22
    assert len(VARIANTS) == 10
    facts = ModelFacts(parameters=7e9, tuning=Tuning.PARAMETER_EFFICIENT, technique=Technique.CPT, precision="bf16")
    row = given_features(spec(8, model=facts), 8)
    assert row[NAMES.index("variant")] == 9
    assert row[NAMES.index("bits")] == 16
    assert np.isnan(given_features(spec(8), 8)[NAMES.index("parameters_log")])


def test_more_gpus_are_faster_but_not_in_proportion():
    assert np.exp(scale_log_s(1, 2)) == pytest.approx(2**-0.9)
    assert np.exp(scale_log_s(8, 16)) == pytest.approx(2**-0.8)
    assert scale_log_s(4, 4) == 0.0


def test_the_bundled_model_loads_and_tells_its_window():
    (model, seed), card = load_model(), read_card()
    assert model.version == card.version
    assert card.window[1] <= "2017-11-07T18:00:00"
    assert card.features == list(NAMES)
    assert card.scores["history and model"]["pinball"] < 0.9 * card.scores["keyed history"]["pinball"]
    team, size = card.keys[0][1], 1
    view = DurationHistory(seed).view(Subject(team=str(team), gpus=size), 0, unknown_hazard())
    assert view.known >= 0


def test_a_handler_with_the_bundled_model_knows_the_traces_teams():
    handler, stream = make_handler(catalog()), Stream()
    forecasts = [
        events(handler.handle(stream.add(accepted(f"{team}-job", 1, team=team)), now()))[0]
        for team in ("6214e9", "11cb48", "nobody-knows")
    ]
    assert [forecast.prior for forecast in forecasts] == [False, False, True]
    assert all(forecast.model.startswith("lightgbm-") for forecast in forecasts)


def test_facts_are_small():
    facts = facts_of(accepted("j", 1, 2), "")
    assert facts.given.nbytes + facts.prior.nbytes < 1_000
    assert dataclasses.asdict(facts)["sizes"] == (1, 2)


def test_other_features_or_a_missing_file_are_refused_with_a_sentence(tmp_path: Path):
    with pytest.raises(ModelError, match=r"python -m services\.forecaster\.train"):
        load_model(tmp_path / "none.json")
    changed = tmp_path / "model.json"
    changed.write_text(MODEL_FILE.read_text().replace('"limit_log"', '"moon"'))
    with pytest.raises(ModelError, match="other features"):
        load_model(changed)
    cut_off = tmp_path / "cut.json"
    cut_off.write_text(MODEL_FILE.read_text())
    with pytest.raises(ModelError, match="incomplete"):
        load_model(cut_off)


def test_only_what_had_ended_is_known():
    runs = PastRuns(
        submit_s=np.array([0, 100, 200]),
        duration_s=np.array([1_000.0, 10.0, 10.0]),
        ended=np.array([True, True, True]),
        gpus=np.array([1, 1, 1]),
        team=("a", "a", "a"),
    )
    replayed = replay(runs, (150,))
    rows, guesses = replayed.running_at[150]
    assert rows.tolist() == [0]
    assert np.exp(guesses).min() > 150
    features, targets, weights = training_rows(runs, replayed, 150, 0)
    assert (len(features), weights.sum()) == (4, pytest.approx(1.0 + 0.5**0.5)), "the second of its batch weighs less"
    assert np.isfinite(targets).all()
    changed = dataclasses.replace(runs, duration_s=np.array([50_000.0, 10.0, 10.0]))
    np.testing.assert_array_equal(replay(changed).rows, replay(runs).rows)


def test_the_rolling_evaluation_beats_keyed_history_on_a_bundled_slice():
    scores, log_p50, log_p90 = evaluate(some_runs(12_000), 4, lambda text: None)
    assert scores["history and model"].pinball < 0.95 * scores["keyed history"].pinball
    assert scores["censored history"].pinball < scores["keyed history"].pinball
    assert 0.8 < scores["history and model"].coverage < 0.95
    assert (log_p90 >= log_p50).all()


def test_training_writes_a_model_that_answers_the_same_each_time(tmp_path: Path):
    runs = some_runs(2_000)
    cards = [train(runs, "slice", {}, tmp_path / name / "model.json", lambda text: None) for name in ("a", "b")]
    first, second = (load_model(tmp_path / name / "model.json") for name in ("a", "b"))
    rows = replay(runs).rows[:50]
    np.testing.assert_array_equal(first[0].corrections(rows), second[0].corrections(rows))
    assert cards[0] == cards[1]
    assert (tmp_path / "a" / "model.json").read_bytes() == (tmp_path / "b" / "model.json").read_bytes()


def test_scores_are_those_of_the_literature():
    actual = np.log(np.array([100.0, 200.0, 400.0]))
    score = Score.of(actual, np.log(np.array([200.0, 200.0, 200.0])), np.log(np.array([300.0] * 3)))
    assert score.factor == 2.0
    assert score.coverage == pytest.approx(2 / 3, abs=1e-3)
    assert keyed_history(some_runs(50))[0].shape == (50,)


def test_a_trace_that_can_not_be_read_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "jobs.csv"
    path.write_text("submit_s,num_gpus,span_s,run_s,vc\n0,1,ten,,a\n")
    with pytest.raises(TraceError, match="line 2"):
        read_runs(path)
    assert main(["--trace", str(path)]) == 2
    assert main(["--trace", str(tmp_path / "none.csv")]) == 2
    assert "can't be read" in capsys.readouterr().err

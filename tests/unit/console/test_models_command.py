"""`gpugrid forecast models`: one line per cluster with why its model answers and whether forecasts drift."""

from __future__ import annotations

import json

from schemas.models import Choice, ModelChosen, ModelScore, ModelWatched, TrainedModel, Watch
from services.console.doctor import model_findings
from services.console.models_view import ClusterModel
from tests.build import CLUSTER, START_MS
from tests.unit.console.console_rig import Rig


def score(version: str, pinball: float) -> ModelScore:
    return ModelScore(version=version, runs=500, pinball=pinball, factor=1.8, coverage=0.91)


CHOSEN = ModelChosen(
    cluster=CLUSTER,
    made_ms=START_MS,
    choice=Choice.TRAINED,
    reason="loss 0.900 (lightgbm-a) against 1.000 (history alone) on the last 500 runs",
    scores=[score("lightgbm-a", 0.9), score("history", 1.0)],
    current=TrainedModel(
        version="lightgbm-a", made_ms=START_MS, features=["one"], levels=["all"], half_lives=[20.0], bins=48,
        window_from_ms=0, window_to_ms=START_MS, runs=4_321, trust=0.5, boosters=["eNo=", "eNo="],
    ),
)  # fmt: skip
WATCHED = ModelWatched(
    cluster=CLUSTER,
    made_ms=START_MS,
    watch=Watch.DRIFTING,
    reason="P90 covers 81.0% of the last 500 runs",
    score=score("lightgbm-a", 1.2),
    history=score("history", 1.1),
)


def test_nothing_learnt_is_said_in_a_sentence():
    rig = Rig()
    assert "Nothing has been learnt yet" in rig.run("forecast", "models")
    assert json.loads(rig.run("forecast", "models", "--json")) == []


def test_models_are_shown_with_their_reasons_and_their_drift():
    rig = Rig()
    rig.publish(CHOSEN, key=CLUSTER).publish(WATCHED, key=f"{CLUSTER}/watch")
    shown = rig.run("forecast", "models")
    for words in ("lightgbm-a", "4,321", "trained", "drifting", "91.0%", "history alone", "covers 81.0%"):
        assert words in shown
    document = json.loads(rig.run("forecast", "models", "--json"))
    assert document[0]["watched"]["watch"] == "drifting"
    assert document[0]["chosen"]["current"]["version"] == "lightgbm-a"
    assert "boosters" not in document[0]["chosen"]["current"]


def test_history_alone_after_a_roll_back():
    rig = Rig()
    back = ModelChosen(
        cluster=CLUSTER, made_ms=START_MS, choice=Choice.ROLLED_BACK, reason="history is better", scores=[]
    )
    rig.publish(back, key=CLUSTER)
    shown = rig.run("forecast", "models")
    assert "history alone" in shown
    assert "rolled back" in shown


def test_doctor_tells_of_drift():
    steady = ModelWatched(
        cluster="c1",
        made_ms=START_MS,
        watch=Watch.STEADY,
        reason="fine",
        score=score("m", 1.0),
        history=score("h", 1.1),
    )
    (fine,) = model_findings([ClusterModel("c1", None, steady)])
    assert fine.ok
    found = list(model_findings([ClusterModel("c1", None, steady), ClusterModel(CLUSTER, CHOSEN, WATCHED)]))
    assert [one.ok for one in found] == [False]
    assert "covers 81.0%" in found[0].sentence
    assert list(model_findings([])) == []

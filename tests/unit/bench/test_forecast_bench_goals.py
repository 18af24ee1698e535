"""The goals of the forecast benchmark: gaps are filled from the day before, hindsight is a bound, a worse large client is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.forecast.answering import answer_goals
from bench.forecast.goals import demand_goals, hindsight
from bench.forecast.peers import PeerCache, filled, peer_key, peer_scores
from services.forecaster.core.demand_scores import OURS, DemandScore, Rates
from services.forecaster.core.duration_scores import score
from services.forecaster.core.rolling import PastRuns, keyed_history


def test_a_gap_takes_the_same_time_of_the_day_before_else_the_value_before_else_zero() -> None:
    load = np.array([np.nan, 2.0, np.nan, 4.0, np.nan])
    assert filled(load, 3).tolist() == [0.0, 2.0, 2.0, 4.0, 2.0]


def test_no_keyed_rule_is_better_than_hindsight_of_the_same_key() -> None:
    rng = np.random.default_rng(3)
    count = 600
    runs = PastRuns(
        submit_s=np.arange(count) * 100,
        duration_s=np.exp(rng.normal(6.0, 1.0, count)),
        ended=np.ones(count, np.bool_),
        gpus=rng.integers(1, 3, count),
        team=tuple("ab"[place] for place in rng.integers(0, 2, count)),
    )
    chosen = np.arange(count) >= 100
    bound = hindsight(runs, chosen, None)
    assert bound["keys"] == 4
    assert bound["score"]["pinball"] <= score(runs, keyed_history(runs), chosen).pinball
    weekly = hindsight(runs, chosen, 1)
    assert weekly["score"]["pinball"] <= bound["score"]["pinball"]


def test_a_large_client_on_which_something_is_better_is_named_and_peers_are_weighed_by_load() -> None:
    def one(loss: float, load: float = 10.0) -> DemandScore:
        return DemandScore(windows=1, load=load, loss=loss, coverage=0.9)

    total = {OURS: one(0.09), "last value": one(0.1)}
    clients = {
        "c1": {OURS: one(0.05), "last value": one(0.06), "MSTL": one(0.1)},
        "c2": {OURS: one(0.20, 5.0), "last value": one(0.15, 5.0), "MSTL": one(0.2, 5.0)},
        "c3": {OURS: one(0.20, 1.0), "last value": one(0.15, 1.0)},
    }
    goals = {goal.measure: goal for goal in demand_goals("m", total, clients, ["MSTL"], 2)}
    assert goals["m: demand loss, all clients"].met
    assert not goals["m: large clients on which something is better (c2)"].met
    assert goals["m: demand loss over MSTL's, 2 of 3 clients"].figure == 0.75


def test_a_peers_score_is_kept_and_found_again_only_for_the_same_load(tmp_path: Path) -> None:
    rates = Rates(3_600, 0, ("c0",), np.arange(72.0).reshape(1, -1), 0)
    score = DemandScore(windows=24, load=1.0, loss=0.5, coverage=0.9)
    path = tmp_path / "peers.json"
    assert peer_scores("m", rates, [0], [48], ["MSTL"], PeerCache(path), 0.0, print) == {}
    PeerCache(path).put(peer_key("m", "MSTL", rates, 0, [48]), score)
    assert peer_scores("m", rates, [0], [48], ["MSTL"], PeerCache(path), 0.0, print) == {"c0": {"MSTL": score}}
    rates.load[0, 3] += 1.0
    assert peer_scores("m", rates, [0], [48], ["MSTL"], PeerCache(path), 0.0, print) == {}


def test_every_window_after_the_warm_up_is_answered_and_timed() -> None:
    load = np.full((1, 7 * 24), 3.0)
    goals, times = answer_goals(Rates(3_600, 0, ("c0",), load, 0))
    assert {known: found["answers"] for known, found in times.items()} == {
        "two weeks known": 5 * 24,
        "a week known": 24,
    }
    for found in times.values():
        assert 0.0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert goals[0].figure == times["two weeks known"]["p99_ms"], "the goal is for the slower"

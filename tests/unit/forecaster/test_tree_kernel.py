"""The compiled forest answers as LightGBM does, on any row; texts that are no forest are refused."""

from __future__ import annotations

import re

import lightgbm
import numpy as np
import pytest

from services.forecaster.core.features import NAMES
from services.forecaster.core.trees import ForestError, read_forest
from services.forecaster.shell.model import MODEL_FILE


def odd_rows(count: int, features: int, seed: int) -> np.ndarray:
    """Numbers, zeros, NaN, infinities, and categories that no training saw."""
    chance = np.random.default_rng(seed)
    rows = chance.normal(3.0, 4.0, (count, features))
    rows[chance.random(rows.shape) < 0.2] = np.nan
    rows[chance.random(rows.shape) < 0.1] = 0.0
    rows[chance.random(rows.shape) < 0.02] = np.inf
    rows[chance.random(rows.shape) < 0.02] = -np.inf
    rows[:, 1] = chance.choice([0, 1, 2, 3, 40, 70, 1000, -1, np.nan, 1.5], count)
    return rows


def test_bundled_model_answers_as_lightgbm_does():
    for name in ("duration-model.p50.txt", "duration-model.p90.txt"):
        text = (MODEL_FILE.parent / name).read_text()
        rows = odd_rows(2_000, len(NAMES), seed=1)
        wanted = lightgbm.Booster(model_str=text).predict(rows, num_threads=1)
        np.testing.assert_allclose(read_forest(text, len(NAMES)).predict(rows), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "changed", [{}, {"use_missing": False}, {"zero_as_missing": True}, {"num_leaves": 2}], ids=lambda one: str(one)
)
def test_categories_and_every_kind_of_missing_value_answer_as_lightgbm_does(changed):
    chance = np.random.default_rng(7)
    rows = odd_rows(4_000, 5, seed=2)
    rows[~np.isfinite(rows)] = np.nan
    rows[:, 1] = chance.integers(0, 60, len(rows))
    target = (
        np.where(rows[:, 1] % 3 == 0, 2.0, -1.0) + np.nan_to_num(rows[:, 0]) * 0.3 + chance.normal(0, 0.3, len(rows))
    )
    parameters = {"objective": "quantile", "alpha": 0.5, "num_leaves": 15, "seed": 1, "num_threads": 1, "verbose": -1}
    data = lightgbm.Dataset(rows, target, categorical_feature=[1], params={"verbose": -1} | changed)
    booster = lightgbm.train(parameters | changed, data, 20)
    tried = odd_rows(2_000, 5, seed=3)
    forest = read_forest(booster.model_to_string(), 5)
    assert len(forest.bits) > 0, "the case needs categorical nodes"
    np.testing.assert_allclose(forest.predict(tried), booster.predict(tried, num_threads=1), rtol=0, atol=1e-12)


def test_forest_that_learnt_nothing_is_a_constant():
    data = lightgbm.Dataset(np.zeros((200, 2)), np.full(200, 3.5), params={"verbose": -1})
    booster = lightgbm.train({"objective": "quantile", "alpha": 0.5, "verbose": -1, "num_threads": 1}, data, 3)
    rows = np.array([[0.0, 1.0], [np.nan, 2.0]])
    forest = read_forest(booster.model_to_string(), 2)
    np.testing.assert_allclose(forest.predict(rows), booster.predict(rows), atol=1e-12)


def test_what_is_no_forest_is_refused():
    text = (MODEL_FILE.parent / "duration-model.p50.txt").read_text()
    with pytest.raises(ForestError, match="no LightGBM text"):
        read_forest("hello", len(NAMES))
    with pytest.raises(ForestError, match="other than 5 features"):
        read_forest(text, 5)
    for broken, why in (
        (text.replace("leaf_value=", "leaves="), "can't be read"),
        (re.sub(r"left_child=\d+", "left_child=0", text, count=1), "circles"),
        (re.sub(r"left_child=\d+", "left_child=99999", text, count=1), "missing"),
        (re.sub(r"split_feature=\d+", "split_feature=77", text, count=1), "unknown feature"),
        (text.replace("is_linear=0", "is_linear=1", 1), "linear"),
    ):
        with pytest.raises(ForestError, match=why):
            read_forest(broken, len(NAMES))

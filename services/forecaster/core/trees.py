"""A forest of boosted trees as flat arrays, read from LightGBM's own text and answered by a compiled kernel.

LightGBM's Python `predict` takes 170 µs for one row, nearly all of it preparation; this takes 5, gives the same numbers (a test
compares them on random rows, NaN and unknown categories included), and needs no LightGBM in a process that only answers. Owns
reading and answering; refuses training (`shell/training.py`), linear leaves and averaged forests. Read next: `duration.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Words = NDArray[np.uint32]

CATEGORICAL_BIT, DEFAULT_LEFT_BIT = 1, 2
MISSING_SHIFT, MISSING_MASK = 2, 3
MISSING_ZERO, MISSING_NAN = 1, 2
ZERO = 1e-35
"""LightGBM's `kZeroThreshold`: values nearer to 0 count as 0."""
WORD_BITS = 32
CATEGORY_MAX = 1 << 20
"""Larger categories are unknown ones; also keeps the cast below in range."""


class ForestError(ValueError):
    """The text is no forest that this kernel understands."""


@dataclass(frozen=True, slots=True)
class Forest:
    """All inner nodes one after the other. A child below 0 is the leaf `-1 - child`; `roots` of a bare leaf are negative, too.

    For a categorical node `threshold` is the place of its bitset in `bounds`.
    """

    roots: Indices
    feature: Indices
    threshold: Floats
    decision: Indices
    left: Indices
    right: Indices
    leaves: Floats
    bounds: Indices
    bits: Words

    def predict(self, rows: Floats) -> Floats:
        """(rows, features) → (rows,)"""
        answers = np.empty(len(rows))
        _predict(
            rows, self.roots, self.feature, self.threshold, self.decision, self.left, self.right, self.leaves,
            self.bounds, self.bits, answers,
        )  # fmt: skip
        return answers


@njit(cache=True)
def _goes_left(value: float, threshold: float, decision: int, bounds: Indices, bits: Words) -> bool:
    if decision & CATEGORICAL_BIT:
        if np.isnan(value) or value < 0.0 or value >= CATEGORY_MAX:
            return False
        category = int(value)
        at = int(threshold)
        word = bounds[at] + category // WORD_BITS
        return word < bounds[at + 1] and (bits[word] >> np.uint32(category % WORD_BITS)) & np.uint32(1) == 1
    missing = (decision >> MISSING_SHIFT) & MISSING_MASK
    if np.isnan(value) and missing != MISSING_NAN:
        value = 0.0
    if (missing == MISSING_NAN and np.isnan(value)) or (missing == MISSING_ZERO and -ZERO <= value <= ZERO):
        return bool(decision & DEFAULT_LEFT_BIT)
    return value <= threshold


@njit(cache=True)
def _predict(
    rows: Floats,
    roots: Indices,
    feature: Indices,
    threshold: Floats,
    decision: Indices,
    left: Indices,
    right: Indices,
    leaves: Floats,
    bounds: Indices,
    bits: Words,
    answers: Floats,
) -> None:
    for row in range(len(rows)):
        total = 0.0
        for root in roots:
            node = root
            while node >= 0:
                goes_left = _goes_left(rows[row, feature[node]], threshold[node], decision[node], bounds, bits)
                node = left[node] if goes_left else right[node]
            total += leaves[-1 - node]
        answers[row] = total


def read_forest(text: str, features: int) -> Forest:
    """The forest of a LightGBM model's text (`Booster.model_to_string()`). Raises ForestError."""
    blocks = text.split("\nTree=")
    header = _fields(blocks[0])
    if not blocks[0].startswith("tree") or header.get("num_tree_per_iteration") != "1" or "average_output" in header:
        raise ForestError("it is no LightGBM text of one boosted forest")
    if header.get("max_feature_idx") != str(features - 1):
        raise ForestError(f"it was trained on other than {features} features")
    try:
        return _joined([_fields(block.split("end of trees")[0]) for block in blocks[1:]], features)
    except (KeyError, ValueError, OverflowError) as error:
        raise ForestError(f"a tree can't be read: {error!r}") from None


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in block.splitlines())
    return {name: value for name, _, value in pairs}


def _joined(trees: list[dict[str, str]], features: int) -> Forest:
    roots, inner, leaf, words = [], 0, 0, 0
    parts: dict[str, list[np.ndarray]] = {name: [] for name in Forest.__slots__ if name != "roots"}
    sets = 0
    for tree in trees:
        if tree.get("is_linear", "0") != "0":
            raise ForestError("it has linear leaves")
        values = np.array(tree["leaf_value"].split(), np.float64)
        parts["leaves"].append(values)
        if len(values) == 1:
            roots.append(-1 - leaf)
            leaf += 1
            continue
        roots.append(inner)
        decision = np.array(tree["decision_type"].split(), np.int64)
        threshold = np.array(tree["threshold"].split(), np.float64)
        threshold[decision & CATEGORICAL_BIT == 1] += sets
        parts["decision"].append(decision)
        parts["threshold"].append(threshold)
        parts["feature"].append(np.array(tree["split_feature"].split(), np.int64))
        for side in ("left", "right"):
            child = np.array(tree[f"{side}_child"].split(), np.int64)
            parts[side].append(np.where(child >= 0, child + inner, child - leaf))
        if tree.get("num_cat", "0") != "0":
            bounds = np.array(tree["cat_boundaries"].split(), np.int64)
            bits = np.array(tree["cat_threshold"].split(), np.uint32)
            parts["bounds"].append(bounds[:-1] + words)
            parts["bits"].append(bits)
            sets += len(bounds) - 1
            words += len(bits)
        inner += len(decision)
        leaf += len(values)
    parts["bounds"].append(np.array([words], np.int64))
    kinds = {"threshold": np.float64, "leaves": np.float64, "bits": np.uint32}
    arrays = {
        name: np.concatenate(found).astype(kinds.get(name, np.int64))
        if found
        else np.zeros(0, kinds.get(name, np.int64))
        for name, found in parts.items()
    }
    forest = Forest(roots=np.array(roots, np.int64), **arrays)
    _check(forest, features)
    return forest


def _check(forest: Forest, features: int) -> None:
    """The kernel looks nowhere else, and comes to an end: children lie after their parents, within the arrays."""
    inner = np.arange(len(forest.feature))
    for child in (forest.left, forest.right):
        if len(child) != len(inner) or (child >= len(inner)).any() or (child < -len(forest.leaves)).any():
            raise ForestError("a child is missing")
        if ((child >= 0) & (child <= inner)).any():
            raise ForestError("its nodes go round in circles")
    categorical = forest.decision & CATEGORICAL_BIT == 1
    at = forest.threshold[categorical]
    if len(at) and not ((at >= 0) & (at < len(forest.bounds) - 1)).all():
        raise ForestError("a set of categories is missing")
    if len(inner) and not ((forest.feature >= 0) & (forest.feature < features)).all():
        raise ForestError("a node asks for an unknown feature")
    if not np.isfinite(forest.leaves).all():
        raise ForestError("a leaf is not finite")

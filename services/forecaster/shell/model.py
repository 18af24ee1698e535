"""The trained model at rest: as files (boosters as LightGBM text, a card as JSON, the bundled history as arrays) or published.

Owns: saving, loading and checking (a model trained on other features is refused with a sentence). Answers come from `core/trees.py`;
LightGBM itself is needed only to train and to take an answer apart. Read next: `training.py`, `fitting.py`.
"""

from __future__ import annotations

import binascii
import json
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.models import TrainedModel
from services.forecaster.core.features import GIVEN, NAMES, absolute
from services.forecaster.core.history import LEVELS, Seed
from services.forecaster.core.survival import BINS, HALF_LIVES
from services.forecaster.core.trees import Forest, ForestError, read_forest

DATA = Path(__file__).parent.parent / "data"
MODEL_FILE = DATA / "duration-model.json"
FORMAT = 1
SEED_ARRAYS = (
    "ends", "exposure", "starts", "last_log_s", "last_rank", "last_start_ms", "newest", "newest_ended", "batches", "batch",
)  # fmt: skip
TEXT_BYTES_MAX = 8_000_000
"""An unpacked booster; ours have 0.1 MB. Keeps a record that unpacks without end from filling the memory."""


class ModelError(ValueError):
    """One sentence: which file or record can't be used, why, and what to do."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a model file. `scores`: of the rolling evaluation, per method."""

    format: int
    version: str
    features: list[str]
    levels: list[str]
    half_lives: list[float]
    bins: int
    trained_on: str
    window: list[str]
    runs: int
    scores: dict[str, dict[str, float]]
    libraries: dict[str, str]
    boosters: list[str]
    history: str
    keys: list[list[str | int]]
    trust: float = 1.0


@dataclass(frozen=True, slots=True)
class BoosterModel:
    """Corrections to history. `texts`: as LightGBM wrote them, of P50 and P90 relative to history, and, in models with two
    voices, of both in plain log seconds; what the voices say counts half and half. `trained_on`: for people."""

    version: str
    trust: float
    forests: tuple[Forest, ...]
    texts: tuple[str, ...]
    trained_on: str = ""

    def corrections(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        answers = np.empty((len(rows), len(self.forests)))
        plain = absolute(rows) if len(self.forests) > 2 else rows
        for column, forest in enumerate(self.forests):
            answers[:, column] = (
                forest.predict(rows) if column < 2 else forest.predict(plain) - rows[:, GIVEN + column - 2]
            )
        return answers.reshape(len(rows), -1, 2).mean(axis=1)

    def contributions(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        """(2, features + 1): what each feature added to log P50 and log P90, the usual job last; both voices half and half."""
        import lightgbm  # 100 MB that answering doesn't need

        own = row.reshape(1, -1)
        rows = [own, own, absolute(own), absolute(own)]
        boosters = [lightgbm.Booster(model_str=text) for text in self.texts]
        parts = np.array(
            [np.asarray(one.predict(rows[place], pred_contrib=True))[0] for place, one in enumerate(boosters)]
        )
        if len(parts) == 2:
            return parts
        # The plain voice starts from a usual job's log seconds, not from history: that step is put down to what history says.
        for column in (0, 1):
            parts[2 + column, GIVEN + column] += parts[2 + column, -1] - row[GIVEN + column]
            parts[2 + column, -1] = 0.0
        return np.asarray((parts[:2] + parts[2:]) / 2)


def shape() -> dict[str, Any]:
    """What a model must have been trained on to be of use here."""
    return {"features": list(NAMES), "levels": list(LEVELS), "half_lives": list(HALF_LIVES), "bins": BINS}


def content_version(texts: tuple[str, ...], trust: float) -> str:
    """A name that equal models share and others don't."""
    return "lightgbm-" + blake2b("\0".join((*texts, repr(trust))).encode(), digest_size=6).hexdigest()


def packed(text: str) -> str:
    """A booster's text as it is published: a quarter of its size."""
    return b64encode(zlib.compress(text.encode(), 9)).decode()


def model_of(trained: TrainedModel) -> BoosterModel:
    """A published model, ready to answer. Raises ModelError."""
    wanted = shape()
    if {name: getattr(trained, name) for name in wanted} != wanted:
        raise ModelError(f"model {trained.version} was made for other features or another history: wait for a training")
    try:
        texts = tuple(_unpacked(booster) for booster in trained.boosters)
    except (binascii.Error, zlib.error, UnicodeDecodeError) as error:
        raise ModelError(f"model {trained.version} can't be unpacked ({error})") from None
    return _answering(trained.version, trained.trust, texts, trained_on="this cluster's own runs")


def _unpacked(booster: str) -> str:
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(b64decode(booster, validate=True), TEXT_BYTES_MAX)
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise ModelError("a booster is cut off, or has no end")
    return text.decode()


def _answering(version: str, trust: float, texts: tuple[str, ...], *, trained_on: str) -> BoosterModel:
    if len(texts) not in (2, 4):
        raise ModelError(f"model {version} has {len(texts)} boosters; 2 or 4 are usable")
    try:
        forests = tuple(read_forest(text, len(NAMES)) for text in texts)
    except ForestError as error:
        raise ModelError(f"model {version}: {error}") from None
    return BoosterModel(version, trust, forests, texts, trained_on)


def load_model(path: Path = MODEL_FILE) -> tuple[BoosterModel, Seed]:
    """The model and the history it was trained on. Raises ModelError."""
    card = read_card(path)
    try:
        texts = tuple((path.parent / name).read_text() for name in card.boosters)
        with np.load(path.parent / card.history, allow_pickle=False) as arrays:
            seed = Seed(keys=tuple(tuple(key) for key in card.keys), **{name: arrays[name] for name in SEED_ARRAYS})
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path} is incomplete ({error}); run `python -m services.forecaster.train` again.") from None
    trained_on = f"{card.trained_on}, {' to '.join(card.window)}"
    return _answering(card.version, card.trust, texts, trained_on=trained_on), seed


def read_card(path: Path = MODEL_FILE) -> ModelCard:
    """What a model file says of itself. Raises ModelError."""
    try:
        card = msgspec.json.decode(path.read_bytes(), type=ModelCard)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(
            f"{path} can't be read ({error}); run `python -m services.forecaster.train` to make it."
        ) from None
    found = {"features": card.features, "levels": card.levels, "half_lives": card.half_lives, "bins": card.bins}
    if card.format != FORMAT or found != shape():
        raise ModelError(
            f"{path} was made for other features or another history; run `python -m services.forecaster.train` again."
        )
    return card


def as_published(model: BoosterModel, card: ModelCard) -> TrainedModel:
    """A model file's content in the form in which models are published: what a first training is compared with."""
    from_ms, to_ms = (round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000) for day in card.window)
    return TrainedModel(
        version=model.version,
        made_ms=to_ms,
        window_from_ms=from_ms,
        window_to_ms=to_ms,
        runs=card.runs,
        trust=model.trust,
        boosters=[packed(text) for text in model.texts],
        libraries=card.libraries,
        **shape(),
    )


def save_model(card: ModelCard, boosters: tuple[str, ...], seed: Seed, path: Path = MODEL_FILE) -> None:
    """Write the boosters and the history first, the card that names them last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, text in zip(card.boosters, boosters, strict=True):
        (path.parent / name).write_text(text)
    np.savez_compressed(path.parent / card.history, **{name: getattr(seed, name) for name in SEED_ARRAYS})
    path.write_text(json.dumps(msgspec.to_builtins(card), indent=1) + "\n")

"""The trained model as a file: boosters as LightGBM text, everything about them as JSON, the bundled history as arrays.

Owns: saving, loading and checking (a model trained on other features is refused with a sentence), and the LightGBM side of
`core.duration.Model`. One thread per prediction: a row takes 50 µs, and OpenMP's threads would only wait for each other.
Read next: `training.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import lightgbm
import msgspec
import numpy as np
from numpy.typing import NDArray

from services.forecaster.core.features import NAMES
from services.forecaster.core.history import LEVELS, Seed
from services.forecaster.core.survival import BINS, HALF_LIVES

DATA = Path(__file__).parent.parent / "data"
MODEL_FILE = DATA / "duration-model.json"
FORMAT = 1
SEED_ARRAYS = ("ends", "exposure", "starts", "last_log_s", "last_rank", "last_start_ms")


class ModelError(Exception):
    """One sentence: which file can't be used, why, and what to do."""


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
    """LightGBM's corrections to history."""

    card: ModelCard
    boosters: tuple[lightgbm.Booster, lightgbm.Booster]

    @property
    def version(self) -> str:
        return self.card.version

    @property
    def trust(self) -> float:
        return self.card.trust

    def corrections(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.column_stack([booster.predict(rows, num_threads=1) for booster in self.boosters])


def load_model(path: Path = MODEL_FILE) -> tuple[BoosterModel, Seed]:
    """The model and the history it was trained on. Raises ModelError."""
    try:
        card = msgspec.json.decode(path.read_bytes(), type=ModelCard)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(
            f"{path} can't be read ({error}); run `python -m services.forecaster.train` to make it."
        ) from None
    shape = (card.format, tuple(card.features), tuple(card.levels), tuple(card.half_lives), card.bins)
    if shape != (FORMAT, NAMES, LEVELS, HALF_LIVES, BINS):
        raise ModelError(
            f"{path} was made for other features or another history; run `python -m services.forecaster.train` again."
        )
    try:
        first, second = (lightgbm.Booster(model_str=(path.parent / name).read_text()) for name in card.boosters)
        with np.load(path.parent / card.history, allow_pickle=False) as arrays:
            seed = Seed(keys=tuple(tuple(key) for key in card.keys), **{name: arrays[name] for name in SEED_ARRAYS})
    except (OSError, ValueError, KeyError, lightgbm.basic.LightGBMError) as error:
        raise ModelError(f"{path} is incomplete ({error}); run `python -m services.forecaster.train` again.") from None
    return BoosterModel(card, (first, second)), seed


def save_model(card: ModelCard, boosters: tuple[str, str], seed: Seed, path: Path = MODEL_FILE) -> None:
    """Write the boosters and the history first, the card that names them last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, text in zip(card.boosters, boosters, strict=True):
        (path.parent / name).write_text(text)
    np.savez_compressed(path.parent / card.history, **{name: getattr(seed, name) for name in SEED_ARRAYS})
    path.write_text(json.dumps(msgspec.to_builtins(card), indent=1) + "\n")

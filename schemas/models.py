"""Models the forecaster trained (`models`): which one answers for a cluster, how it was judged, how it does now."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from schemas.base import Event, Identifier, ShortText, TimeMs

BOOSTER_CHARACTERS_MAX = 120_000
"""Eight of them, and all about them, fit into one record; ours have 60,000 to 80,000."""
Score = Annotated[float, Meta(ge=0, le=1000)]
Share = Annotated[float, Meta(ge=0, le=1)]
Booster = Annotated[
    str, Meta(max_length=BOOSTER_CHARACTERS_MAX, description="LightGBM's text, deflated (zlib), in base64")
]


class Choice(Enum):
    """What became of a training: the new model answers, the old one stays, or the one before it is back."""

    TRAINED = "trained"
    KEPT = "kept"
    ROLLED_BACK = "rolled_back"


class Watch(Enum):
    """Whether forecasts still come true as they should."""

    STEADY = "steady"
    DRIFTING = "drifting"
    UNKNOWN = "unknown"


class TrainedModel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole model: `version` names its content, so equal versions answer alike. `boosters`: P50, then P90,
    relative to history; a model with a second voice has both again in plain log seconds.

    `features`, `levels`, `half_lives`, `bins`: the shape of what it was trained on; a forecaster of another shape refuses it.
    `window_*_ms`: first start and newest known moment among its `runs`.
    """

    version: Annotated[str, Meta(min_length=1, max_length=128)]
    made_ms: TimeMs
    features: list[ShortText]
    levels: list[ShortText]
    half_lives: list[Annotated[float, Meta(gt=0)]]
    bins: Annotated[int, Meta(ge=1)]
    window_from_ms: TimeMs
    window_to_ms: TimeMs
    runs: Annotated[int, Meta(ge=0)]
    trust: Share
    boosters: Annotated[list[Booster], Meta(min_length=2, max_length=4)]
    libraries: dict[ShortText, ShortText] = {}


class ModelScore(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a model does on `runs` that ended and that it was not trained on. `pinball`: P50 + P90, natural log seconds."""

    version: ShortText
    runs: Annotated[int, Meta(ge=0)]
    pinball: Score
    factor: Annotated[float, Meta(ge=0, le=1e9)]
    coverage: Share


class ModelChosen(Event, frozen=True, kw_only=True):
    """The model that answers for a cluster from now on (`current` None: history alone), and the one to fall back to.

    `scores`: of all candidates on the last window. The newest record per cluster is all a forecaster needs to answer alike.
    """

    cluster: Identifier
    made_ms: TimeMs
    choice: Choice
    reason: ShortText
    scores: list[ModelScore]
    current: TrainedModel | None = None
    previous: TrainedModel | None = None


class ModelWatched(Event, frozen=True, kw_only=True):
    """How the forecasts made at start did, over the last ones whose outcome is known."""

    cluster: Identifier
    made_ms: TimeMs
    watch: Watch
    reason: ShortText
    score: ModelScore
    history: ModelScore

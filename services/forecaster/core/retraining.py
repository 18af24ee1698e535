"""When to train, and what to do with the result: pure decisions about models, each with its reason.

A training is *due* a period after the last one, or early when forecasts drift, once enough runs have ended since. It is *judged* on
the runs that ended since the last training, which neither the new model (fitted on what was known before them) nor the old ones
have seen. The new model answers if it is better than everything else; if it isn't, and the present one is worse than the one
before it or than history alone, that one comes back. Refuses: fitting (`shell/fitting.py`). Read next: `learning.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.models import Choice, ModelScore, TrainedModel
from services.forecaster.core.drift import HISTORY
from services.forecaster.core.lessons import Taught

NEW_GAIN_MIN = 0.005
"""A new model replaces a good one for at least half a percent of loss; below that it is luck, and planners see other numbers."""
ROLL_BACK_LOSS_MIN = 0.02
"""A model is taken back when something older is at least 2 % better on the runs since."""
EARLY_PERIOD_SHARE = 1 / 24
"""Drift brings the next training forward to an hour of a day's period."""
JUDGED_MAX = 5_000
"""Runs a training is judged on: the newest ones."""
FIRST_JUDGED_SHARE = 0.2
"""Without a training before, the last fifth of the runs judges."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """`period_s`: domain seconds between two trainings, 0 never; `runs_min`: ended runs from which a model can learn anything;
    `judged_min`: runs ended since the last training from which a judgement isn't chance."""

    period_s: float = 86_400.0
    runs_min: int = 1_000
    judged_min: int = 300


@dataclass(frozen=True, slots=True)
class Situation:
    """What the decision to train rests on. `last_ms`: newest moment the last training knew, -1 if there was none."""

    now_ms: int
    last_ms: int
    kept: int
    ended_since: int
    drifting: bool
    tried_ms: int


@dataclass(frozen=True, slots=True)
class Order:
    """A training to be carried out elsewhere: `judged_from_ms` splits what the candidate may learn from what judges all."""

    cluster: str
    made_ms: int
    why: str
    taught: Taught
    judged_from_ms: int
    current: TrainedModel | None
    previous: TrainedModel | None


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a training brought: the model fitted on everything, and scores by role on the judged runs. `made_ms`: the order's."""

    cluster: str
    made_ms: int
    model: TrainedModel
    candidate: ModelScore
    current: ModelScore | None
    previous: ModelScore | None
    history: ModelScore


@dataclass(frozen=True, slots=True)
class Chosen:
    """The verdict over a training."""

    choice: Choice
    reason: str
    current: TrainedModel | None
    previous: TrainedModel | None


def why_train(rhythm: Rhythm, situation: Situation) -> str | None:
    """The reason for a training now, or None."""
    if rhythm.period_s <= 0 or situation.kept < rhythm.runs_min:
        return None
    if situation.last_ms >= 0 and situation.ended_since < rhythm.judged_min:
        return None
    newest_ms = max(situation.last_ms, situation.tried_ms)
    age_s = (situation.now_ms - newest_ms) / 1000.0
    if newest_ms < 0:
        return f"first {situation.kept} runs"
    if age_s >= rhythm.period_s:
        return f"{situation.ended_since} runs since the last training"
    if situation.drifting and age_s >= rhythm.period_s * EARLY_PERIOD_SHARE:
        return "forecasts drift"
    return None


def judged_from_ms(taught: Taught, last_ms: int) -> int:
    """The moment whose later ends judge: the last training's, but at most the newest `JUDGED_MAX` runs."""
    ends_ms = sorted(int(end_ms) for end_ms in taught.end_ms[taught.ended])
    if not ends_ms:
        return last_ms
    if last_ms < 0:
        return ends_ms[int(len(ends_ms) * (1 - FIRST_JUDGED_SHARE)) - 1]
    return max(last_ms, ends_ms[-JUDGED_MAX - 1]) if len(ends_ms) > JUDGED_MAX else last_ms


def choose(fitted: Fitted, current: TrainedModel | None, previous: TrainedModel | None) -> Chosen:
    """The new model, the present one, or an older one."""
    older: list[tuple[ModelScore, TrainedModel | None]] = [(fitted.history, None)]
    if fitted.previous is not None and previous is not None:
        older.append((fitted.previous, previous))
    now = fitted.history if current is None or fitted.current is None else fitted.current
    best_old, best_model = min(older, key=lambda one: one[0].pinball)
    new = fitted.candidate
    to_beat = min(now.pinball, best_old.pinball)
    if new.pinball <= (1 - NEW_GAIN_MIN) * to_beat:
        return Chosen(Choice.TRAINED, _compared(new, now if now.pinball <= best_old.pinball else best_old),
                      fitted.model, current)  # fmt: skip
    if current is not None and best_old.pinball < (1 - ROLL_BACK_LOSS_MIN) * now.pinball:
        return Chosen(Choice.ROLLED_BACK, _compared(best_old, now), best_model, None)
    return Chosen(Choice.KEPT, _compared(now, new), current, previous)


def _compared(winner: ModelScore, loser: ModelScore) -> str:
    return (
        f"loss {winner.pinball:.3f} ({_name(winner)}) against {loser.pinball:.3f} ({_name(loser)})"
        f" on the last {winner.runs} runs"
    )


def _name(score: ModelScore) -> str:
    return "history alone" if score.version == HISTORY else score.version


def scores_of(fitted: Fitted) -> Sequence[ModelScore]:
    """All of them, the new model first."""
    return [one for one in (fitted.candidate, fitted.current, fitted.previous, fitted.history) if one is not None]

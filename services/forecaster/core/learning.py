"""One cluster's learning: lessons and outcomes gathered, trainings ordered, models adopted. State, no I/O.

Owns: the order of these steps. The fitting happens elsewhere and takes as long as it takes; meanwhile the present model answers, and
the new one takes over between two records. What is published (`models`) is all that another instance, or this one after a restart,
needs to answer alike. Refuses: LightGBM and bytes (`Load` is an argument). Read next: `retraining.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.models import ModelChosen, ModelWatched, TrainedModel, Watch
from services.forecaster.core.drift import Outcomes, Verdict
from services.forecaster.core.duration import Model
from services.forecaster.core.features import GIVEN, Row
from services.forecaster.core.lessons import Lessons
from services.forecaster.core.retraining import (
    EARLY_PERIOD_SHARE,
    Chosen,
    Fitted,
    Order,
    Rhythm,
    Situation,
    choose,
    judged_from_ms,
    scores_of,
    why_train,
)

WATCHED_PERIOD_MS = 3_600_000
"""Domain time between two published looks at drift, unless it begins or ends."""

Load = Callable[[TrainedModel], Model]
"""Makes a model answer; raises ValueError for one of another shape."""


class Learning:
    """See the module's docstring. `start`: the model before the first training."""

    def __init__(self, cluster: str, rhythm: Rhythm, load: Load | None, start: TrainedModel | None) -> None:
        self.cluster = cluster
        self.rhythm = rhythm
        self.current = start
        self.previous: TrainedModel | None = None
        self.lessons = Lessons()
        self.outcomes = Outcomes()
        self.training = False
        self.refused = 0
        """Published models that this process can't use: made by another version of it."""
        self._load = load
        self._known_ms = -1
        self._tried_ms = -1
        self._judged_pinball: float | None = None
        self._watched: tuple[int, Watch] = (-1, Watch.UNKNOWN)

    # Runs

    def started(self, job_id: str, row: Row, start_ms: int) -> None:
        self.lessons.started(job_id, row, start_ms)

    def ended(self, job_id: str, row: Row, end_ms: int, log_s: float, said: tuple[float, float]) -> None:
        """A run ended by itself. `said`: log P50 and P90 when it started."""
        self.lessons.ended(job_id, end_ms, log_s)
        if (
            end_ms > self._known_ms
        ):  # the model has seen the others: they are no test of it (they come in while state is rebuilt)
            self.outcomes.add(log_s, said, (float(row[GIVEN]), float(row[GIVEN + 1])))

    # Trainings

    def order(self, now_ms: int) -> Order | None:
        """A training that is due, at most one at a time; `fitted` or `failed` ends it."""
        if self.training or self._load is None:
            return None
        why = why_train(
            self.rhythm,
            Situation(
                now_ms=now_ms,
                last_ms=self._known_ms,
                kept=self.lessons.kept,
                ended_since=self.lessons.ended_since(self._known_ms) if self._worth_counting(now_ms) else 0,
                drifting=self._watched[1] is Watch.DRIFTING,
                tried_ms=self._tried_ms,
            ),
        )
        if why is None:
            return None
        self.training = True
        self._tried_ms = now_ms
        taught = self.lessons.taught(now_ms)
        from_ms = judged_from_ms(taught, self._known_ms)
        return Order(self.cluster, now_ms, why, taught, from_ms, self.current, self.previous)

    def _worth_counting(self, now_ms: int) -> bool:
        return self.lessons.kept >= self.rhythm.runs_min and now_ms >= self._tried_ms

    def failed(self, now_ms: int) -> None:
        """A training came to nothing; the next one is due soon, not at once."""
        self.training = False
        self._tried_ms = now_ms - round(self.rhythm.period_s * 1000 * (1 - EARLY_PERIOD_SHARE))

    def fitted(self, result: Fitted) -> ModelChosen:
        """Judge a training. The caller publishes the answer and `adopt`s it."""
        self.training = False
        chosen: Chosen = choose(result, self.current, self.previous)
        return ModelChosen(
            cluster=self.cluster,
            made_ms=result.made_ms,
            choice=chosen.choice,
            reason=chosen.reason,
            scores=list(scores_of(result)),
            current=chosen.current,
            previous=chosen.previous,
        )

    def adopt(self, event: ModelChosen) -> tuple[bool, Model | None]:
        """Take over what was published, by this process or another. Returns (whether the answer changes, the model)."""
        self._known_ms = max(self._known_ms, event.made_ms)
        before = None if self.current is None else self.current.version
        after = None if event.current is None else event.current.version
        if after == before:
            self.previous = event.previous
            return False, None
        model: Model | None = None
        if event.current is not None:
            if self._load is None:
                return False, None
            try:
                model = self._load(event.current)
            except ValueError:
                self.refused += 1
                return False, None
        self.current, self.previous = event.current, event.previous
        self._judged_pinball = next((one.pinball for one in event.scores if one.version == after), None)
        self.outcomes.start_over()
        return True, model

    # Drift

    def verdict(self) -> Verdict:
        version = "history" if self.current is None else self.current.version
        return self.outcomes.verdict(version, self._judged_pinball)

    def watch(self, now_ms: int) -> ModelWatched | None:
        """Something to publish about drift: every hour, and when it begins or ends."""
        last_ms, last = self._watched
        if self.outcomes.count == 0 or (last_ms >= 0 and now_ms - last_ms < WATCHED_PERIOD_MS // 12):
            return None
        found = self.verdict()
        if last_ms >= 0 and found.watch is last and now_ms - last_ms < WATCHED_PERIOD_MS:
            return None
        self._watched = (now_ms, found.watch)
        return ModelWatched(
            cluster=self.cluster,
            made_ms=now_ms,
            watch=found.watch,
            reason=found.reason,
            score=found.score,
            history=found.history,
        )

"""Training and its honest evaluation: LightGBM quantile models on what history alone gets wrong.

Owns: reading traces, the boosters' parameters, the rolling evaluation (retrained every few days on what had ended by then,
scored on the days after), and the model that goes into the package. Read next: `core/rolling.py`, `model.py`.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lightgbm
import numpy as np
from numpy.typing import NDArray

from services.forecaster.core.duration import CORRECTION_MAX
from services.forecaster.core.features import CATEGORICAL, GIVEN, NAMES, absolute
from services.forecaster.core.history import LEVELS
from services.forecaster.core.rolling import PastRuns, Replayed, Score, keyed_history, replay, training_rows
from services.forecaster.core.survival import BINS, HALF_LIVES
from services.forecaster.shell.model import DATA, FORMAT, ModelCard, save_model

PHILLY = DATA / "philly.csv.gz"
PHILLY_START = datetime(2017, 8, 14, 23, 27, tzinfo=UTC)
"""Second 0 of the trace, in the cluster's own wall clock (taken as UTC throughout)."""
DAY_S = 86_400
QUANTILES = (0.5, 0.9)
ROUNDS = 80
PARAMETERS = {
    "objective": "quantile",
    "num_leaves": 15,
    "learning_rate": 0.07,
    "min_data_in_leaf": 40,
    "max_bin": 63,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "seed": 1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
"""Small trees, few of them: the base is history."""
WARM_UP_DAYS = 8
"""Days before the first training of the rolling evaluation; history alone answers meanwhile."""
SCORED_FROM = 0.3
"""Scores are of the last 70 % of the runs, as usual for this trace."""

BUNDLED_TRUST = 0.5
"""A model retrained daily earns its full corrections; one that is weeks old was measured best at half of them."""

Array = NDArray[np.float64]
Progress = Callable[[str], None]


class TraceError(Exception):
    """One sentence: which file, which line, what is wrong."""


def read_runs(path: Path, *, span: bool = False, first_row: int = 0, row_count: int | None = None) -> PastRuns:
    """Runs of a CSV with the columns of the Philly trace (submit_s, num_gpus, span_s, run_s, vc; ended if it was cut).

    The run time is `run_s` (its attempts) where known, else, or if `span`, `span_s`. Sizes are rounded up to powers of two.
    """
    submit_s, duration_s, ended, gpus, team = [], [], [], [], []
    for line, row in enumerate(_rows(path), start=2):
        try:
            duration = float(row["span_s"] if span or not row["run_s"] else row["run_s"])
            submit_s.append(int(row["submit_s"]))
            duration_s.append(max(duration, 1.0))
            ended.append(row.get("ended", "1") != "0")
            gpus.append(1 << max(0, int(row["num_gpus"]) - 1).bit_length())
            team.append(row["vc"] or "unknown")
        except (KeyError, ValueError) as error:
            raise TraceError(
                f"{path}, line {line}: {error}; the columns submit_s, num_gpus, span_s, run_s, vc are needed."
            ) from None
    part = slice(first_row, None if row_count is None else first_row + row_count)
    order = np.argsort(np.array(submit_s, np.int64), kind="stable")[part]
    return PastRuns(
        submit_s=np.array(submit_s, np.int64)[order],
        duration_s=np.array(duration_s)[order],
        ended=np.array(ended, np.bool_)[order],
        gpus=np.array(gpus, np.int64)[order],
        team=tuple(team[index] for index in order),
    )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
    except OSError as error:
        raise TraceError(f"{path} can't be read: {error}.") from None


Voices = tuple[lightgbm.Booster, lightgbm.Booster]
"""Of one quantile: one that knows durations only in terms of what history says of the job, so that it carries over between teams that
work in minutes and in days, and one in plain log seconds, which carries over between users who share limits and queues. Together they
have 4 % less loss than the first on MetaCentrum, and as much on Philly and NASA."""


def fit(runs: PastRuns, replayed: Replayed, cut_s: int, column: int) -> Voices:
    """The boosters for P50 (0) or P90 (1), on what was known at a cut."""
    return fit_voices(*training_rows(runs, replayed, cut_s, column), column)


def fit_voices(rows: Array, targets: Array, weights: Array, column: int) -> Voices:
    """Both voices of P50 (0) or P90 (1). `targets`: log seconds above history's quantile."""
    plain = _fitted(absolute(rows), targets + rows[:, GIVEN + column], weights, column)
    return _fitted(rows, targets, weights, column), plain


def texts_of(voices: Sequence[Voices]) -> tuple[str, ...]:
    """Of P50's and P90's boosters, in the order in which a model keeps them."""
    return tuple(one[place].model_to_string() for place in (0, 1) for one in voices)


def fixes_of(voices: Sequence[Voices], rows: Array) -> Array:
    """(rows, P50 and P90): what both voices, half and half, add to history, within the limit that the service sets."""
    plain, fixes = absolute(rows), np.empty((len(rows), 2))
    for column, (first, second) in enumerate(voices):
        said = np.asarray(second.predict(plain, num_threads=1)) - rows[:, GIVEN + column]
        fixes[:, column] = (np.asarray(first.predict(rows, num_threads=1)) + said) / 2
    return np.clip(fixes, -CORRECTION_MAX, CORRECTION_MAX)


def _fitted(rows: Array, targets: Array, weights: Array, column: int) -> lightgbm.Booster:
    data = lightgbm.Dataset(
        rows, targets, weight=weights, feature_name=list(NAMES), categorical_feature=list(CATEGORICAL),
        params={"verbose": -1, "max_bin": PARAMETERS["max_bin"]},
    )  # fmt: skip
    return lightgbm.train({**PARAMETERS, "alpha": QUANTILES[column]}, data, ROUNDS)


def cuts_of(runs: PastRuns, retrain_days: int) -> tuple[int, ...]:
    """Moments of retraining: every `retrain_days` from the end of the warm-up to the last submit."""
    first = int(runs.submit_s[0]) + WARM_UP_DAYS * DAY_S
    return tuple(range(first, int(runs.submit_s[-1]), retrain_days * DAY_S))


def evaluate(runs: PastRuns, retrain_days: int, say: Progress) -> tuple[dict[str, Score], Array, Array]:
    """Scores by method over the last 70 % of the runs, and the model's log P50 and P90 for every run."""
    cuts = cuts_of(runs, retrain_days)
    say(f"replaying {len(runs):,} runs")
    replayed = replay(runs, cuts)
    log_p50, log_p90 = replayed.base(0).copy(), replayed.base(1).copy()
    for cut_s, next_s in zip(cuts, [*cuts[1:], np.iinfo(np.int64).max], strict=True):
        test = np.flatnonzero((runs.submit_s >= cut_s) & (runs.submit_s < next_s))
        if not len(test):
            continue
        say(f"day {(cut_s - int(runs.submit_s[0])) // DAY_S}: retraining, then {len(test):,} forecasts")
        voices = [fit(runs, replayed, cut_s, column) for column in (0, 1)]
        fixes = fixes_of(voices, replayed.rows[test])
        log_p50[test] += fixes[:, 0]
        log_p90[test] += fixes[:, 1]
    log_p90 = np.maximum(log_p90, log_p50)
    scored = np.arange(len(runs)) >= int(SCORED_FROM * len(runs))
    scored &= runs.ended
    actual = runs.log_s()[scored]
    keyed = keyed_history(runs)
    scores = {
        "keyed history": Score.of(actual, keyed[0][scored], keyed[1][scored]),
        "censored history": Score.of(actual, replayed.base(0)[scored], replayed.base(1)[scored]),
        "history and model": Score.of(actual, log_p50[scored], log_p90[scored]),
    }
    return scores, log_p50, log_p90


def train(runs: PastRuns, trained_on: str, scores: dict[str, Score], path: Path, say: Progress) -> ModelCard:
    """Train on all runs, cut where the record was cut, and write the model file."""
    cut_s = _last_known_s(runs)
    replayed = replay(runs, (cut_s,))
    say("training P50 and P90")
    texts = texts_of([fit(runs, replayed, cut_s, column) for column in (0, 1)])
    seed = replayed.history.at_rest()
    window = [_date(int(runs.submit_s[0])), _date(cut_s)]
    card = ModelCard(
        format=FORMAT,
        version=f"lightgbm-{window[1][:10]}",
        features=list(NAMES),
        levels=list(LEVELS),
        half_lives=list(HALF_LIVES),
        bins=BINS,
        trained_on=trained_on,
        window=window,
        runs=len(runs),
        scores={
            name: {"pinball": s.pinball, "factor": s.factor, "coverage": s.coverage, "runs": s.runs}
            for name, s in scores.items()
        },
        libraries={"lightgbm": lightgbm.__version__, "numpy": np.__version__},
        boosters=[f"duration-model.{name}.txt" for name in ("p50", "p90", "plain-p50", "plain-p90")],
        history="history.npz",
        keys=[list(key) for key in seed.keys],
        trust=BUNDLED_TRUST,
    )
    save_model(card, texts, seed, path)
    return card


def _last_known_s(runs: PastRuns) -> int:
    """When the record was cut: the last end it tells of, or the last submit."""
    return int(max(runs.submit_s[-1], np.floor((runs.submit_s + runs.duration_s).max())))


def _date(submit_s: int) -> str:
    return (PHILLY_START + timedelta(seconds=submit_s)).strftime("%Y-%m-%dT%H:%M:%S")

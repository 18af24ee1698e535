"""One training, from an order to a judged model: LightGBM on what was known, scores on what came after.

`python -m services.forecaster.shell.fitting [idle|nice]` reads an order from standard input and writes the result to standard output:
the forecaster runs it as a child process of the lowest priority, so that a training never keeps an event waiting. Owns the candidate
(fitted on what was known when the judged runs began), the trust it earns, and the final fit on everything. Same order, same bytes
out: seeds are fixed and one thread works. Refuses: the verdict (`core/retraining.py`). Read next: `trainer.py`, `training.py`.
"""

from __future__ import annotations

import os
import sys
from statistics import NormalDist

import lightgbm
import msgspec
import numpy as np

from schemas.models import BOOSTER_CHARACTERS_MAX, ModelScore, TrainedModel
from services.forecaster.core.drift import HISTORY, scored
from services.forecaster.core.duration import CORRECTION_MAX
from services.forecaster.core.features import BURST, GIVEN, NAMES, batch_weights
from services.forecaster.core.lessons import Array, Taught
from services.forecaster.core.retraining import Fitted, Order
from services.forecaster.core.rolling import CENSORED_SHARES
from services.forecaster.core.survival import LOG_S_MAX
from services.forecaster.shell.model import BoosterModel, content_version, model_of, packed, shape
from services.forecaster.shell.training import Voices, fit_voices, fixes_of, texts_of

TRUSTS = (0.5, 1.0)
"""A candidate gets all the trust only if that is better than half of it on the judged runs."""
IDLE, NICE = "idle", "nice"
NICENESS = 19
"""The lowest there is, also where the system has no idle class."""
P90_DEVIATIONS = NormalDist().inv_cdf(0.9)
SIGMA_MIN = 0.1


class OrderWire(msgspec.Struct, frozen=True):
    """An order as bytes; arrays as raw float64 and int64."""

    cluster: str
    made_ms: int
    why: str
    judged_from_ms: int
    runs: int
    rows: bytes
    start_ms: bytes
    end_ms: bytes
    log_s: bytes
    ended: bytes
    current: TrainedModel | None
    previous: TrainedModel | None


class FittedWire(msgspec.Struct, frozen=True):
    """A result as bytes."""

    cluster: str
    made_ms: int
    model: TrainedModel
    candidate: ModelScore
    current: ModelScore | None
    previous: ModelScore | None
    history: ModelScore


def write_order(order: Order) -> bytes:
    taught = order.taught
    return msgspec.msgpack.encode(
        OrderWire(
            cluster=order.cluster,
            made_ms=order.made_ms,
            why=order.why,
            judged_from_ms=order.judged_from_ms,
            runs=len(taught),
            rows=taught.rows.tobytes(),
            start_ms=taught.start_ms.tobytes(),
            end_ms=taught.end_ms.tobytes(),
            log_s=taught.log_s.tobytes(),
            ended=taught.ended.tobytes(),
            current=order.current,
            previous=order.previous,
        )
    )


def read_order(data: bytes) -> Order:
    wire = msgspec.msgpack.decode(data, type=OrderWire)
    taught = Taught(
        rows=np.frombuffer(wire.rows).reshape(wire.runs, len(NAMES)),
        start_ms=np.frombuffer(wire.start_ms, np.int64),
        end_ms=np.frombuffer(wire.end_ms, np.int64),
        log_s=np.frombuffer(wire.log_s),
        ended=np.frombuffer(wire.ended, np.bool_),
    )
    return Order(wire.cluster, wire.made_ms, wire.why, taught, wire.judged_from_ms, wire.current, wire.previous)


def write_fitted(result: Fitted) -> bytes:
    return msgspec.msgpack.encode(
        FittedWire(
            result.cluster, result.made_ms, result.model, result.candidate, result.current, result.previous,
            result.history,
        )
    )  # fmt: skip


def read_fitted(data: bytes) -> Fitted:
    wire = msgspec.msgpack.decode(data, type=FittedWire)
    return Fitted(
        wire.cluster, wire.made_ms, wire.model, wire.candidate, wire.current, wire.previous, wire.history
    )  # fmt: skip


def fitted(order: Order) -> Fitted:
    """Carry out an order."""
    taught = order.taught
    judges = np.flatnonzero(taught.ended & (taught.end_ms > order.judged_from_ms))
    actual, rows = taught.log_s[judges], taught.rows[judges]
    base = (taught.history(0)[judges], taught.history(1)[judges])
    fixes = fixes_of([_fit(taught, order.judged_from_ms, column) for column in (0, 1)], rows).T
    tried = [(scored("", actual, base[0] + trust * fixes[0], base[1] + trust * fixes[1]), trust) for trust in TRUSTS]
    score, trust = min(tried, key=lambda one: (one[0].pinball, one[1]))
    model = _final(order, trust)
    return Fitted(
        cluster=order.cluster,
        made_ms=order.made_ms,
        model=model,
        candidate=msgspec.structs.replace(score, version=model.version),
        current=_score_of(order.current, actual, rows, base),
        previous=_score_of(order.previous, actual, rows, base),
        history=scored(HISTORY, actual, *base),
    )


def known_at(taught: Taught, moment_ms: int, column: int) -> tuple[Array, Array, Array]:
    """(features, log seconds above history's quantile, weights) as known at a moment. A run that still went on then counts three
    times with a third of the weight: at points of what history, given that it had lasted so far, said of its end."""
    done = np.flatnonzero(taught.ended & (taught.end_ms <= moment_ms))
    going = np.flatnonzero((taught.start_ms <= moment_ms) & ((taught.end_ms > moment_ms) | ~taught.ended))
    elapsed = np.log(np.maximum((moment_ms - taught.start_ms[going]) / 1000.0, 1.0))
    middle, spread = taught.history(0)[going], _spread(taught)[going]
    normal = NormalDist()
    survived = np.array([normal.cdf(value) for value in (elapsed - middle) / spread])
    guesses = []
    for share in CENSORED_SHARES:
        reached = np.minimum(survived + (1.0 - survived) * share, 1.0 - 1e-9)
        ends = middle + spread * np.array([normal.inv_cdf(max(value, 1e-9)) for value in reached])
        guesses.append(np.clip(np.maximum(ends, elapsed), 0.0, LOG_S_MAX))
    rows = np.concatenate([taught.rows[done]] + [taught.rows[going]] * len(CENSORED_SHARES))
    bases = np.concatenate([taught.history(column)[done]] + [taught.history(column)[going]] * len(CENSORED_SHARES))
    weights = np.concatenate(
        [np.ones(len(done)), np.full(len(going) * len(CENSORED_SHARES), 1.0 / len(CENSORED_SHARES))]
    )
    return rows, np.concatenate([taught.log_s[done], *guesses]) - bases, weights * batch_weights(rows[:, BURST])


def _spread(taught: Taught) -> Array:
    """Standard deviation of log seconds that history's P50 and P90 amount to."""
    return np.maximum((taught.rows[:, GIVEN + 1] - taught.rows[:, GIVEN]) / P90_DEVIATIONS, SIGMA_MIN)


def _fit(taught: Taught, moment_ms: int, column: int) -> Voices:
    return fit_voices(*known_at(taught, moment_ms, column), column)


def _final(order: Order, trust: float) -> TrainedModel:
    """The same fit on everything."""
    taught = order.taught
    texts = texts_of([_fit(taught, order.made_ms, column) for column in (0, 1)])
    boosters = [packed(text) for text in texts]
    if max(len(booster) for booster in boosters) > BOOSTER_CHARACTERS_MAX:
        raise ValueError(f"a booster of {max(map(len, boosters))} characters can't be published: train smaller trees")
    return TrainedModel(
        version=content_version(texts, trust),
        made_ms=order.made_ms,
        window_from_ms=int(taught.start_ms.min()),
        window_to_ms=order.made_ms,
        runs=int(taught.ended.sum()),
        trust=trust,
        boosters=boosters,
        libraries={"lightgbm": lightgbm.__version__, "numpy": np.__version__},
        **shape(),
    )


def _score_of(model: TrainedModel | None, actual: Array, rows: Array, base: tuple[Array, Array]) -> ModelScore | None:
    """Of a model that exists already; None of one that this version can't use."""
    if model is None:
        return None
    try:
        answering: BoosterModel = model_of(model)
    except ValueError:
        return None
    fixes = answering.trust * np.clip(answering.corrections(rows), -CORRECTION_MAX, CORRECTION_MAX)
    return scored(model.version, actual, base[0] + fixes[:, 0], base[1] + fixes[:, 1])


def step_back(priority: str) -> None:
    """`idle`: run only when nothing else wants the processor, and be preempted at once (Linux); `nice`: a little always."""
    if priority == IDLE and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(NICENESS)


def main(arguments: list[str]) -> int:
    step_back(arguments[0] if arguments else IDLE)
    sys.stdout.buffer.write(write_fitted(fitted(read_order(sys.stdin.buffer.read()))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

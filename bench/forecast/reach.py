"""What is within reach of duration forecasts beyond what the service does, and how much of a missed goal is chance.

`python -m bench.forecast.reach --traces DIR [--only NAME …]` writes bench/results/forecast-reach.json. Owns two measures. *Online
choice*: both voices of the model and all history of the same key, weighed per user by their fading record, in place of half and half.
*Chance*: the runs of a batch (same key, submitted within ten minutes of each other) end alike, so thousands of runs tell no more than
their hundreds of batches; how far coverage may lie from 90 % is reckoned from these. Refuses: what ships. All of it is rolling-origin.
Read next: `__main__.py`, `services/forecaster/shell/evaluation.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.forecast.__main__ import DURATIONS, RESULTS
from services.forecaster.core.calibration import size_class
from services.forecaster.core.duration_scores import NORMAL_99, Forecasts, capped, score, short_jobs
from services.forecaster.core.features import GIVEN, absolute
from services.forecaster.core.rehearsal import calibrated
from services.forecaster.core.rolling import Array, Moment, PastRuns, Replayed, in_order, keyed_history, replay
from services.forecaster.shell.evaluation import TRAINING_RUNS_MIN
from services.forecaster.shell.trace_files import joined, read_jobs
from services.forecaster.shell.training import DAY_S, WARM_UP_DAYS, cuts_of, fit

RESULT = RESULTS / "forecast-reach.json"
RETRAIN_DAYS = 4
HALF_LIFE = 30.0
"""Batches of a user after which its record weighs half."""
SHARPNESS = 8.0
"""Weight = loss to the power of minus this."""
SHARED_TRIALS = 20.0
"""The record of all users weighs like so many batches of one."""
LOSS_MIN = 1e-3
SHARES = np.array([0.5, 0.9])


def main(arguments: list[str]) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.forecast.reach", description=__doc__)
    parser.add_argument("--traces", type=Path, default=Path("traces"), help="folder of the traces")
    parser.add_argument("--only", nargs="*", choices=list(DURATIONS), help="traces to look at; the others are kept")
    options = parser.parse_args(arguments)
    for name in options.only or DURATIONS:
        file = options.traces / DURATIONS[name][0]
        if not file.exists():
            print(f"bench.forecast.reach: {file} is missing; name the folder with --traces.", file=sys.stderr)
            return 2
        before = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
        found = _trace(name, file)
        print(json.dumps({name: found}, indent=1), flush=True)
        RESULT.write_text(json.dumps({**before, name: found}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def _trace(name: str, file: Path) -> dict[str, Any]:
    _, layout, from_row, limit = DURATIONS[name]
    trace = read_jobs(file, layout, limit=limit)
    runs, row_of = joined(None, trace)
    scored = (row_of >= from_row) & runs.ended
    voices = _voices(runs)
    # What may be looked at when something is chosen: after the warm-up, before the scored part.
    early = runs.ended & ~scored & (runs.submit_s >= int(runs.submit_s[0]) + WARM_UP_DAYS * DAY_S)
    half = voices[:, :2].mean(axis=1)
    chosen = online(runs, voices, [runs.team[row] for row in range(len(runs))])
    batches = batch_of(runs)
    groups = [
        ("month " + trace.month[row] if row >= 0 else "", size_class(int(runs.gpus[at])))
        for at, row in enumerate(row_of)
    ]
    found: dict[str, Any] = {}
    losses: list[Array] = []
    for method, said in (("half and half", half), ("online choice", chosen)):
        p50 = said[:, 0]
        both = capped(runs, p50, calibrated(runs, p50, np.maximum(p50, said[:, 1])))
        losses.append(_loss(runs, np.stack(both, axis=1)[:, np.newaxis])[:, 0].sum(axis=1))
        found[method] = {
            "before the scored part": asdict(score(runs, both, early)),
            "scored": asdict(score(runs, both, scored)) | {"short": asdict(short_jobs(runs, both[0], scored))},
            "pinball's deviation by chance": _deviation(losses[-1][scored], batches[scored]),
            "groups": _groups(runs, both, scored, groups, batches),
        }
    more = losses[1] - losses[0]
    found["online choice less half and half"] = {
        "pinball": round(float(more[scored].mean()), 4),
        "deviation by chance": _deviation(more[scored], batches[scored]),
    }
    return found


def _voices(runs: PastRuns) -> Array:
    """(runs, voices, P50 and P90) in log seconds: the model relative to history, in plain log seconds, and all ended runs of the key."""
    cuts = cuts_of(runs, RETRAIN_DAYS)
    replayed = replay(runs, cuts)
    base = np.stack([replayed.base(0), replayed.base(1)], axis=1)
    said = np.stack([base, base, np.stack(keyed_history(runs), axis=1)], axis=1)
    for cut_s, next_s in zip(cuts, [*cuts[1:], np.iinfo(np.int64).max], strict=True):
        rows = np.flatnonzero((runs.submit_s >= cut_s) & (runs.submit_s < next_s))
        if len(rows) and int(((runs.end_s() <= cut_s) & runs.ended).sum()) >= TRAINING_RUNS_MIN:
            said[rows, :2] = _said(runs, replayed, cut_s, rows)
    return np.stack([np.stack(capped(runs, said[:, one, 0], said[:, one, 1]), axis=1) for one in range(3)], axis=1)


def _said(runs: PastRuns, replayed: Replayed, cut_s: int, rows: np.ndarray) -> Array:
    own = replayed.rows[rows]
    result = np.empty((len(rows), 2, 2))
    for column in (0, 1):
        relative, plain = fit(runs, replayed, cut_s, column)
        result[:, 0, column] = own[:, GIVEN + column] + np.asarray(relative.predict(own, num_threads=1))
        result[:, 1, column] = np.asarray(plain.predict(absolute(own), num_threads=1))
    return result


def online(runs: PastRuns, voices: Array, users: list[str]) -> Array:
    """(runs, P50 and P90): P50 the weighted median, P90 the weighted mean of the voices. The n-th run of a batch counts 1 / n."""
    loss = _loss(runs, voices)
    count, result = voices.shape[1], voices.mean(axis=1)
    weight = 1.0 / (1.0 + runs.places())
    everybody, records = np.zeros((count + 1, 2)), {user: np.zeros((count + 1, 2)) for user in users}
    for _, moment, row in in_order(runs):
        record = records[users[row]]
        if moment is Moment.END and runs.ended[row]:
            for one in (everybody, record):
                one *= 0.5 ** (weight[row] / HALF_LIFE)
                one[:count] += weight[row] * loss[row]
                one[count] += weight[row]
        elif moment is Moment.SUBMIT:
            shared = everybody[:count] / max(everybody[count, 0], 1e-9)
            mean = (SHARED_TRIALS * shared + record[:count]) / (SHARED_TRIALS + record[count])
            mean = np.maximum(mean, LOSS_MIN)
            shares = (mean / mean.mean(axis=0)) ** -SHARPNESS
            shares /= shares.sum(axis=0)
            order = np.argsort(voices[row, :, 0], kind="stable")
            own = shares[order, 0]
            result[row, 0] = np.interp(0.5, np.cumsum(own) - 0.5 * own, voices[row, order, 0])
            result[row, 1] = max(result[row, 0], shares[:, 1] @ voices[row, :, 1])
    return result


def _loss(runs: PastRuns, said: Array) -> Array:
    """Pinball of (runs, voices, P50 and P90)."""
    miss = runs.log_s()[:, np.newaxis, np.newaxis] - said
    return np.asarray(np.maximum(SHARES * miss, (SHARES - 1.0) * miss))


def _deviation(values: Array, batches: np.ndarray) -> float:
    """Standard deviation of the mean of values that are alike within a batch."""
    _, place = np.unique(batches, return_inverse=True)
    apart = np.bincount(place, values - values.mean())
    return round(float(np.sqrt((apart**2).sum()) / len(values)), 4)


def batch_of(runs: PastRuns) -> np.ndarray:
    """(runs,): the number of each run's batch."""
    places, subjects = runs.places(), [runs.subject(row) for row in range(len(runs))]
    newest: dict[Any, int] = {}
    result = np.zeros(len(runs), np.int64)
    for row, subject in enumerate(subjects):
        if places[row] == 0 or subject not in newest:
            newest[subject] = row
        result[row] = newest[subject]
    return result


def _groups(
    runs: PastRuns, said: Forecasts, scored: np.ndarray, groups: list[tuple[str, str]], batches: np.ndarray
) -> dict[str, Any]:
    """Coverage of P90 per month and size class, and between what it may lie by chance if P90 is right, at 99 %."""
    covered = (runs.log_s() <= said[1]).astype(np.float64)
    found = {}
    for name in sorted({one for row in np.flatnonzero(scored) for one in groups[row]}):
        member = scored & np.array([name in own for own in groups])
        share = float(covered[member].mean())
        reach = NORMAL_99 * _deviation(covered[member], batches[member])
        found[name] = {
            "runs": int(member.sum()),
            "batches": len(np.unique(batches[member])),
            "coverage": round(share, 4),
            "by chance": [round(0.9 - reach, 4), round(min(1.0, 0.9 + reach), 4)],
            "within chance": abs(share - 0.9) <= reach,
        }
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

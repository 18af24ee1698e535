"""The calibration of past runs, as the service would have had it at each submit.

Owns the order: what was due before a submit counts, then the submit is answered, then its start is a promise. Calibration and queue
are the service's own. Refuses: models (what they said is an argument). Read next: `promises.py`, `rolling.py`.
"""

from __future__ import annotations

import numpy as np

from services.forecaster.core.calibration import Calibration
from services.forecaster.core.promises import Promise, Promises
from services.forecaster.core.rolling import Array, Moment, PastRuns, in_order


def calibrated(runs: PastRuns, log_p50: Array, log_p90: Array) -> Array:
    """log P90 with the offsets that the outcomes known at each submit ask for."""
    calibration = Calibration()
    promises = Promises(calibration)
    result = np.empty(len(runs))
    for time_s, moment, row in in_order(runs):
        now_ms = int(time_s * 1000)
        if moment is Moment.END:
            if runs.ended[row]:
                promises.ended(row, float(runs.duration_s[row]))
            else:
                promises.forget(row)
            continue
        promises.settle(now_ms)
        team, gpus = runs.team[row], int(runs.gpus[row])
        if moment is Moment.SUBMIT:
            result[row] = max(log_p50[row], log_p90[row] + calibration.offset(team, gpus))
        else:
            promises.made(row, Promise(team, gpus, float(result[row])), now_ms)
    return result

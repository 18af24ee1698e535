"""How long one observed window takes from being told to the forecast of the next day, in processor time of one core.

Owns: the load that is told, ten-minute windows of the largest clients of a trace, in the service's own step; and the same told over
again until two weeks are known and more rules are asked, which takes longer. The goal is for these. Read next: `__main__.py`.
"""

from __future__ import annotations

import time

import numpy as np

from bench.forecast.goals import Goal
from services.forecaster.core.demand import DAYS_KEPT, DemandHistory
from services.forecaster.core.demand_rules import DAY_S
from services.forecaster.core.demand_scores import Rates, Series

STEP_S = 900
CLIENTS, WARM_UP_DAYS = 6, 6
DEEP_WARM_UP_DAYS, DEEP_UNTIL_DAYS = DAYS_KEPT, DAYS_KEPT + 5
GPUS_MAX = 1e9
P99_MS_MAX = 5.0


def answer_goals(rates: Rates) -> tuple[list[Goal], dict[str, dict[str, float]]]:
    """P99 against its limit, and the figures."""
    rehearsal = DemandHistory(STEP_S)
    rehearsal.observe(DAY_S * 1000, float(DAY_S), 1.0, 1.0)
    rehearsal.forecast(DAY_S * 1000, 1, 1.0)  # loads the compiled kernel, which a service does before its first event
    largest = np.argsort(-np.nansum(rates.load, axis=1), kind="stable")[:CLIENTS]
    young = [times for client in largest for times in _answers_ms(rates, rates.load[client], WARM_UP_DAYS)]
    until = DEEP_UNTIL_DAYS * rates.day
    longer = [np.resize(rates.load[client], until) for client in largest]
    deep = [times for load in longer for times in _answers_ms(rates, load, DEEP_WARM_UP_DAYS)]
    p99 = round(float(np.quantile(deep, 0.99)), 2)
    goal = Goal(
        measure="demand: a window answered, two weeks known, P99, ms of processor time",
        goal=f"≤ {P99_MS_MAX:g}",
        figure=p99,
        met=p99 <= P99_MS_MAX,
    )
    return [goal], {"two weeks known": _figures(deep), "a week known": _figures(young)}


def _answers_ms(rates: Rates, load: Series, warm_up_days: int) -> list[float]:
    """Each window told and answered, after so many days."""
    history, times_ms = DemandHistory(STEP_S), []
    for index, mean in enumerate(load):
        end_ms = (index + 1) * rates.window_s * 1000
        begin_s = time.process_time()
        if mean == mean:
            history.observe(end_ms, float(rates.window_s), float(mean), 1.0)
        if index >= warm_up_days * rates.day:
            history.forecast(end_ms, DAY_S // STEP_S, GPUS_MAX)
            times_ms.append((time.process_time() - begin_s) * 1e3)
    return times_ms


def _figures(times_ms: list[float]) -> dict[str, float]:
    p50, p99 = (round(float(np.quantile(times_ms, share)), 2) for share in (0.5, 0.99))
    return {"answers": len(times_ms), "p50_ms": p50, "p99_ms": p99, "max_ms": round(max(times_ms), 2)}

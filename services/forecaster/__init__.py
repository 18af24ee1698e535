"""The forecaster: what jobs will take, what applications will need, what work will come. Learns from every end of a run.

In: `jobs` (a forecast at once), `executions` (starts and ends), `demand` (observed load). Out: `forecasts` (durations P50 and
P90 per offered size, demand per step for a day, arriving work), `dead-letters` (what could not be read).

Invariants:
- 1 s ≤ P50 ≤ P90 ≤ time limit, finite, for every offered size; the declared limit only caps, it never informs.
- A running job's forecast lies ahead of now: past its P90 it gets a new, longer one.
- Running jobs count as lower bounds, so the many short finished ones don't hide the long ones still going on.
- State is a fold over the three inputs; nothing else is stored. Memory is bounded by named limits.
- Demand is within 0 … the cluster; a missing window is a gap, not a zero.

Reading order: `core/survival.py` (the arithmetic), `core/history.py` (keys and memory), `core/prior.py` (day one),
`core/features.py`, `core/duration.py` (the combination), `core/calibration.py`; `core/demand.py`, `core/arrivals.py`;
`core/ledger.py`, `core/cluster.py`, `core/handler.py` (events); `core/rolling.py` and `shell/training.py` (how the model came
to be, `python -m services.forecaster.train`), `shell/model.py`, `shell/app.py`; `core/duration_scores.py`,
`core/demand_scores.py`, `shell/trace_files.py` and `shell/evaluation.py` (how good it is on any trace), `shell/explanation.py`.
"""

"""Rolling-origin evaluation of a whole trace: at each submit, and at the beginning of each day, only what was over counts.

Owns: the retraining on the way, and putting scores together. Durations: history as base, the model retrained every few days on
what had ended, calibration as in the service. Demand: the service's forecaster at the trace's own windows. Refuses: printing.
Read next: `trace_files.py`, `core/duration_scores.py`, `core/demand_scores.py`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from services.forecaster.core.calibration import size_class
from services.forecaster.core.demand_scores import (
    OURS,
    RULES,
    DayAhead,
    DemandScore,
    Rates,
    forecast_days,
    rule_days,
    score_days,
)
from services.forecaster.core.duration_scores import (
    Covered,
    Forecasts,
    ShortJobs,
    capped,
    coverage_by,
    score,
    short_jobs,
    simple_rules,
)
from services.forecaster.core.rehearsal import calibrated
from services.forecaster.core.rolling import PastRuns, Score, replay
from services.forecaster.shell.trace_files import JobsFile, joined
from services.forecaster.shell.training import DAY_S, WARM_UP_DAYS, TraceError, fit, fixes_of

TRAINING_RUNS_MIN = 1_000
"""Ended runs below which history answers alone: fewer teach a tree nothing."""
LARGE_CLIENTS = 12
"""Clients listed one by one; the others count in the sum."""

Tell = Callable[[str, float], None]
"""What is being done, and the share of it that is done."""


@dataclass(frozen=True, slots=True)
class DurationReport:
    """`methods`: scores of ours and of the simple rules. `predictions`: (row in the file, P50, P90) in file order.

    `dirty_rows`: of the trace, with broken cells: forecast, not scored; what is wrong with the first.
    """

    rows: int
    methods: dict[str, Score]
    short: dict[str, ShortJobs]
    by_month: list[Covered]
    by_size: list[Covered]
    pinball_by_month: dict[str, dict[str, float]]
    predictions: list[tuple[int, float, float]]
    dirty_rows: int = 0
    dirty_first: str = ""


@dataclass(frozen=True, slots=True)
class DemandReport:
    """`total`: all clients together, per method; `clients`: the largest ones; `days`: our forecasts."""

    total: dict[str, DemandScore]
    clients: dict[str, dict[str, DemandScore]]
    days: list[DayAhead] = field(repr=False)


@dataclass(frozen=True, slots=True)
class DurationChoices:
    """`from_row`: the first row of the trace that is forecast. `trust`: how much of the model's correction counts."""

    from_row: int = 0
    retrain_days: int = 1
    trust: float = 1.0


def evaluate_durations(
    trace: JobsFile, history: JobsFile | None, choices: DurationChoices, tell: Tell
) -> DurationReport:
    """Forecast every job of the trace at its submit, and score what came."""
    if choices.from_row >= len(trace):
        raise TraceError(f"--from-row {choices.from_row}: the trace has only {len(trace)} rows.")
    runs, row_of = joined(history, trace)
    wanted = row_of >= choices.from_row
    ours = _forecasts(runs, int(runs.submit_s[wanted].min()), choices, tell)
    chosen = wanted & runs.ended
    if not chosen.any():
        raise TraceError("No job of the trace has ended, so nothing can be scored.")
    tell("simple rules", 0.0)
    methods = {OURS: ours, **{name: capped(runs, *rule) for name, rule in simple_rules(runs).items()}}
    tell("simple rules", 1.0)
    months = [trace.month[row] if row >= 0 else "" for row in row_of]
    sizes = [size_class(int(gpus)) for gpus in runs.gpus]
    by_month = coverage_by(runs, ours[1], chosen, months)
    member = {one.name: chosen & (np.array(months) == one.name) for one in by_month}
    places = np.flatnonzero(wanted)
    in_file_order = places[np.argsort(row_of[places], kind="stable")]
    return DurationReport(
        rows=len(places),
        methods={name: score(runs, said, chosen) for name, said in methods.items()},
        short={name: short_jobs(runs, said[0], chosen) for name, said in methods.items()},
        by_month=by_month,
        by_size=sorted(coverage_by(runs, ours[1], chosen, sizes), key=lambda one: (len(one.name), one.name)),
        pinball_by_month={
            name: {month: score(runs, said, rows).pinball for month, rows in member.items()}
            for name, said in methods.items()
        },
        predictions=[
            (int(row_of[place]), float(np.exp(ours[0][place])), float(np.exp(ours[1][place])))
            for place in in_file_order
        ],
        dirty_rows=len(trace.dirty),
        dirty_first=trace.dirty[0] if trace.dirty else "",
    )


def _forecasts(runs: PastRuns, first_s: int, choices: DurationChoices, tell: Tell) -> Forecasts:
    """log P50 and log P90 of every run; runs before `first_s` are forecast by history alone."""
    begin_s = max(first_s, int(runs.submit_s[0]) + WARM_UP_DAYS * DAY_S)
    cuts = tuple(range(begin_s, int(runs.submit_s[-1]) + 1, choices.retrain_days * DAY_S))
    replayed = replay(runs, cuts, lambda share: tell("replaying", share))
    log_p50, log_p90 = replayed.base(0).copy(), replayed.base(1).copy()
    for number, cut_s in enumerate(cuts):
        tell("retraining", number / len(cuts))
        next_s = cuts[number + 1] if number + 1 < len(cuts) else np.iinfo(np.int64).max
        rows = np.flatnonzero((runs.submit_s >= cut_s) & (runs.submit_s < next_s))
        if len(rows) and int(((runs.end_s() <= cut_s) & runs.ended).sum()) >= TRAINING_RUNS_MIN:
            fixes = fixes_of([fit(runs, replayed, cut_s, column) for column in (0, 1)], replayed.rows[rows])
            log_p50[rows] += choices.trust * fixes[:, 0]
            log_p90[rows] += choices.trust * fixes[:, 1]
    return capped(runs, log_p50, calibrated(runs, log_p50, log_p90))


def evaluate_demand(rates: Rates, warm_up_days: int, tell: Tell, *, listed: int = LARGE_CLIENTS) -> DemandReport:
    """Forecast every client at the beginning of each day, 24 h ahead, and score what came; `listed`: clients scored one by one."""
    origins = rates.origins(warm_up_days)
    if not origins or origins[0] == 0:
        known = rates.load.shape[1] / rates.day
        raise TraceError(
            f"There are {known:.1f} days of load, and the first forecast comes after {warm_up_days} (--warm-up-days):"
            " name what came before with --history, or warm up for less."
        )
    done, count = 0, len(rates.clients) * len(origins)

    def step() -> None:
        nonlocal done
        done += 1
        tell("forecasting", done / count)

    per_method: dict[str, list[list[DayAhead]]] = {OURS: [], **{rule: [] for rule in RULES}}
    for client in range(len(rates.clients)):
        per_method[OURS].append(forecast_days(rates, client, origins, step))
        for rule in RULES:
            per_method[rule].append(rule_days(rates, client, origins, rule))
    load = np.nansum(rates.load[:, origins[0] :], axis=1)
    largest = [int(client) for client in np.argsort(-load, kind="stable")[:listed] if load[client] > 0]
    return DemandReport(
        total={name: score_days(rates, _flat(clients)) for name, clients in per_method.items()},
        clients={
            rates.clients[client]: {name: score_days(rates, clients[client]) for name, clients in per_method.items()}
            for client in largest
        },
        days=_flat(per_method[OURS]),
    )


def _flat(clients: Sequence[Sequence[DayAhead]]) -> list[DayAhead]:
    return [day for client in clients for day in client]


def write_durations(report: DurationReport, path: Path) -> None:
    """`row,p50_s,p90_s`: one line per forecast job, in the file's order."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("row", "p50_s", "p90_s"))
        out.writerows((row, f"{p50_s:.1f}", f"{p90_s:.1f}") for row, p50_s, p90_s in report.predictions)


def write_demand(report: DemandReport, rates: Rates, path: Path) -> None:
    """`client,origin_s,window_start_s,p50,p90`: one line per client, origin and window."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("client", "origin_s", "window_start_s", "p50", "p90"))
        for day in report.days:
            origin_s = rates.start_s + day.origin * rates.window_s
            for place, (p50, p90) in enumerate(zip(day.p50, day.p90, strict=True)):
                start_s = origin_s + place * rates.window_s
                out.writerow((rates.clients[day.client], origin_s, start_s, f"{p50:.5g}", f"{p90:.5g}"))

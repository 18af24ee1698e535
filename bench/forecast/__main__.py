"""`python -m bench.forecast --traces DIR`: forecast recorded traces, score them beside every rule, write bench/results/forecast.json.

`DIR` holds the traces under the names in `DURATIONS` and `DEMAND`; they are not part of the project. `--only NAME …` runs a part
and keeps the results of the others. Owns the protocol (which rows are scored, how often the model is trained, which clients are
large); the arithmetic is the forecaster's own. statsforecast's methods are run once per client, the largest first, for at most
`--peers-budget-s` a trace and call, and kept in forecast-peers.json beside the results. Read next: `goals.py`, `peers.py`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from bench.forecast.answering import answer_goals
from bench.forecast.goals import Goal, demand_goals, duration_goals, hindsight, regrets
from bench.forecast.novelty import by_novelty
from bench.forecast.peers import PEERS, PeerCache, peer_scores
from bench.pipeline.facts import Facts, facts
from services.forecaster.core.demand_scores import Rates
from services.forecaster.shell.evaluation import (
    DurationChoices,
    DurationReport,
    evaluate_demand,
    evaluate_durations,
)
from services.forecaster.shell.trace_files import joined, read_jobs, read_rates

RESULTS = Path(__file__).resolve().parents[1] / "results"
RESULT, PEER_SCORES = RESULTS / "forecast.json", RESULTS / "forecast-peers.json"
DURATIONS = {
    "philly": ("philly/philly_jobs.csv.gz", "philly", 18_324, 60_324),
    "nasa": ("hpc_user_logs/nasa_ipsc_1993.csv.gz", "hpc", 5_471, None),
    "metacentrum": ("hpc_user_logs/metacentrum_wagap_2013.csv.gz", "hpc", 5_369, None),
}
"""File, layout, first scored row (the last 70 %), rows read."""
DEMAND = {
    "m-small": ("servegen2025/rate_by_client_m-small.csv.gz", 6),
    "m-mid": ("servegen2025/rate_by_client_m-mid.csv.gz", 6),
    "m-large": ("servegen2025/rate_by_client_m-large.csv.gz", 6),
    "spot": ("spot2026/hourly_demand.csv.gz", 14),
    "spot-total": ("spot2026/hourly_demand.csv.gz", 14),
}
"""File, days before the first forecast. Spot: GPUs of each model as a client, and, apart from these, of all together."""
LARGEST = 12
"""Clients looked at one by one."""
ORACLE_DAYS = 7
ANSWERING = "demand-answering"


class Part(Struct, frozen=True, kw_only=True):
    """One trace. `bounds`: what hindsight could do, per key and week, or per client; `largest`: clients one by one."""

    goals: list[Goal]
    scores: dict[str, Any]
    groups: dict[str, Any]
    bounds: dict[str, Any] = {}
    largest: dict[str, Any] = {}


class Report(Struct, frozen=True, kw_only=True):
    """What is written. `facts`: of the machine of the newest part."""

    benchmark: str
    facts: Facts
    parts: dict[str, Part]


def main(arguments: list[str]) -> int:
    """Measure, print, write."""
    options = _parser().parse_args(arguments)

    def tell(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    for name in options.only or [*DURATIONS, *DEMAND, ANSWERING]:
        file = options.traces / (DURATIONS[name] if name in DURATIONS else DEMAND.get(name, DEMAND["m-small"]))[0]
        if not file.exists():
            print(f"bench.forecast: {file} is missing; name the folder of the traces with --traces.", file=sys.stderr)
            return 2
        tell(f"{name} …")
        if name in DURATIONS:
            part = _durations(name, file, options.retrain_days)
        elif name in DEMAND:
            part = _demand(name, file, options.peers, options.peers_budget_s, tell)
        else:
            goals, times = answer_goals(read_rates(file, None))
            part = Part(goals=goals, scores=times, groups={})
        for goal in part.goals:
            print(f"{'met ' if goal.met else 'MISS'} {goal.measure}: {goal.figure} (goal {goal.goal})", flush=True)
        # Read again: another part may have been measured meanwhile.
        before = msgspec.json.decode(RESULT.read_bytes(), type=Report).parts if RESULT.exists() else {}
        report = Report(benchmark="forecast.v1", facts=facts(), parts={**before, name: part})
        RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return 0


def _durations(name: str, file: Path, retrain_days: int) -> Part:
    _, layout, from_row, limit = DURATIONS[name]
    trace = read_jobs(file, layout, limit=limit)
    choices = DurationChoices(from_row=from_row, retrain_days=retrain_days)
    report = evaluate_durations(trace, None, choices, lambda what, share: None)
    runs, row_of = joined(None, trace)
    chosen = (row_of >= from_row) & runs.ended
    return Part(
        goals=duration_goals(name, report),
        scores={rule: asdict(one) | {"short": asdict(report.short[rule])} for rule, one in report.methods.items()},
        groups={
            "months": [asdict(one) for one in report.by_month],
            "sizes": [asdict(one) for one in report.by_size],
            "pinball_by_month": report.pinball_by_month,
            "by_what_had_ended": by_novelty(runs, *_in_runs(row_of, report), chosen),
        },
        bounds={
            "best constant per key, in hindsight": hindsight(runs, chosen, None),
            "best constant per key and week, in hindsight": hindsight(runs, chosen, ORACLE_DAYS),
        },
    )


def _in_runs(row_of: np.ndarray, report: DurationReport) -> tuple[np.ndarray, np.ndarray]:
    """log P50 and P90 of the forecast rows in the order of the runs."""
    said = {row: (p50_s, p90_s) for row, p50_s, p90_s in report.predictions}
    both = np.log(np.array([said.get(int(row), (1.0, 1.0)) for row in row_of]))
    return both[:, 0], both[:, 1]


def _demand(name: str, file: Path, peers: list[str], budget_s: float, tell: Callable[[str], None]) -> Part:
    warm_up_days = DEMAND[name][1]
    rates = _spot(file, total=name == "spot-total") if name.startswith("spot") else read_rates(file, None)
    report = evaluate_demand(rates, warm_up_days, lambda what, share: None, listed=len(rates.clients))
    by_load = [rates.clients.index(client) for client in report.clients]
    beside = peer_scores(
        name, rates, by_load, rates.origins(warm_up_days), peers, PeerCache(PEER_SCORES), budget_s, tell
    )
    clients = {client: {**scores, **beside.get(client, {})} for client, scores in report.clients.items()}
    return Part(
        goals=demand_goals(name, report.total, clients, peers, LARGEST),
        scores={rule: asdict(one) for rule, one in report.total.items()},
        groups={},
        bounds={"loss over the best other method in hindsight": regrets(clients, LARGEST)},
        largest={
            client: {rule: asdict(one) for rule, one in scores.items()}
            for client, scores in list(clients.items())[:LARGEST]
        },
    )


def _spot(file: Path, *, total: bool) -> Rates:
    """GPUs in use per hour: of each model, or of all."""
    with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    clients = [name for name in rows[0] if name.startswith("gpus_active_") != total and name.startswith("gpus_active")]
    load = np.array([[float(row[client]) for row in rows] for client in clients])
    return Rates(3_600, 0, tuple(clients), load, 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.forecast", description=__doc__)
    parser.add_argument("--traces", type=Path, default=Path("traces"), help="folder of the traces")
    parser.add_argument(
        "--only", nargs="*", choices=[*DURATIONS, *DEMAND, ANSWERING], help="parts to run; the others are kept"
    )
    parser.add_argument("--retrain-days", type=int, default=4, help="days between two trainings of the duration model")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS, help="methods of statsforecast")
    parser.add_argument("--peers-budget-s", type=float, default=120.0, help="seconds for those of a trace not run yet")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

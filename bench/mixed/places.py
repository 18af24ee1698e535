"""`python -m bench.mixed.places`: days of jobs on nodes of mixed sizes, with the last look at places and without it.

The same arrivals twice: jobs that start go where they leave most blocks of the sizes in demand (`kernels/settle.py`), or where they were
found first. Single days are chaotic, so what counts is the mean over days beside its standard error. Writes bench/results/places.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

from bench.allocator.__main__ import machine, versions
from bench.mixed.cluster import Played, Work, play, unlimited
from services.allocator.core import heuristic
from services.allocator.core.config import Policy
from services.allocator.core.kernels.search import solve
from services.replay.simulate import DayOptions, day_of

RESULT = Path(__file__).parents[1] / "results" / "places.json"
POOL = "mixed"
NODES = (8, 2, 4, 6, 8, 4, 8, 2) * 2
LARGE = 8
POLICY = Policy(iterations=16)
HOUR_MS = 3_600_000


def main() -> int:
    """Parse options, run, report. 1 if a plan was illegal."""
    parser = argparse.ArgumentParser(prog="python -m bench.mixed.places", description=__doc__)
    parser.add_argument("--seeds", default="2,3,4,5,6,7,8,9", help="days of the bundled trace (default: 2 to 9)")
    parser.add_argument(
        "--sized-for", default="48,64", help=f"GPUs the arrivals are sized for, of {sum(NODES)} (default: 48,64)"
    )
    options = parser.parse_args()
    loads: list[dict[str, Any]] = []
    for gpus in map(int, options.sized_for.split(",")):
        days = [_day(int(seed), gpus) for seed in options.seeds.split(",")]
        loads.append({"sized_for_gpus": gpus, "days": days, "difference": _differences(days)})
    report = {
        "what": "waits in hours of the same jobs, with the last look at places and without it",
        "difference": "with − without: mean and standard error",
        "machine": machine(),
        "versions": versions(),
        "nodes": list(NODES),
        "loads": loads,
    }
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    for load in loads:
        print(f"arrivals sized for {load['sized_for_gpus']} of {sum(NODES)} GPUs, {len(load['days'])} days:")
        for name, found in load["difference"].items():
            print(
                f"  {name:26} {found['without']:8.2f} → {found['with']:8.2f}  ({found['mean']:+.2f} ± {found['error']:.2f})"
            )
    return (
        1 if any(day[how]["violations"] for load in loads for day in load["days"] for how in ("with", "without")) else 0
    )


def _day(seed: int, gpus: int) -> dict[str, Any]:
    day = day_of(DayOptions(seed=seed, gpus=gpus, hours=24.0))
    one = {POOL: 1.0}
    work = [Work(job.job_id, job.arrival_ms, unlimited(job.spec), job.run_s, (POOL,), one, one) for job in day.jobs]
    looked = play(work, {POOL: NODES}, POLICY, time.process_time)
    with patch.object(heuristic, "solve", partial(solve, settles=False)):
        first_found = play(work, {POOL: NODES}, POLICY, time.process_time)
    print(f"{day.name}, sized for {gpus}: done", file=sys.stderr, flush=True)
    return {
        "day": day.name,
        "seed": seed,
        "jobs": len(work),
        "with": _figures(looked, work),
        "without": _figures(first_found, work),
    }


def _figures(played: Played, work: list[Work]) -> dict[str, float]:
    waits = {job.job_id: (played.runs[job.job_id].start_ms - job.at_ms) / HOUR_MS for job in work}
    large = [waits[job.job_id] for job in work if min(job.run_s) >= LARGE]
    return {
        "violations": len(played.violations),
        "wait_h_mean": round(mean(waits.values()), 3),
        "wait_h_mean_of_large": round(mean(large), 3) if large else 0.0,
        "priority_times_wait_h": round(sum(job.spec.priority * waits[job.job_id] for job in work), 1),
    }


def _differences(days: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found = {}
    for name in ("wait_h_mean", "wait_h_mean_of_large", "priority_times_wait_h"):
        pairs = [(day["with"][name], day["without"][name]) for day in days]
        apart = [one - other for one, other in pairs]
        found[name] = {
            "with": round(mean(one for one, _ in pairs), 3),
            "without": round(mean(other for _, other in pairs), 3),
            "mean": round(mean(apart), 3),
            "error": round(stdev(apart) / len(apart) ** 0.5, 3) if len(apart) > 1 else 0.0,
        }
    return found


if __name__ == "__main__":
    raise SystemExit(main())

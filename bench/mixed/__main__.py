"""`python -m bench.mixed`: a Philly day on two pools, V100 and P100 GPUs with Gavel's measured speeds; who chooses the pool?

The same jobs three times: every job submitted to the faster pool alone, every job to one pool so that both are asked for what they can
give, and every job to both with its speeds, so that the planner chooses pool and size together. Writes bench/results/mixed.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any

from bench.allocator.__main__ import machine, versions
from bench.mixed.cluster import Played, Run, Work, play, unlimited
from services.allocator.core.config import Policy
from services.intake.core.speeds import ANY_FAMILY
from services.intake.shell.measured import shipped_speeds
from services.replay.simulate import DayOptions, day_of

RESULT = Path(__file__).parents[1] / "results" / "mixed.json"
FAST, SLOW = "v100", "p100"
HOURS = 24.0
POLICY = Policy(iterations=16)


def main() -> int:
    """Parse options, run, report."""
    parser = argparse.ArgumentParser(prog="python -m bench.mixed", description=__doc__)
    parser.add_argument("--seeds", default="2,3,4,5,6,7,8,9,10,11", help="days of the bundled trace (default: 2 to 11)")
    parser.add_argument("--gpus", type=int, default=8, help="of each pool, in nodes of 8 (default: 8)")
    options = parser.parse_args()
    days = [_day(int(seed), options.gpus) for seed in options.seeds.split(",")]
    report = {
        "what": "one day's jobs on two pools; `chosen`: pool and size chosen together by the planner",
        "machine": machine(),
        "versions": versions(),
        "pools": dict.fromkeys((FAST, SLOW), f"{options.gpus} GPUs in nodes of 8"),
        "days": days,
    }
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    for day in days:
        print(f"{day['day']}: {day['jobs']} jobs, load {day['load']:.2f}")
        for name, found in day["policies"].items():
            print(
                f"  {name:13} submitted to end {found['turnaround_h_mean']:5.2f} h, value done in the day"
                f" {found['value_done_in_day_share']:.3f}, a decision {found['decision_cpu_ms_median']:.1f} ms"
            )
    return 0 if not any(found["violations"] for day in days for found in day["policies"].values()) else 1


def _day(seed: int, gpus: int) -> dict[str, Any]:
    day = day_of(DayOptions(seed=seed, gpus=2 * gpus, hours=HOURS))
    families = shipped_speeds().families
    names, dice = [name for name in sorted(families) if name != ANY_FAMILY], Random(f"{seed}/families")
    jobs = []
    for job in day.jobs:
        speeds = {pool: families[family].speeds[pool] for family in [dice.choice(names)] for pool in (FAST, SLOW)}
        spec = unlimited(job.spec)
        jobs.append(Work(job.job_id, job.arrival_ms, spec, job.run_s, (FAST, SLOW), speeds, speeds))
    worth = {job.job_id: job.spec.priority * min(size * s for size, s in job.run_s.items()) for job in jobs}
    pools = {pool: [8] * (gpus // 8) for pool in (FAST, SLOW)}
    offered = sum(min(size * s for size, s in job.run_s.items()) / max(job.speeds.values()) for job in jobs)
    variants = {
        "fastest_pool": [replace(job, pools=(max(job.speeds, key=lambda pool: job.speeds[pool]),)) for job in jobs],
        "spread_out": _spread(jobs),
        "chosen": [replace(job, pools=_preferred_first(job)) for job in jobs],
    }
    end_ms = day.start_ms + round(HOURS * 3_600_000)
    policies = {}
    for name, work in variants.items():
        policies[name] = _figures(play(work, pools, POLICY, time.process_time), work, worth, end_ms, pools)
        print(f"{day.name} {name} done", file=sys.stderr, flush=True)
    base = policies["spread_out"]["turnaround_h_mean"]
    for found in policies.values():
        found["turnaround_ratio_to_spread_out"] = round(found["turnaround_h_mean"] / base, 3)
    return {
        "day": day.name,
        "seed": seed,
        "jobs": len(jobs),
        "load": round(offered / (2 * gpus * HOURS * 3600), 3),
        "policies": policies,
    }


def _preferred_first(job: Work) -> tuple[str, ...]:
    return tuple(sorted(job.pools, key=lambda pool: -job.speeds[pool]))


def _spread(jobs: list[Work]) -> list[Work]:
    """Each job to the pool that has been asked for less so far, by what its work takes there: people who look before they submit."""
    asked, found = dict.fromkeys((FAST, SLOW), 0.0), []
    for job in jobs:
        takes = {pool: min(size * s for size, s in job.run_s.items()) / job.speeds[pool] for pool in (FAST, SLOW)}
        pool = min(takes, key=lambda name: (asked[name] + takes[name], name))
        asked[pool] += takes[pool]
        found.append(replace(job, pools=(pool,)))
    return found


def _figures(
    played: Played, work: list[Work], worth: Mapping[str, float], end_ms: int, pools: Mapping[str, list[int]]
) -> dict[str, Any]:
    runs = played.runs
    waits = [(runs[job.job_id].start_ms - job.at_ms) / 3_600_000 for job in work if job.job_id in runs]
    turns = [(runs[job.job_id].end_ms - job.at_ms) / 3_600_000 for job in work if job.job_id in runs]
    in_day = [job.job_id for job in work if job.job_id in runs and runs[job.job_id].end_ms <= end_ms]
    held = dict.fromkeys(pools, 0.0)
    for run in runs.values():
        held[run.pool] += run.gpus * max(0, min(run.end_ms, end_ms) - min(run.start_ms, end_ms)) / 3_600_000
    done = {name: _done(run, end_ms) for name, run in runs.items()}
    times = sorted(played.decisions_ms)
    return {
        "started": len(runs),
        "violations": len(played.violations),
        "turnaround_h_mean": round(mean(turns), 3),
        "turnaround_h_median": round(median(turns), 3),
        "turnaround_h_p90": round(sorted(turns)[len(turns) * 9 // 10], 3),
        "wait_h_mean": round(mean(waits), 3),
        "completed_in_day": len(in_day),
        "value_completed_in_day_share": round(sum(worth[name] for name in in_day) / sum(worth.values()), 4),
        "value_done_in_day_share": round(sum(worth[name] * done[name] for name in done) / sum(worth.values()), 4),
        "held_share": {pool: round(held[pool] / (sum(nodes) * HOURS), 3) for pool, nodes in pools.items()},
        "jobs_by_pool": {pool: sum(run.pool == pool for run in runs.values()) for pool in pools},
        "decisions": len(times),
        "decision_cpu_ms_median": round(median(times), 2),
        "decision_cpu_ms_p99": round(times[len(times) * 99 // 100], 2),
    }


def _done(run: Run, end_ms: int) -> float:
    """The part of the job that is done by then."""
    return min(1.0, max(0, end_ms - run.start_ms) / max(1, run.end_ms - run.start_ms))


if __name__ == "__main__":
    raise SystemExit(main())

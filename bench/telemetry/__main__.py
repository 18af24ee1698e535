"""`python -m bench.telemetry`: 10,000 GPUs for a minute and a half on this machine; writes bench/results/telemetry.json."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import msgspec

from bench.pipeline.facts import Facts, facts
from bench.telemetry.measure import Figures, measure

RESULT = Path(__file__).parents[1] / "results" / "telemetry.json"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`facts` as of the start."""

    facts: Facts
    figures: Figures


def main() -> int:
    """0 if the lag did not grow."""
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_250, help="nodes of 8 GPUs")
    parser.add_argument("--period-s", type=float, default=10.0)
    parser.add_argument("--steady-s", type=float, default=80.0)
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    about = facts()
    figures = asyncio.run(measure(asked.nodes, asked.period_s, asked.steady_s, lambda text: print(text, flush=True)))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_bytes(
        msgspec.json.format(msgspec.json.encode(Result(facts=about, figures=figures)), indent=2) + b"\n"
    )
    print(f"{figures.burst_samples_per_s:g} samples/s in a burst, {figures.headroom:g} times the pace; {asked.out}")
    grown = figures.lag_second_half_records > 2 * max(figures.lag_first_half_records, round(figures.pace_samples_per_s))
    return 1 if grown else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m bench.forecaster speed|accuracy`: measure the forecaster alone on this machine. `--help` tells the rest."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.forecaster.accuracy import AccuracyResult, measure_accuracy
from bench.forecaster.speed import SpeedResult, measure_speed
from bench.pipeline.facts import Facts, facts

RESULTS = Path(__file__).resolve().parents[1] / "results"


class Report(Struct, frozen=True, kw_only=True):
    """What is written."""

    benchmark: str
    facts: Facts
    speed: SpeedResult | None = None
    accuracy: AccuracyResult | None = None


def main(arguments: list[str]) -> int:
    """Measure, print, write."""
    options = _parser().parse_args(arguments)
    about = facts()

    def tell(sentence: str) -> None:
        print(f"{sentence} …", file=sys.stderr, flush=True)

    if options.what == "speed":
        report = Report(benchmark="forecaster-speed.v1", facts=about, speed=measure_speed(options.jobs or 2_000, tell))
    else:
        found = measure_accuracy(options.jobs or 3_000, options.seed, options.requests, tell)
        report = Report(benchmark="forecaster-generated.v1", facts=about, accuracy=found)
    data = msgspec.json.format(msgspec.json.encode(report), indent=1)
    path = options.results / f"{report.benchmark.removesuffix('.v1')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data + b"\n")
    print(data.decode())
    print(f"written to {path}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.forecaster", description=__doc__)
    parser.add_argument("what", choices=("speed", "accuracy"))
    parser.add_argument("--jobs", type=int, default=None, help="jobs (2,000 for speed, 3,000 for accuracy)")
    parser.add_argument("--seed", type=int, default=1, help="of the generated history")
    parser.add_argument(
        "--requests", type=Path, default=None, help="accuracy: a log of image requests, GenTD26's columns, .csv.gz"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

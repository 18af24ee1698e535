"""`python -m bench.pipeline latency|throughput`: measure the whole pipeline on this machine. `--help` tells the rest."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console

from bench.pipeline.latency import LatencyOptions, measure_latency
from bench.pipeline.report import show_latency, show_throughput, write
from bench.pipeline.throughput import ThroughputOptions, measure_throughput
from deploy.local.background import stop_signals_interrupt
from services.allocator.shell.warmup import use_kernel_cache, warm_up

WIDTH = 140
"""Of the tables, also where the output is a file."""
RESULTS = Path(__file__).resolve().parents[1] / "results"


def main(arguments: list[str]) -> int:
    """Measure, print, write; exit code 1 if the stack could not be measured."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=options.json, soft_wrap=True, width=WIDTH)
    run_dir = options.run_dir or Path(tempfile.mkdtemp(prefix="gpugrid-bench-"))
    use_kernel_cache()
    console.print("loading the planner's kernels (compiled once, a minute or two) …", style="dim")
    warm_up()

    def tell(sentence: str) -> None:
        console.print(sentence, style="dim", highlight=False)

    try:
        with stop_signals_interrupt():
            if options.what == "latency":
                result = measure_latency(_latency(options), run_dir, tell)
                show_latency(result, console)
            else:
                result = measure_throughput(_throughput(options), run_dir, tell)
                show_throughput(result, console)
    except KeyboardInterrupt:
        console.print("Stopped; nothing is left running.")
        return 130
    except (RuntimeError, TimeoutError, OSError) as error:
        console.print(f"bench: {error}", style="bold red", highlight=False)
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(run_dir, ignore_errors=True)
    path = write(result, options.results)
    if options.json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    console.print(f"written to {path}", style="dim", highlight=False)
    return 0


def _latency(options: argparse.Namespace) -> LatencyOptions:
    return LatencyOptions(
        jobs=options.jobs,
        rate=options.rate,
        gpus=options.gpus,
        blocks=options.blocks,
        poisson=not options.even,
        seed=options.seed,
    )


def _throughput(options: argparse.Namespace) -> ThroughputOptions:
    return ThroughputOptions(
        rate=options.rate, seconds=options.seconds, gpus=options.gpus, run_s=options.run_s, seed=options.seed
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pipeline", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--gpus", type=int, default=64, help="size of the pool, nodes of 8")
    shared.add_argument("--seed", type=int, default=1, help="of the arrivals")
    shared.add_argument("--run-dir", type=Path, help="where the stack lives; a temporary folder otherwise")
    shared.add_argument("--keep", action="store_true", help="leave the run folder with its logs")
    shared.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    shared.add_argument("--json", action="store_true", help="the result on standard output, the rest on standard error")
    kinds = parser.add_subparsers(dest="what", required=True)
    with_defaults = {"parents": [shared], "formatter_class": argparse.ArgumentDefaultsHelpFormatter}
    latency = kinds.add_parser("latency", help="submit → decision beside a chain that does nothing", **with_defaults)
    latency.add_argument("--jobs", type=int, default=2_000, help="jobs each way")
    latency.add_argument("--rate", type=float, default=20.0, help="jobs per second")
    latency.add_argument("--blocks", type=int, default=8, help="turns between pipeline, chain and echo")
    latency.add_argument("--even", action="store_true", help="evenly spaced arrivals instead of Poisson")
    throughput = kinds.add_parser("throughput", help="lag over time at a steady rate", **with_defaults)
    throughput.add_argument("--rate", type=float, default=300.0, help="job events per second")
    throughput.add_argument("--seconds", type=float, default=60.0, help="how long")
    throughput.add_argument("--run-s", type=float, default=3_600.0, help="seconds each job runs")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

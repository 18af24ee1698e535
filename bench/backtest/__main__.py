"""`python -m bench.backtest`: three traces at the load where FIFO's P90 wait exceeds two hours; two of them again where the pool is short.

Writes bench/results/backtest.json and one SVG per trace. Reads nothing but the bundled extracts. Some five minutes of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from bench.allocator.__main__ import machine, versions
from services.allocator.core.config import Policy
from services.replay.backtest import Backtest, BacktestOptions, run_backtest, settled, span_of
from services.replay.core.beliefs import Level
from services.replay.shell.backtest_picture import backtest_svg

RESULTS = Path(__file__).parents[1] / "results"
BUSY_LOAD = 0.9
"""The second load: the pool is short of GPUs, FIFO keeps people waiting for half a day and more. Not for openb: four thousand
decisions over a queue of hundreds would take as long as all the rest."""
BUSY = ("philly", "lingjun")
DAYS = {"philly": 1, "openb": 1, "lingjun": 2}
GPUS = {"openb": 32}
"""Openb's jobs are small and many: on half the pool they make a day's worth of decisions, too."""


def main() -> int:
    """Parse options, run, report."""
    parser = argparse.ArgumentParser(prog="python -m bench.backtest", description=__doc__)
    parser.add_argument("--traces", default=",".join(DAYS), help="which traces; others in the file stay (default: all)")
    parser.add_argument(
        "--parts", default="queueing,busy,peer", help="which of the two loads and the peer (default: all)"
    )
    parser.add_argument("--workers", type=int, default=0, help="runs at a time (default: one per core)")
    parser.add_argument("--out", type=Path, default=RESULTS / "backtest.json")
    options = parser.parse_args()
    begun_s = time.perf_counter()
    report: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "load_at_start": os.getloadavg()[0],
        "policy": {"spare_share": Policy().spare_share, "hold_quantile": Policy().hold_quantile},
        "queueing": {},
        "busy": {},
    }
    for name in [word for word in options.traces.split(",") if word]:
        base = settled(BacktestOptions(trace=name, days=DAYS[name], gpus=GPUS.get(name)))
        if "queueing" in options.parts:
            found = _run(base, options.workers)
            report["queueing"][name] = _document(found)
            (options.out.parent / f"backtest-{name}.svg").write_text(backtest_svg(found), encoding="utf-8")
        if name in BUSY and "busy" in options.parts:
            busy = replace(base, load=BUSY_LOAD, days=1, levels=(Level.TRUE, Level.FORECAST))
            report["busy"][name] = _document(_run(busy, options.workers))
    if "peer" in options.parts and find_spec("accasim") is None:
        print("peer: left out, AccaSim isn't installed (it is in the dependency group peers)", file=sys.stderr)
    elif "peer" in options.parts:
        from bench.backtest.peer import compare_with_peer

        report["peer"] = compare_with_peer(span_of(settled(BacktestOptions(load=1.0))).day)
    report["took_s"] = round(time.perf_counter() - begun_s, 1)
    options.out.write_text(json.dumps(_with_earlier(report, options.out), indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten: {options.out}, in {report['took_s']:.0f} s")
    return 0


def _run(options: BacktestOptions, workers: int) -> Backtest:
    from rich.console import Console

    from services.replay.shell.backtest_view import backtest_tables

    def done(name: str, finished: int, of: int) -> None:
        print(f"{options.trace} at load {options.load:g}: {finished} of {of}, {name}", file=sys.stderr, flush=True)

    found = run_backtest(options, workers=workers, done=done)
    Console(width=150).print(backtest_tables(found))
    return found


def _with_earlier(report: dict[str, Any], file: Path) -> dict[str, Any]:
    """The report, with what an earlier one in `file` has of traces and parts that were not run this time."""
    if not file.is_file():
        return report
    earlier = json.loads(file.read_text(encoding="utf-8"))
    for part in ("queueing", "busy"):
        report[part] = earlier.get(part, {}) | report[part]
    return earlier | report


def _document(found: Backtest) -> Any:
    """Without the series, which are in the picture."""
    document = msgspec.to_builtins(found)
    for one in document["findings"]:
        one["schedulability"] = {"share": one["schedulability"]["share"]}
        del one["outcome"]["kinds"], one["outcome"]["wait_s"]
    return document


if __name__ == "__main__":
    sys.exit(main())

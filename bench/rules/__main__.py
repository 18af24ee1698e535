"""`python -m bench.rules`: what each rule of a shared cluster costs and brings, on four traces, beside Kueue and Slurm.

Every row is one day of a trace: gpugrid's allocator with a document of rules in force, and re-implementations of Kueue's admission
and of Slurm's multifactor priority with backfill on the same jobs. Writes bench/results/rules.json and rules.md; same figures every
time. Exit code 1 if a maximum in force was exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from bench.allocator.__main__ import machine, versions
from bench.rules.runs import BASELINES, run_one
from bench.rules.table import markdown
from bench.rules.workloads import LOAD, SEED, WORKLOADS, shared_day
from services.replay.core.rule_findings import RuleFinding
from services.replay.core.rulebook import RACK_ROWS, maxima_of

RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    """Parse options, run, report."""
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description=__doc__)
    parser.add_argument(
        "--traces", default=",".join(WORKLOADS), help="which traces; others in the file stay (default: all)"
    )
    parser.add_argument(
        "--rows",
        default="",
        help="which rows, by name, separated by semicolons; others in the file stay (default: all)",
    )
    parser.add_argument("--workers", type=int, default=0, help="runs at a time (default: one per core)")
    parser.add_argument("--out", type=Path, default=RESULTS / "rules.json")
    options = parser.parse_args()
    wanted = [row for row in options.rows.split(";") if row]
    tasks = [
        (trace, row) for trace in options.traces.split(",") for row in _rows_of(trace) if not wanted or row in wanted
    ]
    if not tasks:
        parser.error("no such rows")
    found: dict[str, list[RuleFinding]] = {}
    processor_s = 0.0
    workers = min(options.workers or os.cpu_count() or 1, len(tasks))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        results = pool.map(run_one, *zip(*tasks, strict=True))
        for number, ((trace, row), (one, seconds)) in enumerate(zip(tasks, results, strict=True), start=1):
            print(f"{number} of {len(tasks)}: {trace}, {row}, {seconds:.1f} s", file=sys.stderr, flush=True)
            found.setdefault(trace, []).append(one)
            processor_s += seconds
    _write(_with_earlier(found, options.out), processor_s, options.out)
    broken = [f"{trace}, {one.row}" for trace, ones in found.items() for one in ones if one.over_maximum]
    if broken:
        print(f"rules: a maximum was exceeded in {'; '.join(broken)}.", file=sys.stderr)
    return 1 if broken else 0


def _rows_of(trace: str) -> tuple[str, ...]:
    """Kueue and Slurm need teams."""
    work = WORKLOADS[trace]
    return work.rows if work.rows == RACK_ROWS else (*work.rows, *BASELINES)


def _with_earlier(found: dict[str, list[RuleFinding]], out: Path) -> dict[str, list[RuleFinding]]:
    """What was run now, and rows that only an earlier report in `out` has; traces and rows in their usual order."""
    earlier: dict[str, list[RuleFinding]] = {}
    if out.is_file():
        rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
        earlier = msgspec.convert(rows, dict[str, list[RuleFinding]])
    both: dict[str, list[RuleFinding]] = {}
    for trace in WORKLOADS:
        by_row = {one.row: one for one in (*earlier.get(trace, ()), *found.get(trace, ()))}
        if by_row:
            both[trace] = [by_row[row] for row in _rows_of(trace) if row in by_row]
    return both


def _write(found: dict[str, list[RuleFinding]], processor_s: float, out: Path) -> None:
    about = {name: _about(name) for name in found}
    report: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "seed": SEED,
        "load": LOAD,
        "processor_s_last_run": round(processor_s),
        "traces": about,
        "rows": {name: msgspec.to_builtins(ones) for name, ones in found.items()},
    }
    out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = markdown(found, about)
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    print(f"written: {out}, {processor_s:.0f} s of processor time")


def _about(name: str) -> dict[str, Any]:
    work = shared_day(name)
    era: Sequence[Any] = work.eras
    return {
        "words": WORKLOADS[name].words,
        "start": work.day.name,
        "gpus": work.day.gpus,
        "jobs": len(work.day.jobs),
        "teams": len(work.teams()),
        "eras": len(era),
        "load": round(work.day.load(), 3),
        "maximum_first_era": maxima_of(work, work.eras[0]),
    }


if __name__ == "__main__":
    sys.exit(main())

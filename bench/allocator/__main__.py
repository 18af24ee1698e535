"""`python -m bench.allocator`: measure, print the tables, write bench/results/allocator.json and the report beside it.

Sections not asked for keep what an earlier run measured, so a long run may be cut into parts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from services.allocator.shell.warmup import use_kernel_cache

RESULTS = Path(__file__).parents[1] / "results" / "allocator.json"
SECTIONS = ("published", "speed", "incremental", "cold", "full", "draws", "loop")


def main() -> int:
    """Parse options, measure, report."""
    parser = argparse.ArgumentParser(prog="python -m bench.allocator", description=__doc__)
    parser.add_argument(
        "--only",
        default=",".join(SECTIONS),
        help=f"sections to measure, of {', '.join(SECTIONS)}; 'none' writes the report anew",
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="full mode's limit per problem (default 10)")
    parser.add_argument(
        "--seeds",
        default="0:2,1000:1006",
        help="draws per family: from:to, …; from 1000 on they are held out (default 0:2,1000:1006)",
    )
    parser.add_argument("--again", action="store_true", help="measure draws that are already in the results, too")
    parser.add_argument(
        "--days", default="2,3,4", help="seeds of the days on which full mode runs in the loop (default 2,3,4)"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help=f"default {RESULTS.name}; the report lies beside it as .md and .svg"
    )
    options = parser.parse_args()
    use_kernel_cache()
    results: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    results |= {"machine": machine(), "versions": versions()}

    def keep(section: str, rows: Any) -> None:
        results[section] = rows
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    for section in SECTIONS:
        if section in options.only.split(","):
            results.setdefault("measured", {})[section] = {"load": round(os.getloadavg()[0], 2)}
            MEASURE[section](options, results, keep)
    from bench.allocator.report import write_report

    keep("machine", machine())
    for file in write_report(results, options.out.with_suffix(".md")):
        print(f"written: {file}")
    return 0


Keep = Callable[[str, Any], None]


def _published(options: argparse.Namespace, results: dict[str, Any], keep: Keep) -> None:
    from bench.allocator.quality import published_rows

    keep("published", show("published files", published_rows()))


def _speed(options: argparse.Namespace, results: dict[str, Any], keep: Keep) -> None:
    from bench.allocator.speed import speed_rows, steps_rows

    rows = speed_rows(options.seconds / 4)
    keep("speed", show("decision times", rows))
    keep("steps", show("96 steps against 24", steps_rows(rows)))


def _incremental(options: argparse.Namespace, results: dict[str, Any], keep: Keep) -> None:
    from bench.allocator.speed import incremental_rows

    keep("incremental", show("single events in a large pool", incremental_rows()))


def _cold(options: argparse.Namespace, results: dict[str, Any], keep: Keep) -> None:
    from bench.allocator.speed import cold_start_s

    with tempfile.TemporaryDirectory() as folder:
        cold, warm = cold_start_s(Path(folder), "a"), cold_start_s(Path(folder), "a")
    keep("cold_start_s", {"nothing_cached": cold, "kernels_cached": warm})
    print(f"\ncold start: {cold:.1f} s with nothing cached, {warm:.1f} s with cached kernels")


def _full(options: argparse.Namespace, results: dict[str, Any], keep: Keep) -> None:
    from bench.allocator.full import full_rows

    keep("full", show("full mode, published files", full_rows(options.seconds)))


def _draws(options: argparse.Namespace, results: dict[str, Any], keep: Keep) -> None:
    from bench.allocator.draws import MEASURED, measure_draws, spreads

    spans = [part.split(":") for part in options.seeds.split(",")]
    seeds = [seed for low, high in spans for seed in range(int(low), int(high))]
    known = [] if options.again else results.get("draws", [])
    rows = measure_draws(seeds, options.seconds, known, lambda so_far: keep("draws", so_far))
    keep("draws", rows)
    for held_out, words in ((False, "for tuning"), (True, "held out")):
        for measure in MEASURED:
            found = spreads(rows, measure, held_out)
            if found:
                show(f"{measure}, {words}", found)


def _loop(options: argparse.Namespace, results: dict[str, Any], keep: Keep) -> None:
    from bench.allocator.in_the_loop import loop_rows

    seeds = [int(seed) for seed in options.days.split(",")]
    rows = loop_rows(seeds, lambda so_far: keep("in_the_loop", so_far))
    show("full mode inside the running allocator", rows)


MEASURE: dict[str, Callable[[argparse.Namespace, dict[str, Any], Keep], None]] = {
    "published": _published, "speed": _speed, "incremental": _incremental, "cold": _cold, "full": _full, "draws": _draws, "loop": _loop,
}  # fmt: skip


def machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "processor": platform.machine(), "system": platform.platform()}


def versions() -> dict[str, str]:
    return {"python": sys.version.split()[0]} | {name: version(name) for name in ("numba", "numpy", "ortools")}


def show(title: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print rows as an aligned table and hand them on."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(column), *(len(row[i]) for row in cells)) for i, column in enumerate(columns)]
    print(f"\n{title}")
    for line in [columns, *cells]:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)), flush=True)
    return rows


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())

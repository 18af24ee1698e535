"""`python -m bench.allocator`: run everything, print the tables, write bench/results/allocator.json."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from services.allocator.shell.warmup import use_kernel_cache

RESULTS = Path(__file__).parents[1] / "results" / "allocator.json"
RESULTS_FULL = RESULTS.with_name("allocator_full.json")


def main() -> int:
    """Parse options, measure, report."""
    parser = argparse.ArgumentParser(prog="python -m bench.allocator", description=__doc__)
    parser.add_argument("--draws", type=int, default=20, help="draws per family (default 20)")
    parser.add_argument("--held-out", action="store_true", help="use the held-out seeds, never looked at while tuning")
    parser.add_argument("--no-cold-start", action="store_true", help="skip compiling from nothing (about a minute)")
    parser.add_argument("--full-seconds", type=float, default=10.0, help="full mode's limit per problem; 0 skips it")
    parser.add_argument("--full-draws", type=int, default=0, help="draws per family for full mode too (default 0)")
    parser.add_argument("--only-full", action="store_true", help="measure full mode alone")
    parser.add_argument("--out", type=Path, help=f"default {RESULTS.name}, or {RESULTS_FULL.name} with --only-full")
    options = parser.parse_args()
    use_kernel_cache()
    report: dict[str, Any] = {"machine": machine(), "versions": versions(), "load_at_start": os.getloadavg()[0]}
    if not options.only_full:
        measure_fast(report, options)
    if options.full_seconds > 0:
        measure_full(report, options)
    out = options.out or (RESULTS_FULL if options.only_full else RESULTS)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten: {out}")
    return 0


def measure_fast(report: dict[str, Any], options: argparse.Namespace) -> None:
    """Fast mode: values, decision times, draws, cold start."""
    from bench.allocator.quality import draw_rows, published_rows
    from bench.allocator.speed import cold_start_s, incremental_row, speed_rows

    report["published"] = show("published files", published_rows())
    report["speed"] = show("decision times", speed_rows())
    report["incremental"] = show("one event in a large pool", [incremental_row()])[0]
    report["draws"] = show("own draws, short budget ÷ long search", draw_rows(options.draws, options.held_out))
    if not options.no_cold_start:
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = cold_start_s(Path(folder), "a"), cold_start_s(Path(folder), "a")
        report["cold_start_s"] = {"nothing_cached": cold, "kernels_cached": warm}
        print(f"\ncold start: {cold:.1f} s with nothing cached, {warm:.1f} s with cached kernels")


def measure_full(report: dict[str, Any], options: argparse.Namespace) -> None:
    """Full mode within its limit."""
    from bench.allocator.full import full_draw_rows, full_rows

    report["full"] = show("full mode, published files", full_rows(options.full_seconds))
    if options.full_draws:
        rows = full_draw_rows(options.full_draws, options.full_seconds, options.held_out)
        report["full_draws"] = show("full mode, own draws", rows)


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

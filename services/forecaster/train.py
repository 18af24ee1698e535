"""`python -m services.forecaster.train`: make the bundled duration model again, and show what it is worth.

Reads the bundled Philly extract (or `--trace FILE` with the same columns), evaluates with a rolling origin (only what had
ended before each submit is known) against plain keyed history, then trains on everything and writes the model file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from services.forecaster.shell.model import MODEL_FILE
from services.forecaster.shell.training import PHILLY, TraceError, evaluate, read_runs, train


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m services.forecaster.train",
        description=__doc__.split("\n\n")[0] if __doc__ else "",
        epilog="Example: python -m services.forecaster.train --evaluate-only --trace jobs.csv.gz --json scores.json",
    )
    parser.add_argument(
        "--trace", type=Path, default=PHILLY, help="CSV (or .gz): submit_s, num_gpus, span_s, run_s, vc"
    )
    parser.add_argument("--first-row", type=int, default=0, help="leave out rows before this one")
    parser.add_argument("--rows", type=int, default=None, help="use only so many rows")
    parser.add_argument("--span", action="store_true", help="learn span_s (first start to last end) instead of run_s")
    parser.add_argument("--retrain-days", type=int, default=1, help="days between two trainings of the evaluation")
    parser.add_argument("--evaluate-only", action="store_true", help="write no model")
    parser.add_argument("--out", type=Path, default=MODEL_FILE, help="model file to write")
    parser.add_argument("--json", type=Path, default=None, help="also write the scores as JSON")
    options = parser.parse_args(arguments)
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began_s:6.1f} s] {text}", file=sys.stderr, flush=True)

    try:
        runs = read_runs(options.trace, span=options.span, first_row=options.first_row, row_count=options.rows)
    except TraceError as error:
        print(error, file=sys.stderr)
        return 2
    scores, _, _ = evaluate(runs, options.retrain_days, say)
    print(f"{'method':<20} {'runs':>8} {'factor':>8} {'coverage':>9} {'pinball':>8}")
    for name, score in scores.items():
        print(f"{name:<20} {score.runs:>8,} {score.factor:>7.2f}x {score.coverage:>9.1%} {score.pinball:>8.3f}")
    if options.json is not None:
        options.json.write_text(json.dumps({name: asdict(score) for name, score in scores.items()}, indent=1) + "\n")
    if not options.evaluate_only:
        card = train(runs, options.trace.name, scores, options.out, say)
        say(f"wrote {options.out}: {card.version}, {card.runs:,} runs from {card.window[0]} to {card.window[1]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

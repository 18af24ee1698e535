"""`make simulate`: two hours of a small cluster per seed, with everything going wrong that may, judged by what must never be.

make simulate                                   10,000 seeds on two processes
make simulate ARGS="--from 20000 --count 500"   others
make simulate ARGS="--from 20000 --count 500 --json part.json"   a part, to be added up with others:
make simulate ARGS="--merge part.json other.json --json all.json"
make simulate ARGS="--seed 123"                 one, with the story of what it did wrong
make simulate ARGS="--seed 123 --trace"         one, with its whole story
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from services.allocator.shell.warmup import use_kernel_cache
from tests.simulation.system.sweep import Outcome, Swept, command_of, read_part, sweep, write_part

SEEDS = 10_000
BAR_WIDTH = 30
VIOLATIONS_SHOWN_MAX = 5


def main() -> int:
    """0: no violation; 1: some."""
    logging.disable(logging.WARNING)
    options = _options()
    if options.seed is not None:
        return _one(options.seed, trace=options.trace, calm=options.calm)
    if options.merge:
        try:
            swept = _merged(options.merge)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        _report(swept)
    else:
        seeds = range(options.first, options.first + options.seeds)
        progress = _Progress(len(seeds))
        swept = sweep(seeds, workers=options.workers, done=progress.tell)
        progress.end()
        _report(swept, time.perf_counter() - progress.begun_s)
    if options.json is not None:
        write_part(options.json, swept)
    return 1 if swept.failures else 0


def _merged(paths: Sequence[Path]) -> Swept:
    total = Swept()
    for path in paths:
        total.merge(read_part(path))
    return total


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", "--seeds", dest="seeds", type=int, default=SEEDS, help=f"how many (default {SEEDS})")
    parser.add_argument("--from", "--first", dest="first", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--workers", type=int, default=0, help="processes (default: one per core, two at most)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the summary there, to be merged with other parts"
    )
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="run nothing: add up these parts")
    parser.add_argument("--seed", type=int, help="only this one, with its story if it fails")
    parser.add_argument("--trace", action="store_true", help="with --seed: its whole story")
    parser.add_argument("--calm", action="store_true", help="with --seed: the same world without faults")
    return parser.parse_args()


def _one(seed: int, *, trace: bool, calm: bool) -> int:
    use_kernel_cache()
    from tests.simulation.system.run import run_seed
    from tests.simulation.system.story import story

    ran = run_seed(seed, calm=calm, keep=True)
    assert ran.evidence is not None
    kinds = ", ".join(ran.evidence.weather.kinds) or "none"
    print(f"seed {seed}: faults: {kinds}")
    if trace or ran.violations:
        print("\n".join(story(ran.evidence, ran.violations, whole=trace)))
    print(f"seed {seed}: {_facts(ran.counts)}; {ran.took_s:.2f} s; digest {ran.digest}")
    for sentence in ran.violations:
        print(f"VIOLATION {sentence}")
    print("no violation" if not ran.violations else f"{len(ran.violations)} violations")
    return 1 if ran.violations else 0


def _report(swept: Swept, wall_s: float | None = None) -> None:
    for outcome in swept.failed:
        print(f"seed {outcome.seed} failed:")
        for sentence in outcome.violations[:VIOLATIONS_SHOWN_MAX]:
            print(f"  {sentence}")
        if len(outcome.violations) > VIOLATIONS_SHOWN_MAX:
            print(f"  and {len(outcome.violations) - VIOLATIONS_SHOWN_MAX} more")
        print(f"  see it with: {command_of(outcome.seed)}")
    each_s = swept.took_s / max(1, swept.seeds)
    during = "" if wall_s is None else f", in {wall_s / 60:.1f} minutes"
    print(
        f"{swept.seeds:,} seeds ({_ranges(swept)}), {swept.failures} with violations{during}: {each_s:.2f} processor "
        f"seconds per seed, at most {swept.slowest_s:.2f}"
    )
    print(f"what happened: {_facts(swept.counts)}")
    print(f"faults, by seeds that met them: {_facts(dict(sorted(swept.faults.items())))}")


def _ranges(swept: Swept) -> str:
    return ", ".join(f"{first} to {first + count - 1}" for first, count in swept.ranges)


def _facts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


class _Progress:
    """A bar with an estimate, on a terminal; a line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self.begun_s = time.perf_counter()
        self._total = total
        self._done = 0
        self._failures = 0
        self._told_s = 0.0

    def tell(self, outcome: Outcome) -> None:
        self._done += 1
        self._failures += 1 if outcome.violations else 0
        if outcome.violations:
            print(f"\rseed {outcome.seed}: {outcome.violations[0][:160]}", file=sys.stderr)
        now_s = time.perf_counter()
        if now_s - self._told_s < (0.5 if sys.stderr.isatty() else 20.0):
            return
        self._told_s = now_s
        share = self._done / self._total
        left_s = (now_s - self.begun_s) * (1 - share) / share
        bar = "#" * round(BAR_WIDTH * share)
        line = f"[{bar:<{BAR_WIDTH}}] {self._done:,} of {self._total:,}, {self._failures} failed, {left_s / 60:.1f} min left"
        print(f"\r{line}", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if sys.stderr.isatty():
            print(file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())

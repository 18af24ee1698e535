"""`python -m bench.soak --events 300000`: the same numbered events on an undisturbed stack and on one whose processes are killed."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from bench.soak.publish import Progress
from bench.soak.report import show
from bench.soak.run import SoakOptions, SoakResult, soak, undisturbed
from bench.soak.script import EVENTS_MIN
from deploy.local.background import stop_signals_interrupt
from services.allocator.shell.warmup import use_kernel_cache, warm_up

RESULTS = Path(__file__).resolve().parents[1] / "results" / "soak.json"
TELL_EVERY_S = 15.0
"""Between two lines where there is no terminal to draw a bar on."""


def main(arguments: list[str]) -> int:
    """0: nothing wrong; 1: a promise was broken, a run didn't end or a kept one is of something else; 2: usage; 130: stopped."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.events < EVENTS_MIN:
        parser.error(f"--events must be at least {EVENTS_MIN}, or nothing would follow a submission")
    if options.only_undisturbed and options.undisturbed is None:
        parser.error("--only-undisturbed needs --undisturbed FILE, or nothing would be left of the run")
    console = Console(stderr=True, soft_wrap=True)
    run_dir = options.run_dir or Path(tempfile.mkdtemp(prefix="gpugrid-soak-"))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a killed broker is the point: its absence is no news
    use_kernel_cache()
    console.print("loading the planner's kernels (compiled once, a minute or two) …", style="dim")
    warm_up()
    wanted = SoakOptions(
        events=options.events,
        seed=options.seed,
        gpus=options.gpus,
        kills=options.kills,
        second_kills=options.second_kills,
    )
    failed = True
    try:
        with stop_signals_interrupt(), Telling(console, options.events) as telling:
            if options.only_undisturbed:
                undisturbed(wanted, run_dir, telling, options.undisturbed)
                failed = False
                console.print(f"written to {options.undisturbed}", style="dim", highlight=False)
                return 0
            result = soak(wanted, run_dir, telling, options.undisturbed)
        failed = bool(result.wrong)
    except KeyboardInterrupt:
        console.print("Stopped; nothing is left running.")
        return 130
    except (RuntimeError, TimeoutError, OSError, ValueError) as error:
        console.print(f"soak: {error}", style="bold red", highlight=False)
        return 1
    finally:
        if options.keep or failed:
            console.print(f"logs and data are in {run_dir}", style="dim", highlight=False)
        else:
            shutil.rmtree(run_dir, ignore_errors=True)
    return _finish(result, options, console)


def _finish(result: SoakResult, options: argparse.Namespace, console: Console) -> int:
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    if options.json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    show(result, console)
    console.print(f"written to {options.results}", style="dim", highlight=False)
    return 1 if result.wrong else 0


class Telling:
    """A bar with rate and time left on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, events: int) -> None:
        self._console = console
        self._events = events
        self._begun_s: dict[str, float] = {}
        self._told_s = 0.0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
        )
        self._bars = Bars(*columns, console=console) if console.is_terminal else None

    def __enter__(self) -> Telling:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, run: str, progress: Progress) -> None:
        now_s = time.monotonic()
        if run not in self._begun_s:
            self._begun_s[run] = now_s
            if self._bars is not None:
                self._bars.add_task(run, total=self._events, rate="")
        rate = progress.published / max(1.0, now_s - self._begun_s[run])
        left_s = (self._events - progress.published) / rate if rate else 0.0
        text = f"{rate:.0f} events/s, {progress.open} jobs open, {left_s / 60:.1f} min left"
        if self._bars is not None:
            self._bars.update(self._bars.task_ids[-1], completed=progress.published, rate=text)
        elif now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            self._console.print(f"{run}: {progress.published} of {self._events} events, {text}", highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    default = SoakOptions()
    parser.add_argument("--events", type=int, default=default.events, help="numbered job events, repetitions included")
    parser.add_argument("--seed", type=int, default=default.seed, help="of the events and of the moments of the kills")
    parser.add_argument(
        "--gpus", type=int, default=default.gpus, help="per cluster, nodes of 8; there are two clusters"
    )
    parser.add_argument(
        "--kills", type=int, default=default.kills, help="SIGKILLs of each process in the disturbed run"
    )
    parser.add_argument(
        "--second-kills", type=int, default=default.second_kills, help="of each worker that joins in the middle"
    )
    parser.add_argument("--run-dir", type=Path, help="where the stacks live; a temporary folder otherwise")
    parser.add_argument("--keep", action="store_true", help="leave the run folder; it stays after a violation anyway")
    parser.add_argument(
        "--undisturbed", type=Path, metavar="FILE", help="keeps the first run: read if it is there, else written"
    )
    parser.add_argument(
        "--only-undisturbed", action="store_true", help="make the first run, and the other at another hour"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--json", action="store_true", help="the result on standard output, the rest on standard error")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

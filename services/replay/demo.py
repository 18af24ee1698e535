"""`gpugrid demo`: a real day through the real stack in minutes, watched live, compared at the end.

Owns the order of things: build the day, start broker and services under one supervisor with a paused scaled clock, publish
the days before, let the day run, measure, print, stop everything. Whatever way it ends, nothing is left running.
A composition root. Read next: `shell/live.py` (what happens while the day runs), `simulate.py` (the same without Kafka).
"""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from deploy.local import kafka_jars, preflight, stack_file
from deploy.local.background import stop_signals_interrupt
from deploy.local.broker import BrokerFailedError, EmbeddedBroker
from deploy.local.broker_commands import resolve_with_progress
from deploy.local.broker_process import broker_process
from deploy.local.cache import CacheUnusableError
from deploy.local.service_processes import Surroundings, service_processes
from deploy.local.supervisor import Hooks, StackFailedError, Supervisor
from services.allocator.shell.warmup import use_kernel_cache, warm_up
from services.replay.core.catalog import catalog_of, node_names, toml_of
from services.replay.core.comparison import GPUGRID, with_baselines
from services.replay.core.day import Day
from services.replay.core.latency import Hop, latencies
from services.replay.core.observation import Observation
from services.replay.core.outcome import Outcome, outcome
from services.replay.shell.live import NotOpenedError, Pacer, play
from services.replay.shell.tables import day_table, gains_line, latency_table
from services.replay.shell.watch import Watch
from services.replay.simulate import SPEED, DayOptions, day_of
from services.runtime.bus.kafka import KafkaBus
from services.runtime.bus.port import BusError
from services.runtime.scaled_clock import ClockControl, ScaledClock

KERNELS_SLOW_S = 5.0
EXIT_OK, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`speed`: domain seconds per second. `ui` None: where the output is a terminal. `run_dir`: a fresh folder, deleted at
    the end unless `keep`."""

    day: DayOptions = field(default_factory=DayOptions)
    speed: float = SPEED
    ui: bool | None = None
    keep: bool = False
    json_path: Path | None = None
    run_dir: Path = Path("run/demo")


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes. `waits_s` are in the outcomes; `latency_ms` is wall time."""

    format: str = "demo.v1"
    day: str
    seed: int
    hours: float
    gpus: int
    speed: float
    load: float
    outcomes: dict[str, Outcome]
    latency_ms: dict[str, Hop]
    decisions: int
    decisions_rejected: int
    decisions_verified: int
    violations: list[str]
    unjudged: dict[str, int]
    dead_letters: int
    took_s: float


class DemoFailedError(Exception):
    """One sentence that says what to do."""


def run_demo(options: DemoOptions, console: Console | None = None) -> int:
    """Run it; returns the exit code. Errors are printed as one sentence; Ctrl-C, SIGTERM and SIGHUP stop everything."""
    console = console or Console()
    with stop_signals_interrupt():
        try:
            report = _demo(options, console)
        except KeyboardInterrupt:
            console.print("Stopped; nothing is left running.")
            return EXIT_INTERRUPTED
        except (
            BrokerFailedError,
            BusError,
            CacheUnusableError,
            DemoFailedError,
            NotOpenedError,
            StackFailedError,
            ValueError,
            kafka_jars.KafkaUnavailableError,
            preflight.PreflightError,
        ) as error:
            console.print(f"[bold red]gpugrid demo:[/] {error}", highlight=False)
            return EXIT_FAILED
    _show(report, console)
    return EXIT_OK


def _demo(options: DemoOptions, console: Console) -> DemoReport:
    begun_s = time.monotonic()
    day = day_of(options.day)
    run_dir = _fresh(options.run_dir)
    preflight.require(run_dir)
    console.print(
        f"{day.name}: {len(day.jobs)} jobs and {len(day.apps)} applications want {day.load():.0%} of {day.gpus} GPUs. "
        f"{day.hours:g} hours in about {day.hours * 3600 / options.speed:.0f} s, after the stack has started.",
        highlight=False,
    )
    resolve_with_progress()
    _warm(console)
    try:
        observation = _on_a_stack(day, options, run_dir, console)
    finally:
        if not options.keep:
            shutil.rmtree(run_dir, ignore_errors=True)
    report = _report(day, options, observation, time.monotonic() - begun_s)
    if options.json_path is not None:
        _write(options.json_path, report)
    return report


def _on_a_stack(day: Day, options: DemoOptions, run_dir: Path, console: Console) -> Observation:
    catalog_path, clock_path = run_dir / "catalog.toml", run_dir / "clock"
    try:
        catalog_path.write_text(toml_of(catalog_of(day)))
        control = ClockControl.create(clock_path, start_ms=day.start_ms, speed=options.speed, paused=True)
    except OSError as error:
        raise DemoFailedError(f"{run_dir} can't be written ({error.strerror}): free some space there.") from None
    pacer = Pacer(control)
    broker = EmbeddedBroker(run_dir / "kafka")
    kafka = broker_process(broker)
    around = Surroundings(
        run_dir=run_dir,
        bootstrap=broker.address,
        catalog=catalog_path,
        cluster=day.cluster,
        pool=day.pool,
        nodes=tuple(node_names(day)),
        clock=f"scaled:{clock_path}",
    )
    watch = Watch(console, day, options.speed, ui=console.is_terminal if options.ui is None else options.ui)
    hooks = Hooks(on_change=watch.process_changed, on_disturbed=pacer.disturbed, on_recovered=pacer.recovered)
    try:
        with watch.starting(), Supervisor("demo", run_dir, [kafka, *service_processes(around)], hooks) as stack:
            watch.started()
            clock = ScaledClock(clock_path)
            try:
                return asyncio.run(play(day, KafkaBus(broker.address), clock, pacer, watch, stack.check))
            finally:
                clock.close()
    finally:
        control.close()


def _fresh(run_dir: Path) -> Path:
    """The run folder, absolute and empty: what a killed run left is removed, a running one is refused by its lock."""
    path = run_dir.absolute()
    state = stack_file.read(path)
    if state is not None and stack_file.is_alive(state.supervisor_pid, state.supervisor_started_s):
        raise DemoFailedError(f"another demo runs in {path}: stop it first, or choose another folder with --run-dir.")
    try:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoFailedError(f"{path} can't be made ({error.strerror}): choose another with --run-dir.") from None
    return path


def _warm(console: Console) -> None:
    """Compile the planner's kernels once, here, so that nobody waits for them later."""
    use_kernel_cache()
    with console.status("Loading the planner's kernels (the first time they are compiled: a minute or two) …"):
        took_s = warm_up()
    if took_s > KERNELS_SLOW_S:
        console.print(f"Compiled the planner's kernels in {took_s:.0f} s; they are cached now.", highlight=False)


def _report(day: Day, options: DemoOptions, observation: Observation, took_s: float) -> DemoReport:
    ours = outcome(day, GPUGRID, observation.attempts(), observation.holds)
    return DemoReport(
        day=day.name,
        seed=day.seed,
        hours=day.hours,
        gpus=day.gpus,
        speed=options.speed,
        load=day.load(),
        outcomes=with_baselines(day, ours),
        latency_ms=latencies(observation.marks.values()),
        decisions=observation.decisions,
        decisions_rejected=observation.rejected,
        decisions_verified=observation.verified,
        violations=observation.violations,
        unjudged=observation.unjudged,
        dead_letters=observation.dead_letters,
        took_s=took_s,
    )


def _write(path: Path, report: DemoReport) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    except OSError as error:
        raise DemoFailedError(f"{path} can't be written ({error.strerror}): choose another file for --json.") from None


def _show(report: DemoReport, console: Console) -> None:
    console.print(day_table(report.outcomes))
    console.print(latency_table(report.latency_ms))
    console.print(gains_line(report.outcomes))
    letters = f", {report.dead_letters} dead letters" if report.dead_letters else ""
    for sentence in report.violations:
        console.print(f"[bold red]violation:[/] {sentence}", highlight=False)
    checked = f"{report.decisions_verified} decisions, each checked again: {len(report.violations)} violations"
    for version, count in report.unjudged.items():
        checked += f"; {count} of {version}, not judged"
    console.print(f"{checked}{letters}; {report.took_s:.0f} s in all.", style="dim", highlight=False)

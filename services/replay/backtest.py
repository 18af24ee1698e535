"""Backtests: days of a real trace in virtual time under gpugrid's allocator and five simple schedulers, at four levels of information.

Owns what is run and in which order; results depend on the options only, never on `workers`. The planner is driven without the
services around it: a day through all of them (`simulate.py`) takes about twice as long, most of it spent on carrying records
around, and this runs sixteen. A composition root: it imports the other services' public classes. Read next: `core/rolling.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from msgspec import Struct

from services.allocator.shell.warmup import use_kernel_cache
from services.replay.core.baselines import FIFO, INFORMED, SCHEDULERS, play
from services.replay.core.beliefs import Beliefs, Forecaster, Level
from services.replay.core.catalog import catalog_of
from services.replay.core.comparison import GPUGRID
from services.replay.core.day import Day
from services.replay.core.findings import ALL, Finding, finding
from services.replay.core.occurrences import Learner, past
from services.replay.core.outcome import percentile
from services.replay.core.span import LOAD_MAX, Span, build_span
from services.replay.core.verdict import Verdict, verdict
from services.replay.shell.formats import default_gpus, default_start, open_trace

LAUNCH_S = 5.0
"""From the decision to the running job, for everybody: a container and its process. GPUs are held meanwhile."""
QUEUEING_S = 2 * 3600.0
"""The load of a backtest is the one at which FIFO's P90 wait first exceeds this."""
LOAD_STEP = 0.05
SEED_DEFAULT = 2

_trace = lru_cache(maxsize=4)(open_trace)


@dataclass(frozen=True, slots=True)
class BacktestOptions:
    """`start`, `gpus` None: the trace's own. `load` None: where FIFO's P90 wait first exceeds QUEUEING_S. `file`: with the columns of the
    trace's original. `schedulers`: names of SCHEDULERS or GPUGRID."""

    trace: str = "philly"
    file: Path | None = None
    start: str | None = None
    days: int = 1
    gpus: int | None = None
    seed: int = SEED_DEFAULT
    load: float | None = None
    levels: tuple[Level, ...] = tuple(Level)
    schedulers: tuple[str, ...] = (*SCHEDULERS, GPUGRID)


@dataclass(frozen=True, slots=True)
class Run:
    """One scheduler at one level."""

    scheduler: str
    level: Level | None

    @property
    def name(self) -> str:
        return self.scheduler if self.level is None else f"{self.scheduler}, {self.level.value}"


class Took(Struct, frozen=True, kw_only=True):
    """Wall time: of a run, and of one re-plan (only gpugrid's runs have any). The only figures that differ between two machines."""

    run: str
    seconds: float
    replans: int
    replan_p50_ms: float
    replan_p90_ms: float
    replan_p99_ms: float


class Backtest(Struct, frozen=True, kw_only=True):
    """Everything found. `load`: what was asked for ÷ what the pool can give; `fifo_p90_wait_s`: what made that the load."""

    trace: str
    start: str
    days: int
    gpus: int
    seed: int
    load: float
    jobs: int
    past_jobs: int
    app_share: float
    findings: list[Finding]
    verdict: Verdict
    took: list[Took]


def runs_of(options: BacktestOptions) -> list[Run]:
    """What the options ask for, in the order of the report: the simple ones first, then level by level."""
    plain = [Run(name, None) for name in options.schedulers if name != GPUGRID and name not in INFORMED]
    informed = [name for name in options.schedulers if name == GPUGRID or name in INFORMED]
    return plain + [Run(name, level) for level in options.levels for name in informed]


def settled(options: BacktestOptions) -> BacktestOptions:
    """The options with nothing left open: start, GPUs and load as they will be. Raises ValueError with one sentence for people."""
    known = (*SCHEDULERS, GPUGRID)
    unknown = [name for name in options.schedulers if name not in known]
    if unknown:
        raise ValueError(f"no scheduler {', '.join(unknown)}; there are {', '.join(known)}")
    if not runs_of(options):
        raise ValueError("nothing to run: name at least one scheduler, and a level for those that ask for durations")
    trace = _trace(options.trace, options.file)
    found = replace(
        options,
        start=options.start or default_start(options.trace, trace),
        gpus=options.gpus or default_gpus(options.trace),
    )
    return found if found.load is not None else replace(found, load=_queueing_load(found))


def run_backtest(
    options: BacktestOptions, *, workers: int = 0, done: Callable[[str, int, int], None] | None = None
) -> Backtest:
    """Run everything, `workers` at a time (0: one per core, 1: in this process). `done(run, finished, of)` as runs finish."""
    chosen = settled(options)
    runs = runs_of(chosen)
    span = span_of(chosen)
    found: dict[int, tuple[Finding, Took]] = {}

    def finish(index: int, result: tuple[Finding, Took]) -> None:
        found[index] = result
        if done is not None:
            done(runs[index].name, len(found), len(runs))

    count = min(workers or os.cpu_count() or 1, len(runs))
    if count <= 1:
        for index, run in enumerate(runs):
            finish(index, run_one(chosen, run))
    else:
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            waiting = {pool.submit(run_one, chosen, run): index for index, run in enumerate(runs)}
            for future in as_completed(waiting):
                finish(waiting[future], future.result())
    findings = [found[index][0] for index in range(len(runs))]
    day = span.day
    return Backtest(
        trace=options.file.name if options.file else options.trace,
        start=day.name,
        days=options.days,
        gpus=day.gpus,
        seed=day.seed,
        load=day.load(),
        jobs=len(day.jobs),
        past_jobs=len(span.past),
        app_share=day.app_gpu_s() / day.capacity_gpu_s,
        findings=findings,
        verdict=verdict(findings),
        took=[found[index][1] for index in range(len(runs))],
    )


def run_one(options: BacktestOptions, run: Run) -> tuple[Finding, Took]:
    """One run from settled options; the same finding in any process."""
    use_kernel_cache()
    span = span_of(options)
    begun_s = time.perf_counter()
    if run.scheduler == GPUGRID and run.level is not None:
        result, replan_s = _gpugrid(span, run.level)
    else:
        result, replan_s = _baseline(span, run), []
    ms = [1000 * seconds for seconds in replan_s]
    return result, Took(
        run=run.name,
        seconds=time.perf_counter() - begun_s,
        replans=len(ms),
        replan_p50_ms=percentile(ms, 0.5),
        replan_p90_ms=percentile(ms, 0.9),
        replan_p99_ms=percentile(ms, 0.99),
    )


def span_of(options: BacktestOptions) -> Span:
    """The days of settled options."""
    if options.start is None or options.gpus is None or options.load is None:
        raise ValueError("the start, the pool and the load are still open: settle the options first")
    trace = _trace(options.trace, options.file)
    return build_span(trace, options.start, options.seed, days=options.days, gpus=options.gpus, load=options.load)


def _gpugrid(span: Span, level: Level) -> tuple[Finding, list[float]]:
    from services.allocator.core.config import Policy
    from services.replay.core.rolling import Rolling

    beliefs = _beliefs(span, level, demand=True)
    # Forecasts come with the job here, so nobody has to wait for one.
    rolling = Rolling(span.day, beliefs, Policy(forecast_wait_ms=0), launch_s=LAUNCH_S, clock_s=time.perf_counter)
    played = rolling.play()
    return finding(span.day, GPUGRID, level.value, played), rolling.replan_s


def _baseline(span: Span, run: Run) -> Finding:
    watch = None if run.level is None else Learner(span.day, _beliefs(span, run.level, demand=False))
    played = play(span.day, run.scheduler, watch, launch_s=LAUNCH_S)
    return finding(span.day, run.scheduler, "" if run.level is None else run.level.value, played)


def _beliefs(span: Span, level: Level, *, demand: bool) -> Beliefs:
    """A forecaster of its own for every run, with the same past: it learns from what happens in this run alone."""
    durations = level is Level.FORECAST
    forecaster: Forecaster | None = _bundled_forecaster(span.day) if demand or durations else None
    beliefs = Beliefs(span.day, level, forecaster)
    beliefs.remember(past(span.day, span.past if durations else ()))
    return beliefs


def _bundled_forecaster(day: Day) -> Forecaster:
    from services.forecaster.shell.app import make_handler

    return make_handler(catalog_of(day))


@lru_cache(maxsize=8)
def _queueing_load(options: BacktestOptions) -> float:
    """The smallest load at which FIFO's P90 wait exceeds QUEUEING_S. ValueError if the trace never brings that much."""
    load = LOAD_STEP
    while load <= LOAD_MAX:
        day = span_of(replace(options, load=load)).day
        waited = finding(day, FIFO, "", play(day, FIFO, launch_s=LAUNCH_S)).wait_s[ALL].p90_s
        if waited > QUEUEING_S:
            return load
        load = round(load + LOAD_STEP, 2)
    raise ValueError(f"FIFO's P90 wait stays below {QUEUEING_S / 3600:g} h up to a load of {LOAD_MAX:g}: name a --load")

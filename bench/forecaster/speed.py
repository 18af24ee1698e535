"""How fast one forecaster answers on one core, with 100,000 keys known, and what a training beside it costs an event.

Owns: the handler alone, without Kafka, pinned to one core together with the training child. Each event is answered as soon as it is
due; its latency counts from that moment, so waiting for the core counts, too. Baseline of the same run: no training.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace

import numpy as np
import psutil
from msgspec import Struct

from bench.forecaster.accuracy import CATALOG
from bench.forecaster.generated import GeneratedJob, generated_jobs
from schemas.base import Event
from schemas.executions import JobCompleted, JobStarted
from schemas.jobs import JobAccepted
from schemas.messages import message
from schemas.records import Now, Record
from services.forecaster.core.features import GIVEN, NAMES
from services.forecaster.core.handler import ForecasterHandler, Settings
from services.forecaster.core.history import KEY_COUNT_MAX
from services.forecaster.core.lessons import LESSONS_MAX, Lessons
from services.forecaster.core.retraining import Order
from services.forecaster.shell.app import warm_up
from services.forecaster.shell.fitting import write_order
from services.forecaster.shell.model import load_model
from services.forecaster.shell.trainer import COMMAND

PACED_PER_S = 200.0
START_MS = 1_767_225_600_000
RUNNING = 200
TURNS = 4
Tell = Callable[[str], None]


class Way(Struct, frozen=True, kw_only=True):
    """Of one kind of event: handled one by one, milliseconds. `cpu_*`: of processor time, which neighbours of this machine can't spoil."""

    count: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_mean_ms: float
    cpu_p99_ms: float


class SpeedResult(Struct, frozen=True, kw_only=True):
    """`forecasts_per_s`: accepted jobs per second of processor time. `paced`, `training`: all events at a steady pace, with nothing
    beside and with a training beside, in turns; `training_s`: how long one took meanwhile."""

    keys: int
    memory_mib: float
    ways: dict[str, Way]
    forecasts_per_s: float
    paced: Way
    training: Way
    training_ratio_p99: float
    trainings_done: int
    training_s: float


def measure_speed(jobs: int, tell: Tell) -> SpeedResult:
    core = sorted(os.sched_getaffinity(0))[-1]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        return _measure(jobs, tell)
    finally:
        os.sched_setaffinity(0, before)


def _measure(jobs: int, tell: Tell) -> SpeedResult:
    tell(f"a history of {KEY_COUNT_MAX:,} keys")
    forecaster = _crowded()
    records = list(_records(generated_jobs(jobs, seed=2), "a"))
    gc.collect()
    gc.freeze()
    tell("back to back")
    took: dict[str, list[tuple[float, float]]] = {"accepted": [], "started": [], "ended": []}
    for what, record, now in records:
        took[what].append(_handled(forecaster, record, now, time.perf_counter()))
    paced: list[tuple[float, float]] = []
    training: list[tuple[float, float]] = []
    done: list[float] = []
    first = len(records)
    for turn in range(TURNS):
        tell(f"paced, turn {turn + 1} of {TURNS}: alone, then beside a training")
        for seconds, beside in ((paced, False), (training, True)):
            pace = list(_records(generated_jobs(jobs // TURNS, seed=first), f"p{first}-", first=first))
            first += len(pace)
            with _training(done) if beside else nullcontext():
                seconds += _paced(forecaster, pace)
    state = forecaster.cluster("c0")
    assert state is not None, "jobs were accepted"
    return SpeedResult(
        keys=state.durations.history.key_count,
        memory_mib=round(psutil.Process().memory_info().rss / 2**20, 1),
        ways={what: _way(seconds) for what, seconds in took.items()},
        forecasts_per_s=round(len(took["accepted"]) / sum(cpu_s for _, cpu_s in took["accepted"]), 1),
        paced=_way(paced),
        training=_way(training),
        training_ratio_p99=round(_way(training).p99_ms / _way(paced).p99_ms, 2),
        trainings_done=len(done),
        training_s=round(float(np.mean(done)), 2) if done else 0.0,
    )


def _crowded() -> ForecasterHandler:
    """The bundled model, and a history that is full."""
    bundled, seed = load_model()
    extra = KEY_COUNT_MAX - len(seed.keys)

    def padded(array: np.ndarray) -> np.ndarray:
        return np.concatenate([np.tile(array[:1], (extra, *[1] * (array.ndim - 1))), array])

    keys = (*(("full", f"team{number}", "u", "w", "training", 1) for number in range(extra)), *seed.keys)
    arrays = {field.name: padded(getattr(seed, field.name)) for field in fields(seed) if field.name != "keys"}
    full = replace(seed, keys=keys, **arrays)
    forecaster = ForecasterHandler(CATALOG, Settings(), model=bundled, seed=full)
    warm_up(forecaster, CATALOG)
    for _, record, now in _records(generated_jobs(1, seed=9), "w", first=-10):
        forecaster.handle(record, now)  # plants the history, which a service has done before its first event
    return forecaster


def _records(jobs: list[GeneratedJob], name: str, *, first: int = 0) -> Iterator[tuple[str, Record, Now]]:
    """Jobs one after the other, each ending when `RUNNING` younger ones have started."""
    offsets = {"jobs": first, "executions": first}

    def record(event: Event, at_ms: int) -> tuple[Record, Now]:
        carried = message(event, key="k", id=f"{name}{offsets}", source="bench", time_ms=at_ms)
        offsets[carried.topic] += 1
        made = Record(
            carried.topic, 0, offsets[carried.topic], carried.key, carried.value, carried.headers, at_ms
        )  # fmt: skip
        return made, Now(at_ms, at_ms)

    for number, job in enumerate(jobs):
        at_ms = START_MS + (first + number) * 4_000
        accepted = JobAccepted(
            job_id=name + job.job_id, cluster="c0", pools=["h100"], submitted_ms=at_ms, accepted_ms=at_ms, digest="",
            spec=job.spec,
        )  # fmt: skip
        yield "accepted", *record(accepted, at_ms)
        started = JobStarted(
            job_id=name + job.job_id, attempt=1, node="n0", cluster="c0", time_ms=at_ms, wall_ms=at_ms,
            gpus=list(range(job.spec.requested_gpus or 1)), sequence=1,
        )  # fmt: skip
        yield "started", *record(started, at_ms)
        if number >= RUNNING:
            old = name + jobs[number - RUNNING].job_id
            ended = JobCompleted(
                job_id=old, attempt=1, node="n0", cluster="c0", time_ms=at_ms, run_s=jobs[number - RUNNING].run_s
            )
            yield "ended", *record(ended, at_ms)


def _handled(forecaster: ForecasterHandler, record: Record, now: Now, due_s: float) -> tuple[float, float]:
    """(seconds since it was due, processor seconds)"""
    begun_s = time.thread_time()
    forecaster.handle(record, now)
    return time.perf_counter() - due_s, time.thread_time() - begun_s


def _paced(forecaster: ForecasterHandler, records: list[tuple[str, Record, Now]]) -> list[tuple[float, float]]:
    begun_s = time.perf_counter()
    took = []
    for number, (_, record, now) in enumerate(records):
        due_s = begun_s + number / PACED_PER_S
        while (left_s := due_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        took.append(_handled(forecaster, record, now, due_s))
    return took


@contextmanager
def _training(done: list[float]) -> Iterator[None]:
    """Trainings on a full ring of lessons, one after the other, until the end; notes how long each that was done took."""
    data = write_order(_full_order())
    stop = False

    async def repeat() -> None:
        while not stop:
            begun_s = time.perf_counter()
            child = await asyncio.create_subprocess_exec(*COMMAND, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            waiting = asyncio.create_task(child.communicate(data))
            while not waiting.done() and not stop:
                await asyncio.sleep(0.02)
            if stop and not waiting.done():
                child.kill()
            await waiting
            if child.returncode == 0:
                done.append(time.perf_counter() - begun_s)

    thread = threading.Thread(target=lambda: asyncio.run(repeat()))
    thread.start()
    try:
        yield
    finally:
        stop = True
        thread.join()


def _full_order() -> Order:
    lessons = Lessons()
    chance = np.random.default_rng(1)
    rows = chance.normal(6.0, 2.0, (LESSONS_MAX, len(NAMES)))
    for number in range(LESSONS_MAX):
        lessons.started(f"j{number}", rows[number], START_MS + number * 60_000)
        log_s = float(rows[number, GIVEN] + chance.normal(0, 1.0))
        lessons.ended(f"j{number}", START_MS + number * 60_000 + 1_000, log_s)
    now_ms = START_MS + LESSONS_MAX * 60_000
    from_ms = START_MS + round(0.9 * LESSONS_MAX) * 60_000
    return Order("c0", now_ms, "benchmark", lessons.taught(now_ms), from_ms, None, None)


def _way(seconds: list[tuple[float, float]]) -> Way:
    ms, cpu_ms = np.array(seconds).T * 1000
    return Way(
        count=len(ms),
        mean_ms=round(float(ms.mean()), 3),
        p50_ms=round(float(np.median(ms)), 3),
        p99_ms=round(float(np.percentile(ms, 99)), 3),
        max_ms=round(float(ms.max()), 3),
        cpu_mean_ms=round(float(cpu_ms.mean()), 3),
        cpu_p99_ms=round(float(np.percentile(cpu_ms, 99)), 3),
    )

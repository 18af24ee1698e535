"""FIFO and EASY of `services.replay.core.baselines` against AccaSim, an independent scheduling simulator: start times, job by job.

The same jobs (requested size, true duration as the estimate, killed at no limit), on nodes of 8 GPUs, without applications and launch
delay, on whole seconds. Owns the translation: a job up to a node asks AccaSim for one node with so many cores, a larger one for whole
nodes. AccaSim is in the group `peers`; nothing but this file imports it. Read next: `docs/backtest.md`, which explains the differences.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import io
import json
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from msgspec.structs import replace as changed

from services.replay.core.baselines import EASY, FIFO, play
from services.replay.core.beliefs import Beliefs, Level
from services.replay.core.day import Day, DayJob
from services.replay.core.occurrences import Learner

KEPT_OFF = "easy_kept_off"
SAME_S = 1
"""Starts within this many seconds count as the same."""


def compare_with_peer(day: Day) -> dict[str, Any]:
    """Per scheduler: jobs with the same start, and mean and P90 of waiting on both sides. `easy_kept_off`: AccaSim's EASY, but told which
    nodes it has reserved (as released, it fills the queue with an empty list of reserved nodes)."""
    return {
        "simulator": f"accasim {version('accasim')}",
        "gpus": day.gpus,
        "sizes_of_the_trace": _both(plain_day(day)),
        "one_gpu_or_one_node": _both(plain_day(day, simple=True)),
    }


def _both(day: Day) -> dict[str, Any]:
    ours = {name: _ours(day, name) for name in (FIFO, EASY)}
    theirs = {name: _theirs(day, name) for name in (FIFO, EASY, KEPT_OFF)}
    compared = {name: _compared(day, ours[FIFO if name == FIFO else EASY], starts) for name, starts in theirs.items()}
    return {"jobs": len(day.jobs), **compared}


def plain_day(day: Day, *, simple: bool = False) -> Day:
    """Only what both simulators model: no applications, whole seconds, no declared limit below the duration.

    `simple`: jobs below a node get one GPU, the others one node; then it makes no difference whether a block has to be contiguous.
    """
    jobs = []
    for job in day.jobs:
        run_s = float(max(round(job.run_s[job.requested]), 1))
        size = (1 if job.requested < day.node_gpus else day.node_gpus) if simple else job.requested
        spec = changed(
            job.spec, sizes=[size], requested_gpus=size, time_limit_s=max(job.spec.time_limit_s, run_s), labels={}
        )
        jobs.append(DayJob(job.job_id, -(-job.arrival_ms // 1000) * 1000, spec, {size: run_s}))
    return replace(day, apps=(), jobs=tuple(jobs))


def _ours(day: Day, name: str) -> dict[str, int]:
    watch = Learner(day, Beliefs(day, Level.TRUE)) if name == EASY else None
    played = play(day, name, watch)
    return {one.job_id: (one.start_ms - day.start_ms) // 1000 for one in played.attempts}


def _compared(day: Day, ours: dict[str, int], theirs: dict[str, int]) -> dict[str, Any]:
    arrival = {job.job_id: (job.arrival_ms - day.start_ms) // 1000 for job in day.jobs}
    both = [name for name in arrival if name in ours and name in theirs]
    apart = [abs(ours[name] - theirs[name]) for name in both]
    first = next((name for name in both if abs(ours[name] - theirs[name]) > SAME_S), None)
    waits = [sorted(starts[name] - arrival[name] for name in both) for starts in (ours, theirs)]
    return {
        "jobs_in_both": len(both),
        "same_start": sum(gap <= SAME_S for gap in apart),
        "apart_most_s": max(apart, default=0),
        "first_apart": first,
        "mean_wait_s": [round(sum(wait) / max(len(wait), 1), 1) for wait in waits],
        "p90_wait_s": [wait[int(0.9 * (len(wait) - 1))] if wait else 0 for wait in waits],
    }


def _theirs(day: Day, which: str) -> dict[str, int]:
    """job → start, in seconds of the day, as AccaSim's schedule says. Only starts before the day's end."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        starts = _simulated(day, Path(folder), which)
    end_s = (day.end_ms - day.start_ms) // 1000
    return {job_id: start for job_id, start in starts.items() if start < end_s}


def _simulated(day: Day, folder: Path, which: str) -> dict[str, int]:
    _as_before_python_3_10()
    from accasim.base.allocator_class import FirstFit
    from accasim.base.scheduler_class import EASYBackfilling, FirstInFirstOut
    from accasim.base.simulator_class import Simulator
    from accasim.utils.reader_class import Tweaker

    config = folder / "system.json"
    config.write_text(
        json.dumps(
            {
                "groups": {"g0": {"core": day.node_gpus}},
                "resources": {"g0": day.gpus // day.node_gpus},
                "equivalence": {"processor": {"core": 1}},
                "start_time": 0,
            }
        )
    )
    workload = folder / "jobs.swf"
    workload.write_text("".join(_swf_line(day, place, job) for place, job in enumerate(day.jobs, start=1)))

    class Blocks(Tweaker):  # type: ignore[misc]
        def tweak_function(self, job: dict[str, Any]) -> dict[str, Any]:
            gpus = job["total_processors"]
            nodes = max(gpus // day.node_gpus, 1)
            job["requested_nodes"], job["requested_resources"] = nodes, {"core": gpus // nodes}
            job["core"], job["queue"] = gpus, job.pop("queue_number")
            return job

    class KeepsOff(FirstFit):  # type: ignore[misc]
        """First fit that keeps off the nodes its scheduler has reserved."""

        scheduler: Any = None

        def allocating_method(self, es: Any, cur_time: Any, skip: bool = False, **reserved: Any) -> Any:
            if reserved.get("reserved_time") is not None:
                reserved["reserved_nodes"] = self.scheduler._reserved_slot[1]
            return super().allocating_method(es, cur_time, skip=skip, **reserved)

    if which == FIFO:
        dispatcher = FirstInFirstOut(FirstFit())
    elif which == EASY:
        dispatcher = EASYBackfilling(FirstFit())
    else:
        allocator = KeepsOff()
        dispatcher = allocator.scheduler = EASYBackfilling(allocator)
    simulator = Simulator(
        str(workload),
        str(config),
        dispatcher,
        tweak_function=Blocks(),
        statistics_output=False,
        show_statistics=False,
        RESULTS_FOLDER_NAME=str(folder / "results"),  # absolute: otherwise beside the script that runs
        SCHEDULE_OUTPUT={
            "format": "{job_id};{start_time}",
            "attributes": {"job_id": ("id", "str"), "start_time": ("start_time", "int")},
        },
    )
    simulator.start_simulation()
    written = next(folder.rglob("sched*"))
    rows = [line.split(";") for line in written.read_text().splitlines() if ";" in line]
    return {day.jobs[int(job) - 1].job_id: int(start) for job, start in rows}


def _as_before_python_3_10() -> None:
    """AccaSim 1.1 asks `collections` for what has lived in `collections.abc` since."""
    for name in ("Mapping", "MutableMapping", "Iterable", "Sequence"):
        if not hasattr(collections, name):
            setattr(collections, name, getattr(collections.abc, name))


def _swf_line(day: Day, number: int, job: DayJob) -> str:
    """One job in the Standard Workload Format: number, submission, -, run time, …, processors, requested time, …"""
    submit_s, run_s = (job.arrival_ms - day.start_ms) // 1000, int(job.run_s[job.requested])
    fields = [number, submit_s, -1, run_s, job.requested, -1, -1, job.requested, run_s, -1, 1, 1, 1, 1, 1, 1, -1, -1]
    return " ".join(map(str, fields)) + "\n"

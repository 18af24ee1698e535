"""Jobs out of curves: the smallest flow that explains how many GPUs of a queue ran and waited, sample by sample.

Some traces publish no jobs, only how many GPUs and jobs ran and waited every few minutes. Between two samples at least
max(0, fall of running) GPUs ended, max(0, rise of running) began, and what the queue grew by besides arrived. Arrivals, starts and
ends are then matched first in, first out. What is lost: jobs that come and go between two samples, and the spread of
durations inside a queue. Read next: `span.py`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment of one queue."""

    at_s: int
    running_gpus: int
    pending_gpus: int
    running_jobs: int
    pending_jobs: int


@dataclass(frozen=True, slots=True)
class FlowJob:
    """A job of the flow. `run_s`: from its first GPU's start to its last GPU's end, at the latest the last sample."""

    submit_s: int
    gpus: int
    run_s: int


def jobs_of(samples: Sequence[Sample]) -> list[FlowJob]:
    """The jobs that arrive after the first sample, in order of arrival; one that never starts is left out."""
    if not samples:
        return []
    first, last_s = samples[0], samples[-1].at_s
    waiting: deque[int | None] = deque([None] * first.pending_gpus)  # per GPU: number of its job; None: from before
    running: deque[int | None] = deque([None] * first.running_gpus)
    submitted: list[tuple[int, int]] = []
    began: dict[int, int] = {}
    ended: dict[int, int] = {}
    for before, after in itertools.pairwise(samples):
        arrived, starts, ends = _flow(before.running_gpus, after.running_gpus, before.pending_gpus, after.pending_gpus)
        jobs, _, _ = _flow(before.running_jobs, after.running_jobs, before.pending_jobs, after.pending_jobs)
        for gpus in _split(arrived, jobs):
            waiting.extend([len(submitted)] * gpus)
            submitted.append((after.at_s, gpus))
        for _ in range(starts):
            job = waiting.popleft()
            running.append(job)
            if job is not None:
                began.setdefault(job, after.at_s)
        for _ in range(ends):
            job = running.popleft()
            if job is not None:
                ended[job] = after.at_s
    still = {job for job in running if job is not None}
    return [
        FlowJob(at_s, gpus, (last_s if number in still else ended[number]) - began[number])
        for number, (at_s, gpus) in enumerate(submitted)
        if number in began
    ]


def _flow(running: int, running_after: int, pending: int, pending_after: int) -> tuple[int, int, int]:
    """(arrived, started, ended), as few as possible."""
    started, ended = max(running_after - running, 0), max(running - running_after, 0)
    arrived = pending_after - pending + started
    if arrived < 0:  # more left the queue than began to run on top: as many others ended
        started, ended, arrived = started - arrived, ended - arrived, 0
    return arrived, started, ended


def _split(gpus: int, jobs: int) -> list[int]:
    """As equal as possible; at least one job, none without a GPU."""
    if gpus <= 0:
        return []
    count = min(max(jobs, 1), gpus)
    return [gpus // count + (place < gpus % count) for place in range(count)]

"""What no trace tells and the rules table declares, the same for every row of a day: who wants a result by when, who reads what data.

Each draw is a job's own or a node's own, from the day's seed, so nothing else of the day moves. In words: docs/policy.md. Read next:
`rulebook.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schemas.jobs import Dataset, Kind
from services.replay.core.catalog import node_names
from services.replay.core.day import Day, DayJob
from services.replay.core.site import Site

DEADLINE_SHARE = 0.25
DEADLINE_FACTORS = (1.5, 6.0)
"""A quarter of all jobs want their result so many times their own duration after submission."""
DATASETS = 16
DATA_GIB = (50, 100, 200, 400)
"""One after the other; the largest is seven minutes' worth at 1000 MiB/s."""
COPIES_SHARE = 4
"""Every set of data is kept by a quarter of the nodes, by two at least where there are two."""
_DEADLINES, _READS, _COPIES = 11, 12, 13


def deadlines_of(day: Day) -> dict[str, int]:
    """By job; of those alone that declare one."""
    found = {}
    for at, job in enumerate(day.jobs):
        draw = _draw(day, _DEADLINES, at)
        declares, factor = draw.random(), draw.uniform(*DEADLINE_FACTORS)
        if declares < DEADLINE_SHARE:
            found[job.job_id] = job.arrival_ms + round(factor * job.run_s[job.requested] * 1000)
    return found


def data_of(day: Day) -> Site:
    """Everybody who trains reads one set of data, always the same one; which, is drawn by user."""
    names = node_names(day)
    copies = min(len(names), max(2, len(names) // COPIES_SHARE))
    kept: dict[str, set[str]] = {name: set() for name in names}
    for number in range(DATASETS):
        for place in _draw(day, _COPIES, number).permutation(len(names))[:copies].tolist():
            kept[names[place]].add(_dataset(number).name)
    users = sorted({_user(job) for job in day.jobs})
    of_user = {user: int(_draw(day, _READS, at).integers(DATASETS)) for at, user in enumerate(users)}
    reads = {job.job_id: (_dataset(of_user[_user(job)]),) for job in day.jobs if job.spec.kind is Kind.TRAINING}
    return Site(kept={name: frozenset(found) for name, found in kept.items()}, reads=reads)


def racks_of(day: Day, hosts: Sequence[int]) -> Site:
    """The first racks of a real cluster, by their hosts, as far as the pool's nodes go."""
    names = node_names(day)
    racks = [f"rack{number:02d}" for number, count in enumerate(hosts) for _ in range(count)]
    return Site(racks=dict(zip(names, racks, strict=False)))


def _dataset(number: int) -> Dataset:
    return Dataset(name=f"data{number:02d}", size_mib=DATA_GIB[number % len(DATA_GIB)] * 1024)


def _user(job: DayJob) -> str:
    return f"{job.spec.team}/{job.spec.user}"


def _draw(day: Day, what: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([day.seed, what, number]))

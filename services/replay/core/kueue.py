"""Kueue's admission by quota, as its documentation describes it, for comparison: ClusterQueues of one cohort, strict or best effort.

One ClusterQueue per team, all in one cohort; nominal quota = what the team is guaranteed, borrowing limit = what it may hold beyond.
One flavor, no preemption (`Never` is the default), no fair sharing (off by default). In every cycle each ClusterQueue offers its
head: by priority, then arrival. Heads that stay inside their nominal quota go first, then by priority, then arrival. A head fits if
its team stays inside nominal + borrowing limit and the cohort has so much left, and if a block is free: a workload without one
would be admitted and then hang as pending pods. A head inside its nominal quota that has been lent out reserves it for the rest of
the cycle. StrictFIFO: a head that isn't admitted keeps the rest of its queue waiting. BestEffortFIFO: it steps aside.
Read next: `slurm.py`, docs/policy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from services.replay.core.baselines import Scene, Starts
from services.replay.core.day import DayJob


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """`borrowing_limit` None: up to what the cohort has."""

    nominal: int
    borrowing_limit: int | None = None


NOTHING = ClusterQueue(nominal=0)
"""Of a team that no quota names: it lives on what others don't use."""
QuotasAt = Callable[[int], Mapping[str, ClusterQueue]]


def kueue(quotas_at: QuotasAt, *, strict: bool) -> Starts:
    """`quotas_at(now_ms)`: the ClusterQueue of each team at that moment."""

    def starts(scene: Scene) -> Iterator[tuple[DayJob, int]]:
        return _admitted(scene, quotas_at(scene.now_ms), strict)

    return starts


def _admitted(scene: Scene, queues: Mapping[str, ClusterQueue], strict: bool) -> Iterator[tuple[DayJob, int]]:
    cohort = sum(queue.nominal for queue in queues.values())
    used: dict[str, int] = {}
    for job, _, _ in scene.running.values():
        used[job.spec.team] = used.get(job.spec.team, 0) + job.requested
    waiting: dict[str, list[DayJob]] = {}
    for job in sorted(scene.queue, key=lambda job: -job.spec.priority):  # stable: by arrival inside a priority
        waiting.setdefault(job.spec.team, []).append(job)
    place = {job.job_id: number for number, job in enumerate(scene.queue)}
    while True:
        heads = [line[0] for _, line in sorted(waiting.items()) if line]
        heads.sort(key=lambda job: (_borrows(job, queues, used), -job.spec.priority, place[job.job_id]))
        reserved: dict[str, int] = {}
        any_admitted = False
        for job in heads:
            team = job.spec.team
            queue, kept = queues.get(team, NOTHING), sum(reserved.values())
            held, taken = used.get(team, 0), sum(used.values())
            has_quota = _fits(job, queue, held, taken, cohort)
            if has_quota and not _fits(job, queue, held + reserved.get(team, 0), taken + kept, cohort):
                continue  # somebody before it keeps this quota in this cycle: it is a head again in the next
            first = scene.free.lowest(job.requested) if has_quota else None
            if first is not None:
                yield job, first
                used[team] = held + job.requested
                any_admitted = True
            elif not has_quota and held + job.requested <= queue.nominal:
                reserved[team] = job.requested
            if first is not None or not strict:
                waiting[team].pop(0)
        if not any_admitted and (strict or not any(waiting.values())):
            return


def _borrows(job: DayJob, queues: Mapping[str, ClusterQueue], used: Mapping[str, int]) -> bool:
    team = job.spec.team
    return used.get(team, 0) + job.requested > queues.get(team, NOTHING).nominal


def _fits(job: DayJob, queue: ClusterQueue, held: int, cohort_used: int, cohort: int) -> bool:
    most = cohort if queue.borrowing_limit is None else queue.nominal + queue.borrowing_limit
    return held + job.requested <= most and cohort_used + job.requested <= cohort

"""What a decision asks of all jobs, kept up to date job by job: who holds GPUs, who waits, in which order. Derived, never stored.

Without it every decision walks over the whole queue several times, which at 18,000 waiting jobs costs more than planning.
Owns nothing: `State` is the truth, an index can be thrown away and built again at any moment (`index_of` does so), and all
it hands out is in an order that doesn't depend on its past. Refuses to be right about a state that was changed behind its
back: whoever changes jobs outside of `decide` calls `state.forget_index`. Read next: `decide.py`, `pose.py`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from schemas.forecasts import SizeForecast
from schemas.jobs import JobSpec
from services.allocator.core.config import Policy
from services.allocator.core.problem import PRIORITY_ONE, Option
from services.allocator.core.reasons import Reason
from services.allocator.core.state import INDEX_ATTRIBUTE, Job, State

ROWS_MIN = 64
_ARRIVAL_BITS = 40
"""Room for the arrival number below the aged priority in one sortable integer."""
Posed = tuple[JobSpec, list[SizeForecast], float, Policy, tuple[Option, ...]]

_AWAITING_FORECAST = Reason.AWAITING_FORECAST.public_name
_BEHIND_PRIORITY = Reason.BEHIND_PRIORITY.public_name


def aged_priorities(
    priority: NDArray[np.int64], submitted_ms: NDArray[np.int64], policy: Policy, now_ms: int
) -> NDArray:
    """Priorities in thousandths with aging. Monotone in the waiting time, capped."""
    waited_s = np.maximum(0.0, (now_ms - submitted_ms) / 1000 - policy.aging_after_s)
    bonus = np.minimum(policy.aging_max, waited_s / 3600 * policy.aging_per_hour)
    return priority * PRIORITY_ONE + (bonus * PRIORITY_ONE).astype(np.int64)


class Waiting:
    """The waiting jobs that accept the same pools, as columns. Rows of jobs that left are skipped and sometimes swept out."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}
        self._jobs: list[Job | None] = []
        self._columns = np.zeros((3, ROWS_MIN), np.int64)  # priority (0: left), submitted, arrival

    def __len__(self) -> int:
        return len(self._row)

    def add(self, job: Job) -> None:
        rows = len(self._jobs)
        if rows == self._columns.shape[1]:
            self._columns = np.concatenate((self._columns, np.zeros_like(self._columns)), axis=1)
        self._columns[:, rows] = (job.spec.priority, job.submitted_ms, job.arrival)
        self._row[job.job_id] = rows
        self._jobs.append(job)

    def remove(self, job_id: str) -> None:
        row = self._row.pop(job_id)
        self._columns[0, row] = 0
        self._jobs[row] = None
        if len(self._jobs) > ROWS_MIN and len(self._row) * 2 < len(self._jobs):
            self._sweep()

    def jobs(self) -> list[Job]:
        """All of them, in no particular order."""
        return [job for job in self._jobs if job is not None]

    def ranked(self, policy: Policy, now_ms: int) -> tuple[NDArray[np.int64], list[Job | None]]:
        """A sortable key per row (aged priority, then the earlier arrival; negative: no job) and the rows' jobs."""
        priority, submitted_ms, arrival = self._columns[:, : len(self._jobs)]
        aged = aged_priorities(priority, submitted_ms, policy, now_ms)
        keys = (aged << _ARRIVAL_BITS) - arrival
        keys[priority == 0] = -1
        return keys, self._jobs

    def _sweep(self) -> None:
        left = self.jobs()
        self.__init__()  # type: ignore[misc]
        for job in left:
            self.add(job)


class Index:
    """`placed`: jobs with parts. `awaiting`: told to wait for their forecast. `delayed`: with a back-off.

    `unsettled`: waiting jobs whose published reason is anything but plainly "behind others". `posed`: what `pose.py` made of
    a job's offers, with what it was made from. All by job id.
    """

    def __init__(self, state: State) -> None:
        self.placed: dict[str, Job] = {}
        self.awaiting: dict[str, Job] = {}
        self.delayed: dict[str, Job] = {}
        self.unsettled: dict[str, Job] = {}
        self.waiting: dict[tuple[str, ...], Waiting] = {}
        self.posed: dict[str, Posed] = {}
        self._arrivals: dict[int, list[int]] = {}  # of waiting jobs, by priority, ascending
        self._known: dict[str, tuple[int, int, tuple[str, ...]]] = {}
        self._state = state
        self.touch(state.jobs)

    def touch(self, job_ids: Iterable[str]) -> None:
        """Look again at jobs that were, may have been, or are no more."""
        jobs = self._state.jobs
        for job_id in job_ids:
            job = jobs.get(job_id)
            if job is None or job.parts:
                _keep(self.placed, job_id, job, job is not None)
                self._leave_queue(job_id)
                continue
            self.placed.pop(job_id, None)
            self._enter_queue(job)
            _keep(self.awaiting, job_id, job, job.reason == _AWAITING_FORECAST)
            _keep(self.delayed, job_id, job, job.not_before_ms > 0)
            _keep(self.unsettled, job_id, job, not _is_behind(job))
        assert len(self._known) + len(self.placed) == len(jobs), (
            "the state was changed behind its index: call forget_index"
        )

    def in_order(self, jobs: Iterable[Job]) -> list[Job]:
        """By arrival: an order that doesn't depend on what happened to the index before."""
        return sorted(jobs, key=lambda job: job.arrival)

    def holders(self) -> list[Job]:
        """Jobs with parts, by arrival."""
        return self.in_order(self.placed.values())

    def count_waiting(self) -> int:
        return len(self._known)

    def first_waiting(
        self, pool: str, count_max: int, excluded: frozenset[str], policy: Policy, now_ms: int
    ) -> tuple[list[Job], bool]:
        """The best `count_max` jobs that accept `pool`, best first, by aged priority and arrival, and whether there are more.

        If all fit they come by arrival.
        """
        groups = [group for pools, group in self.waiting.items() if pool in pools]
        if sum(map(len, groups)) - len(excluded) <= count_max:
            jobs = self.in_order(job for group in groups for job in group.jobs() if job.job_id not in excluded)
            if len(jobs) <= count_max:
                return jobs, False
        ranked = [group.ranked(policy, now_ms) for group in groups]
        keys = np.concatenate([keys for keys, _ in ranked])
        rows = [job for _, jobs in ranked for job in jobs]
        wanted = min(len(keys), count_max + len(excluded) + 1)
        best = np.argpartition(keys, len(keys) - wanted)[len(keys) - wanted :]
        best = best[np.argsort(-keys[best])]
        found = [job for row in best.tolist() if (job := rows[row]) is not None and job.job_id not in excluded]
        return found[:count_max], len(found) > count_max

    def position(self, job: Job) -> int | None:
        """Place in the queue by priority, then arrival; 1 is next. None: it doesn't wait."""
        known = self._known.get(job.job_id)
        if known is None:
            return None
        priority, arrival, _ = known
        ahead = sum(len(arrivals) for other, arrivals in self._arrivals.items() if other > priority)
        return ahead + bisect_left(self._arrivals[priority], arrival) + 1

    def _enter_queue(self, job: Job) -> None:
        entry = (job.spec.priority, job.arrival, tuple(job.pools))
        before = self._known.get(job.job_id)
        if before == entry:
            return
        if before is not None:
            self._leave_queue(job.job_id)
        priority, arrival, pools = entry
        insort(self._arrivals.setdefault(priority, []), arrival)
        self.waiting.setdefault(pools, Waiting()).add(job)
        self._known[job.job_id] = entry

    def _leave_queue(self, job_id: str) -> None:
        before = self._known.pop(job_id, None)
        if before is None:
            return
        priority, arrival, pools = before
        arrivals = self._arrivals[priority]
        del arrivals[bisect_left(arrivals, arrival)]
        self.waiting[pools].remove(job_id)
        for kept in (self.awaiting, self.delayed, self.unsettled, self.posed):
            kept.pop(job_id, None)


def _is_behind(job: Job) -> bool:
    return job.reason == _BEHIND_PRIORITY and job.planned_start_p50_ms is None


def _keep(kept: dict[str, Job], job_id: str, job: Job | None, belongs: bool) -> None:
    if belongs and job is not None:
        kept[job_id] = job
    else:
        kept.pop(job_id, None)


def index_of(state: State) -> Index:
    """The state's index; built in one pass over the jobs if it has none (restored, or moved on by a reader)."""
    found: Index | None = state.__dict__.get(INDEX_ATTRIBUTE)
    if found is None:
        found = state.__dict__[INDEX_ATTRIBUTE] = Index(state)
    return found

"""What a decision asks of all jobs, kept up to date job by job: who holds GPUs, who waits, in which order. Derived, never stored.

Without it every decision walks over the whole queue several times, which at 18,000 waiting jobs costs more than planning.
Owns nothing: `State` is the truth, an index can be thrown away and built again at any moment (`index_of` does so), and all
it hands out is in an order that doesn't depend on its past. Refuses to be right about a state that was changed behind its
back: whoever changes jobs outside of `decide` calls `state.forget_index`. Read next: `decide.py`, `pose.py`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.forecasts import SizeForecast
from schemas.jobs import JobSpec
from schemas.rules import Aging
from services.allocator.core.config import Policy
from services.allocator.core.reasons import Reason
from services.allocator.core.shares import ONE
from services.allocator.core.standing import GUARANTEED_PRIORITY, ranked_priorities
from services.allocator.core.state import INDEX_ATTRIBUTE, Job, State

if TYPE_CHECKING:  # the index is also read where nothing is planned, and the planner's compiler takes a while to load
    from services.allocator.core.plan import Plan
    from services.allocator.core.problem import Option, Problem

    Posed = tuple[JobSpec, list[SizeForecast], float, Policy, dict[str, tuple[Option, ...]]]

ROWS_MIN = 64
_ARRIVAL_BITS = 40
"""Room for the arrival number below the aged priority in one sortable integer."""

_INSIDE = GUARANTEED_PRIORITY << _ARRIVAL_BITS

Lane = tuple[tuple[str, ...], str]
"""Acceptable pools and team of waiting jobs that are ranked together."""

_AWAITING_FORECAST = Reason.AWAITING_FORECAST.public_name
_BEHIND_PRIORITY = Reason.BEHIND_PRIORITY.public_name


class Waiting:
    """One team's waiting jobs that accept the same pools, as columns. Rows of jobs that left are skipped and sometimes swept out."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}
        self._jobs: list[Job | None] = []
        self._columns = np.zeros((5, ROWS_MIN), np.int64)  # priority (0: left), submitted, deadline, arrival, restores

    def __len__(self) -> int:
        return len(self._row)

    def add(self, job: Job) -> None:
        rows = len(self._jobs)
        if rows == self._columns.shape[1]:
            self._columns = np.concatenate((self._columns, np.zeros_like(self._columns)), axis=1)
        deadline_ms = job.spec.deadline_ms or 0
        self._columns[:, rows] = (job.spec.priority, job.submitted_ms, deadline_ms, job.arrival, job.restores)
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

    def ranked(self, aging: Aging, now_ms: int, factor: int) -> tuple[NDArray[np.int64], list[Job | None]]:
        """A sortable key per row (priority with aging and share, then the earlier arrival; negative: no job) and the rows' jobs."""
        priority, submitted_ms, deadline_ms, arrival, restores = self._columns[:, : len(self._jobs)]
        ranked = ranked_priorities(priority, submitted_ms, deadline_ms, restores, aging, now_ms, factor)
        keys = (ranked << _ARRIVAL_BITS) - arrival
        keys[priority == 0] = -1
        return keys, self._jobs

    def _sweep(self) -> None:
        left = self.jobs()
        self.__init__()  # type: ignore[misc]
        for job in left:
            self.add(job)


class TeamOrder(NamedTuple):
    """What the rules say about whole teams when jobs are chosen for planning: share factors in thousandths, how many jobs at
    most of a team whose GPUs are capped, and how many GPUs of its guarantee a team doesn't hold. Teams without an entry: one, all, none."""

    factors: dict[str, int]
    most: dict[str, int]
    inside: dict[str, int]


def _best(
    ranked: list[tuple[NDArray[np.int64], list[Job | None]]], wanted: int, excluded: frozenset[str]
) -> list[tuple[int, Job]]:
    """The `wanted` rows with the largest keys, largest first, with their keys."""
    keys = np.concatenate([keys for keys, _ in ranked])
    rows = [job for _, jobs in ranked for job in jobs]
    wanted = min(len(keys), wanted)
    best = np.argpartition(keys, len(keys) - wanted)[len(keys) - wanted :]
    best = best[np.argsort(-keys[best])]
    return [
        (int(keys[row]), job) for row in best.tolist() if (job := rows[row]) is not None and job.job_id not in excluded
    ]


class Index:
    """`placed`: jobs with parts. `awaiting`: told to wait for their forecast. `delayed`: with a back-off.

    `unsettled`: waiting jobs whose published reason is anything but plainly "behind others". `posed`: what `pose.py` made of
    a job's offers in each pool, with what it was made from. All by job id. `planned`: by pool, see `replanning.py`.
    """

    def __init__(self, state: State) -> None:
        self.placed: dict[str, Job] = {}
        self.awaiting: dict[str, Job] = {}
        self.delayed: dict[str, Job] = {}
        self.unsettled: dict[str, Job] = {}
        self.waiting: dict[Lane, Waiting] = {}
        self.posed: dict[str, Posed] = {}
        self.planned: dict[str, tuple[Problem, int, int, Plan]] = {}
        self._arrivals: dict[int, list[int]] = {}  # of waiting jobs, by priority, ascending
        self._known: dict[str, tuple[int, int, Lane]] = {}
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

    def teams_waiting(self) -> list[str]:
        """Teams with waiting jobs, in no particular order."""
        return [team for (_, team), group in self.waiting.items() if len(group)]

    def first_waiting(
        self, pool: str, count_max: int, excluded: frozenset[str], aging: Aging, now_ms: int, order: TeamOrder
    ) -> tuple[list[Job], bool]:
        """The best `count_max` jobs that accept `pool`, best first, by priority with aging and share, then arrival, and whether there
        are more. Of a team that may hold few GPUs only so many that others are not crowded out; of one that is guaranteed more than it
        holds the best are before all others, as many as could be inside. If all fit they come by arrival.
        """
        lanes = [(team, group) for (pools, team), group in sorted(self.waiting.items()) if pool in pools]
        if sum(len(group) for _, group in lanes) - len(excluded) <= count_max and not order.most:
            jobs = self.in_order(job for _, group in lanes for job in group.jobs() if job.job_id not in excluded)
            if len(jobs) <= count_max:
                return jobs, False
        found: list[tuple[int, Job]] = []
        for team in sorted({team for team, _ in lanes}):
            most = min(count_max, order.most.get(team, count_max))
            ranked = [group.ranked(aging, now_ms, order.factors.get(team, ONE)) for of, group in lanes if of == team]
            of_team = _best(ranked, most + len(excluded) + 1, excluded)[: most + 1]
            first = order.inside.get(team, 0)
            found += [(key + _INSIDE, job) for key, job in of_team[:first]] + of_team[first:]
        found.sort(key=lambda item: -item[0])
        best = self._within(found, order.most)
        return best[:count_max], len(best) > count_max or len(found) > len(best)

    @staticmethod
    def _within(found: list[tuple[int, Job]], most: dict[str, int]) -> list[Job]:
        """Without the one job more that each team was asked for to learn whether there are more."""
        left = dict(most)
        kept = []
        for _, job in found:
            team = job.spec.team
            if team in left:
                left[team] -= 1
                if left[team] < 0:
                    continue
            kept.append(job)
        return kept

    def position(self, job: Job) -> int | None:
        """Place in the queue by priority, then arrival; 1 is next. None: it doesn't wait."""
        known = self._known.get(job.job_id)
        if known is None:
            return None
        priority, arrival, _ = known
        ahead = sum(len(arrivals) for other, arrivals in self._arrivals.items() if other > priority)
        return ahead + bisect_left(self._arrivals[priority], arrival) + 1

    def _enter_queue(self, job: Job) -> None:
        entry = (job.spec.priority, job.arrival, (tuple(job.pools), job.spec.team))
        before = self._known.get(job.job_id)
        if before == entry:
            return
        if before is not None:
            self._leave_queue(job.job_id)
        priority, arrival, lane = entry
        insort(self._arrivals.setdefault(priority, []), arrival)
        self.waiting.setdefault(lane, Waiting()).add(job)
        self._known[job.job_id] = entry

    def _leave_queue(self, job_id: str) -> None:
        before = self._known.pop(job_id, None)
        if before is None:
            return
        priority, arrival, lane = before
        arrivals = self._arrivals[priority]
        del arrivals[bisect_left(arrivals, arrival)]
        self.waiting[lane].remove(job_id)
        if not len(self.waiting[lane]):
            del self.waiting[lane]
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

"""Jobs that could start now in another pool they accept and are kept for the one they are planned in; and that in a sentence.

Reads the finished plans and chooses nothing (`pool_choice.py` does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.allocator.core.columns import OptionColumn
from services.allocator.core.plan import Plan
from services.allocator.core.pool_choice import Choice
from services.allocator.core.pose import Posed
from services.allocator.core.speeds import speed_in
from services.allocator.core.state import Job
from services.allocator.core.waiting import Openings


def kept_for_better(choice: Choice, posed_pools: Sequence[Posed], plans: Sequence[Plan]) -> Iterator[str]:
    """Ids of jobs with a planned start for which another pool has a free block now, long enough. Jobs under a cap there don't count."""
    if not choice.pool_of:
        return
    openings: dict[str, Openings] = {}
    by_pool = {posed.pool: (posed, plan) for posed, plan in zip(posed_pools, plans, strict=True)}
    rows_in = {
        pool: {job_id: row for row, job_id in enumerate(one.problem.job_ids)} for pool, one in choice.posed.items()
    }
    for posed, plan in zip(posed_pools, plans, strict=True):
        for row, (job, start) in enumerate(zip(posed.queued, plan.start.tolist(), strict=True)):
            if start <= 0 or choice.pool_of.get(job.job_id) != posed.pool or posed.problem.job_refusal[row]:
                continue
            for pool in job.pools:
                if pool == posed.pool or job.job_id not in rows_in.get(pool, {}):
                    continue
                if pool not in openings:
                    openings[pool] = Openings(by_pool[pool][0].problem, by_pool[pool][1])
                if _has_block(choice.posed[pool], rows_in[pool][job.job_id], openings[pool]):
                    yield job.job_id
                    break


def _has_block(everybody: Posed, row: int, openings: Openings) -> bool:
    problem = everybody.problem
    if problem.job_refusal[row] or (problem.job_caps[row] >= 0).any():
        return False
    options = problem.option_table[int(problem.option_ptr[row]) : int(problem.option_ptr[row + 1])]
    return any(
        openings.has_block("free", int(option[OptionColumn.CLASS]), int(option[OptionColumn.HOLD]))
        for option in options
        if option[OptionColumn.CLASS] >= 0
    )


def pool_sentence(job: Job) -> str:
    """Which pools a waiting job accepts, how fast it is there, and where it is planned; empty if it accepts one."""
    if len(job.pools) < 2:
        return ""
    accepted = ", ".join(f"{pool} ({_times(speed_in(job, pool))})" if job.speeds else pool for pool in job.pools)
    planned = f"; now it is planned in {job.planned_pool}" if job.planned_pool else ""
    return f" It accepts {accepted}{planned}."


def _times(speed: float) -> str:
    return f"{speed:.3g} times as fast"

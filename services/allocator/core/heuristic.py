"""Fast mode: problem in, legal plan out, deterministic for (problem, iterations, seed).

The work happens in `kernels/`; this file lays the problem out for them and turns their arrays into a `Plan`. Budgets
are candidate grids, never time. The first legal grid costs `iterations=0`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from services.allocator.core.kernels.board import FIRST, OPTION, START, Facts
from services.allocator.core.kernels.follow import follow
from services.allocator.core.kernels.repair import repair
from services.allocator.core.kernels.search import solve
from services.allocator.core.plan import Plan, app_counts
from services.allocator.core.problem import Ints, Problem
from services.allocator.core.value import plan_value
from services.allocator.core.waiting import reasons_of

WORD_STEPS = 64
CANDIDATE_NS_PER_JOB = 190  # placing one job again in a pool of no size
CANDIDATE_NS_PER_GPU = 8  # and what every GPU adds to it
BUDGET_NS_BASE = 500_000
BUDGET_NS_PER_GPU = 14_000
BUDGET_NS_MAX = 10_000_000
ITERATIONS_MAX = 400  # small boards have converged by then
DECISION_BUDGETS = 4
"""Times the usual budget for a decision: about 6 ms of search at 64 GPUs. `Policy.iterations` caps the search where few jobs
wait, this where hundreds do and every candidate grid costs half a millisecond."""
RETRIES = 256
"""Jobs without a place that one freed block is offered to, the most valuable first: 1 ms in the largest pools."""
FINISH_SHARE = 75  # hundredths of an average GPU-step that a finished job is worth in near ties


def facts_of(problem: Problem) -> Facts:
    """The kernels' view of a problem. Shares the arrays, copies nothing."""
    return Facts(
        steps=problem.steps,
        two=problem.steps > WORD_STEPS,
        gpu_state=problem.gpu_state,
        shape=problem.topology.packed,
        jobs=problem.job_table,
        option_ptr=problem.option_ptr,
        options=problem.option_table,
        running=problem.running_table,
        apps=problem.app_table,
        demand=problem.app_demand,
        penalty=problem.app_penalty,
        held_app=problem.held_app,
        reservations=problem.reservations,
        weight_sum=problem.weight_sum,
        job_caps=problem.job_caps,
        cap_gpus=problem.cap_gpus,
        cap_used=problem.cap_used,
        domains=problem.domains,
        lacking=problem.lacking,
    )


def plan_fast(problem: Problem, iterations: int, seed: int = 0) -> Plan:
    """Plan the window: first legal grid, then `iterations` candidate grids of local search."""
    return with_reasons(problem, plan_compared(problem, iterations, seed))


def plan_compared(problem: Problem, iterations: int, seed: int = 0) -> Plan:
    """The plan of `plan_fast` without reasons, which cost as much as a small search: for plans that are only compared."""
    place, segments = solve(facts_of(problem), iterations, seed, FINISH_SHARE)
    return _bare_plan(problem, "fast", place, segments)


def plan_repaired(problem: Problem, earlier: Plan, *, retries: int = 0) -> Plan:
    """Keep the earlier plan of the same pool and window as far as it is still legal and place only what is new.

    The problem's first jobs are those of the earlier plan, in the same order and with the same options; jobs after them
    are new. Applications must have the demand, order and held GPUs they had. `retries`: where something became free, so many
    of the jobs that had no place are tried (`RETRIES` finds nearly all there is to find).
    """
    kept = kept_rows(earlier.start, earlier.first_gpu, earlier.option)
    place, segments = repair(facts_of(problem), kept, earlier.segments, len(kept), retries, FINISH_SHARE)
    return finished_plan(problem, "fast", place, segments)


def plan_followed(problem: Problem, kept: Ints, segments: Ints, iterations: int, seed: int = 0) -> list[Plan]:
    """Two plans that begin with what is known of an earlier one: kept as it was, and each job as early as it fits, improved.

    `kept`: one row per job of the problem (`kept_rows`), start -1 where nothing is known. Jobs may have any legal shape;
    `segments` may break every rule of applications but "one on a GPU": whoever uses the plans verifies them.
    """
    facts = facts_of(problem)
    as_it_was = repair(facts, kept, segments, len(kept), problem.jobs, FINISH_SHARE)
    pulled = follow(facts, kept, segments, iterations, seed, FINISH_SHARE)
    return [finished_plan(problem, "followed", *found) for found in (as_it_was, pulled)]


def kept_rows(start: Ints, first_gpu: Ints, option: Ints) -> Ints:
    """Rows of start, first GPU, option for the kernels."""
    return np.ascontiguousarray(np.stack((start, first_gpu, option, np.zeros_like(start)), axis=1))


def default_iterations(problem: Problem) -> int:
    """Candidate grids that fit the usual time budget on one core: about 1 ms for a node or two, 2 ms for 64 GPUs.

    A function of the problem's size only, so that plans stay reproducible. The constants are measured costs.
    """
    jobs, gpus = problem.jobs, problem.gpus
    if jobs < 2 or gpus == 0:
        return 0
    words = 2 if problem.steps > WORD_STEPS else 1
    candidate_ns = jobs * (CANDIDATE_NS_PER_JOB + CANDIDATE_NS_PER_GPU * gpus * words)
    budget_ns = min(BUDGET_NS_MAX, BUDGET_NS_BASE + BUDGET_NS_PER_GPU * gpus)
    return min(ITERATIONS_MAX, budget_ns // candidate_ns)


def decision_iterations(problem: Problem, iterations_max: int) -> int:
    """Candidate grids of one decision: a function of the problem's size alone, so that a decision replays to the same bytes."""
    return min(iterations_max, DECISION_BUDGETS * default_iterations(problem))


def finished_plan(problem: Problem, mode: str, place: Ints, segments: Ints, promised: Ints | None = None) -> Plan:
    """A `Plan` with value and reasons from the bare grid: job rows of start, first GPU, option, gain. `promised`: blocks that others
    were kept off (`waiting.reasons_of`)."""
    return with_reasons(problem, _bare_plan(problem, mode, place, segments), promised)


def with_reasons(problem: Problem, plan: Plan, promised: Ints | None = None) -> Plan:
    """A plan that was only compared, as `plan_fast` would have given it: why those wait that don't start now."""
    return replace(plan, reason=reasons_of(problem, plan, promised))


def _bare_plan(problem: Problem, mode: str, place: Ints, segments: Ints) -> Plan:
    start = np.ascontiguousarray(place[:, START])
    placed = start >= 0
    first = np.where(placed, place[:, FIRST], -1)
    option = np.where(placed, place[:, OPTION], -1)
    value = plan_value(problem, start, option, app_counts(problem, segments))
    return Plan(mode, start, first, option, segments, value, np.zeros(len(start), np.int64))

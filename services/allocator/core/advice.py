"""Full mode inside the running allocator: what it is asked, how its answer is written down, and how later decisions use it.

A question is the problem of one pool as it is after a decision. Its answer comes back as an input of a later decision
(`PlanImproved`), in domain time and by names, so that it still means something when the state has moved on: what is left
of it is where the planner's search begins (`kernels/follow.py`), and it counts only where the plan it leads to is legal
and worth more than fast mode's own. No answer is ever needed: without one decisions are fast mode's.

Owns no solver and no clock: `shell/full_mode.py` asks. Read `commit.py` for where plans become effects.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.decisions import PlanImproved, PlannedBlock, PlannedHold
from schemas.records import Now
from services.allocator.core.config import Policy
from services.allocator.core.heuristic import kept_rows, plan_followed
from services.allocator.core.plan import Plan
from services.allocator.core.pose import Posed, pose
from services.allocator.core.problem import Ints, Problem
from services.allocator.core.state import State, has_aged
from services.allocator.core.topology import size_class
from services.allocator.core.verify import verify_plan

ASKED_GPUS_MAX = 1024
"""Larger pools aren't asked about: the exact model finds nothing there, and posing alone would hold up decisions."""
ASKED_JOBS_MIN = 2
"""One waiting job has an obvious place."""
BLOCKS_MAX = 1000
"""Planned blocks per answer, the earliest: about 100 KiB of a record."""


@dataclass(frozen=True, slots=True)
class Question:
    """The problem of a pool after decision `sequence`, and what is known of a plan for it (see `plan_followed`)."""

    cluster: str
    sequence: int
    asked_ms: int
    posed: Posed
    kept: Ints
    segments: Ints


def question_of(
    state: State, pool: str, memory_mib: int, policy: Policy, now: Now, elsewhere: frozenset[str] = frozenset()
) -> Question | None:
    """What to ask about this pool now; None if there is nothing to find out. `elsewhere`: jobs planned in another pool."""
    if sum(node.size for node in state.nodes.values() if node.pool == pool) > ASKED_GPUS_MAX:
        return None
    posed = pose(state, pool, memory_mib, policy, now, frozenset(), elsewhere)
    if int((posed.problem.job_refusal == 0).sum()) < ASKED_JOBS_MIN:
        return None
    advice = state.advice.get(pool)
    kept, segments = _nothing_known(posed.problem) if advice is None else known_of(advice, posed, policy, now)
    return Question(state.cluster, state.sequence, now.domain_ms, posed, kept, segments)


def improved(question: Question, plan: Plan, gain: float, bound_gap: float | None, policy: Policy) -> PlanImproved:
    """The answer as an event."""
    posed, step_ms = question.posed, policy.step_ms
    placed = np.flatnonzero(plan.start >= 0)
    first = placed[np.argsort(plan.start[placed], kind="stable")][:BLOCKS_MAX]
    blocks = []
    for job in first.tolist():
        node, gpu = _named(posed, int(plan.first_gpu[job]))
        gpus, start_ms = (
            int(posed.problem.option_gpus[plan.option[job]]),
            question.asked_ms + int(plan.start[job]) * step_ms,
        )
        blocks.append(PlannedBlock(job_id=posed.problem.job_ids[job], gpus=gpus, node=node, gpu=gpu, start_ms=start_ms))
    holds = []
    for app, number, start, end in plan.segments.tolist():
        node, gpu = _named(posed, number)
        from_ms, until_ms = question.asked_ms + start * step_ms, question.asked_ms + end * step_ms
        app_id = posed.problem.app_ids[app]
        holds.append(PlannedHold(app_id=app_id, node=node, gpu=gpu, from_ms=from_ms, until_ms=until_ms))
    return PlanImproved(
        cluster=question.cluster,
        pool=posed.pool,
        sequence=question.sequence,
        asked_ms=question.asked_ms,
        until_ms=question.asked_ms + posed.problem.steps * step_ms,
        blocks=blocks,
        holds=holds,
        gain=gain,
        bound_gap=bound_gap,
    )


def _named(posed: Posed, number: int) -> tuple[str, int]:
    """(node, local index) of a grid number."""
    (placed,) = posed.layout.local([number])
    return placed.node, placed.gpus[0]


def is_stale(event: PlanImproved, state: State, now_ms: int) -> bool:
    """Nothing in it can help any more: too old, older than what is known, or none of its jobs still waits."""
    known = state.advice.get(event.pool)
    if has_aged(event, now_ms) or (known is not None and known.sequence >= event.sequence):
        return True
    jobs = state.jobs
    return not any(block.job_id in jobs and not jobs[block.job_id].parts for block in event.blocks)


def better_plan(
    posed: Posed, advice: PlanImproved | None, plan: Plan, policy: Policy, now: Now, iterations: int
) -> Plan:
    """`plan`, or a legal one that the advice leads to, if that is worth more."""
    if advice is None or posed.problem.gpus > ASKED_GPUS_MAX:
        return plan
    problem = posed.problem
    kept, segments = known_of(advice, posed, policy, now)
    if not (kept[:, 0] >= 0).any():
        return plan
    if not _may_hold(problem, segments):
        segments = plan.segments
    for found in plan_followed(problem, kept, segments, iterations, policy.seed):
        if found.value > plan.value and not verify_plan(problem, found):
            plan = found
    return plan


def _nothing_known(problem: Problem) -> tuple[Ints, Ints]:
    unknown = np.full(problem.jobs, -1, np.int64)
    return kept_rows(unknown, unknown, unknown), np.zeros((0, 4), np.int64)


def _may_hold(problem: Problem, segments: Ints) -> bool:
    """Whether these are legal holds of the applications, whatever batch work does."""
    unknown = np.full(problem.jobs, -1, np.int64)
    bare = Plan("followed", unknown, unknown, unknown, segments, 0, unknown)
    return not verify_plan(problem, bare)


def known_of(advice: PlanImproved, posed: Posed, policy: Policy, now: Now) -> tuple[Ints, Ints]:
    """What the advice says about the jobs and applications of this problem: rows per job, and segments.

    Moments become steps from now, rounded up as remaining durations are, so that what fitted still fits. Jobs, nodes and
    sizes that are no more are left out.
    """
    problem, step_ms = posed.problem, policy.step_ms
    row_of = {name: row for row, name in enumerate(problem.job_ids)}
    start, first, option = (np.full(problem.jobs, -1, np.int64) for _ in range(3))
    for block in advice.blocks:
        row = row_of.get(block.job_id)
        number = _number(posed, block.node, block.gpu)
        step = _step(block.start_ms, now.domain_ms, step_ms)
        chosen = -1 if row is None else _option(problem, row, block.gpus)
        if row is None or chosen < 0 or step >= problem.steps or not _is_block(problem, number, block.gpus):
            continue
        start[row], first[row], option[row] = step, number, chosen
    return kept_rows(start, first, option), _segments_of(advice, posed, step_ms, now)


def _segments_of(advice: PlanImproved, posed: Posed, step_ms: int, now: Now) -> Ints:
    app_of = {name: row for row, name in enumerate(posed.problem.app_ids)}
    steps, rows = posed.problem.steps, []
    for hold in advice.holds:
        app, number = app_of.get(hold.app_id), _number(posed, hold.node, hold.gpu)
        begin = _step(hold.from_ms, now.domain_ms, step_ms)
        end = steps if hold.until_ms == advice.until_ms else min(steps, _step(hold.until_ms, now.domain_ms, step_ms))
        if app is not None and number >= 0 and begin < end:
            rows.append((app, number, begin, end))
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def _step(moment_ms: int, now_ms: int, step_ms: int) -> int:
    return max(0, -((now_ms - moment_ms) // step_ms))


def _number(posed: Posed, node: str, gpu: int) -> int:
    """The grid number of a GPU, or -1 if there is none of this name any more."""
    first = posed.layout.first.get(node)
    if first is None or gpu >= next(known.size for known in posed.layout.nodes if known.node == node):
        return -1
    return first + gpu


def _option(problem: Problem, row: int, gpus: int) -> int:
    """The option row of a job with this size, or -1."""
    low, high = int(problem.option_ptr[row]), int(problem.option_ptr[row + 1])
    found = np.flatnonzero(problem.option_gpus[low:high] == gpus)
    return low + int(found[0]) if len(found) else -1


def _is_block(problem: Problem, first: int, gpus: int) -> bool:
    level, topology = size_class(gpus), problem.topology
    if first < 0 or not 0 <= level < topology.classes:
        return False
    blocks = topology.blocks(level)
    at = int(np.searchsorted(blocks, first))
    return at < len(blocks) and int(blocks[at]) == first

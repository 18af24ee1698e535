"""Policy preemption: which running jobs stop for which waiting one, if the rules of its queue allow it. Pure.

A job may take a place only from queues that are `preemptible`, from jobs that checkpoint and have run for the queue's
`runtime_min_s` since they were (re)started, never twice from the same one, from none more often than its own queue allows, and only
if the plan without its victims really starts it now and that saves more waiting than saving their work costs. Of all blocks it takes
the one with the least work at stake: GPU-seconds since the last checkpoint, and those of writing one. The block is then held for it:
`held_blocks` are reservations to everybody else, `due_starts` places it when the last victim has gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.decisions import Effect, Preempted
from schemas.jobs import CheckpointMode
from schemas.records import Now
from schemas.rules import QueueRules
from services.allocator.core.caps import without_running
from services.allocator.core.claims import claims_first
from services.allocator.core.config import Policy
from services.allocator.core.fixed_point import PRIORITY_ONE
from services.allocator.core.gpu_states import GpuState
from services.allocator.core.held import protected_until_ms
from services.allocator.core.heuristic import decision_iterations, plan_fast
from services.allocator.core.index import index_of
from services.allocator.core.plan import Plan
from services.allocator.core.pose import Posed
from services.allocator.core.problem import Ints, Problem
from services.allocator.core.starts import start_on
from services.allocator.core.state import PARTS_ALIVE, Job, Preemption, State

STOP_WAIT_S = 900.0
"""Beyond the victims' own checkpoint waits: to stop, to report, to recover a lost report. Then the block is free for all."""
TRIED_MAX = 4
"""Waiting jobs for which a place is looked for per decision, best first; each costs a plan."""


@dataclass(frozen=True, slots=True)
class _Victim:
    job: Job
    cost: int  # GPU-seconds at stake

    @property
    def saving(self) -> float:
        """What a stop costs, as it saves its work first: priority × GPU-seconds of writing the checkpoint."""
        return self.job.spec.priority * PRIORITY_ONE * self.job.gpus * self.job.spec.checkpoint.cost_s


def preemptions(
    state: State, posed: Posed, plan: Plan, given: Ints, said: list[Effect], policy: Policy, now: Now
) -> list[Effect]:
    """At most one preemption in this pool: the best waiting job that may take a place and would start by it. `given`: grid numbers
    that this very decision gives to others; a block can't be held on them. `said`: its effects in other pools."""
    tried = 0
    leaving = _leaving(state, said)
    for row in np.argsort(-posed.problem.job_priority, kind="stable").tolist():
        job = posed.queued[row]
        rules = state.rules.queues.get(job.spec.queue)
        if rules is None or not rules.preempts or plan.start[row] == 0 or posed.problem.job_refusal[row] != 0:
            continue
        tried += 1
        places = rules.victims_max - leaving.get(job.spec.queue, 0)
        steps = int(plan.start[row]) if plan.start[row] > 0 else posed.problem.steps
        found = _for_job(state, posed, row, job, rules, given, places, steps, policy, now)
        if found is not None:
            return [found]
        if tried == TRIED_MAX:
            break
    return []


def due_starts(state: State, policy: Policy, now: Now) -> list[Effect]:
    """Jobs whose held block is free now, and still takes something new."""
    effects: list[Effect] = []
    for job_id, held in state.preemptions.items():
        job = state.jobs.get(job_id)
        if job is None or job.parts or held.until_ms <= now.domain_ms or not _is_free(state, held):
            continue
        effects.append(start_on(state, job, held.pool, held.placed, policy))
    return effects


def _is_free(state: State, held: Preemption) -> bool:
    cards = {(part.node, gpu) for part in held.placed for gpu in part.gpus}
    for node_id, gpu in cards:
        node = state.nodes.get(node_id)
        if node is None or not node.takes_new:
            return False
        if gpu >= node.size or not node.healthy[gpu] or gpu in node.quarantined or gpu in node.absent:
            return False
    held_by_jobs = (part for job in index_of(state).holders() for part in job.parts if part.status in PARTS_ALIVE)
    held_by_apps = (part for app in state.apps.values() for part in app.parts)
    return not any(
        (part.node, gpu) in cards for parts in (held_by_jobs, held_by_apps) for part in parts for gpu in part.gpus
    )


def _leaving(state: State, said: list[Effect]) -> dict[str, int]:
    """By queue, how many jobs are being stopped for its jobs, this decision's in other pools among them."""
    blocks = [(job_id, held.victims) for job_id, held in state.preemptions.items()]
    blocks += [(effect.job_id, effect.victims) for effect in said if isinstance(effect, Preempted)]
    found: dict[str, int] = {}
    for job_id, victims in blocks:
        if job_id in state.jobs:
            queue = state.jobs[job_id].spec.queue
            found[queue] = found.get(queue, 0) + len(victims)
    return found


def _for_job(
    state: State,
    posed: Posed,
    row: int,
    job: Job,
    rules: QueueRules,
    given: Ints,
    places: int,
    steps: int,
    policy: Policy,
    now: Now,
) -> Preempted | None:
    """`places`: victims it may have. `steps`: until it starts if nobody is stopped, at least."""
    victims = _candidates(state, posed, row, job, rules, now)
    open_gpus = _open_now(posed.problem, set(victims))
    open_gpus[given] = False
    blocks = _blocks_of(posed.problem, victims)
    chosen = _cheapest_block(posed.problem, row, open_gpus, victims, blocks, places)
    if not chosen:
        return None
    problem = without_running(posed.problem, chosen)
    budget = decision_iterations(problem, policy.iterations)
    plan = claims_first(posed, problem, plan_fast(problem, budget, policy.seed), budget, policy)
    if plan.start[row] != 0:
        return None
    first, size = int(plan.first_gpu[row]), int(problem.option_gpus[plan.option[row]])
    stopped = sorted(name for name in chosen if _overlaps(blocks[name], first, size))
    if not stopped or (problem.held_app[first : first + size] >= 0).any():
        return None
    if ((given >= first) & (given < first + size)).any():
        return None  # others have it now; the next decision sees them run and looks again
    save_s = max(victims[name].job.spec.checkpoint.wait_s for name in stopped)
    wait_saved_s = max(0.0, steps * policy.step_s - save_s)
    loses = sum(victims[name].saving for name in stopped)
    if int(posed.problem.job_priority[row]) * size * wait_saved_s <= loses:
        return None
    return Preempted(
        job_id=job.job_id,
        pool=posed.pool,
        placed=posed.layout.local(list(range(first, first + size))),
        victims=stopped,
        until_ms=now.domain_ms + int((save_s + STOP_WAIT_S) * 1000),
        wait_saved_s=wait_saved_s,
        at_stake_gpu_s=sum(victims[name].cost for name in stopped),
    )


def _candidates(state: State, posed: Posed, row: int, job: Job, rules: QueueRules, now: Now) -> dict[str, _Victim]:
    """Running jobs of the pool that may be stopped for it, with what is at stake."""
    found = {}
    for other in index_of(state).holders():
        queue = state.rules.queues.get(other.spec.queue)
        if queue is None or not queue.preemptible or other.stop_cause or other.started_ms is None:
            continue
        if other.pool != posed.pool or other.spec.checkpoint.mode is CheckpointMode.NONE:
            continue
        if other.spec.priority * PRIORITY_ONE >= posed.problem.job_priority[row] or job.job_id in other.preempted_by:
            continue
        if other.took_place or protected_until_ms(other, queue, now.domain_ms) is not None:
            continue
        ran_s = (now.domain_ms - other.started_ms) / 1000
        if ran_s >= rules.runtime_min_s:
            unsaved_s = (now.domain_ms - max(other.started_ms, other.saved_ms)) / 1000
            found[other.job_id] = _Victim(other, int(other.gpus * (unsaved_s + other.spec.checkpoint.cost_s)))
    return found


def _cheapest_block(
    problem: Problem,
    row: int,
    open_gpus: Ints,
    victims: dict[str, _Victim],
    blocks_of: dict[str, list[tuple[int, int]]],
    victims_max: int,
) -> set[str]:
    """The victims on the legal block with the least at stake; sizes from the requested one down. Empty: there is none."""
    rows = range(int(problem.option_ptr[row]), int(problem.option_ptr[row + 1]))
    for option in sorted(rows, key=lambda option: -int(problem.option_gpus[option])):
        size, level = int(problem.option_gpus[option]), int(problem.option_class[option])
        if level < 0 or size > problem.job_requested[row]:
            continue
        blocks = problem.topology.blocks(level)
        best: tuple[int, int, int] | None = None
        names: set[str] = set()
        for first in blocks.tolist():
            if not open_gpus[first : first + size].all():
                continue
            on_it = {name for name in victims if _overlaps(blocks_of[name], first, size)}
            key = (sum(victims[name].cost for name in on_it), len(on_it), first)
            if on_it and len(on_it) <= victims_max and (best is None or key < best):
                best, names = key, on_it
        if names:
            return names
    return set()


def _open_now(problem: Problem, victims: set[str]) -> Ints:
    """GPUs that nobody but the victims holds now. Whether applications want them back too soon, the plan decides."""
    open_gpus = (problem.gpu_state == GpuState.USABLE) & (problem.held_app < 0)
    for first, size, start, end in problem.reservations.tolist():
        if start <= 0 < end:
            open_gpus[first : first + size] = False
    for name, first, size in zip(problem.running_ids, problem.running_first, problem.running_gpus, strict=True):
        if name not in victims:
            open_gpus[first : first + size] = False
    return np.asarray(open_gpus)


def _blocks_of(problem: Problem, victims: dict[str, _Victim]) -> dict[str, list[tuple[int, int]]]:
    """First GPU and size of every block each victim holds in the pool; a broken gang may hold several."""
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in victims}
    for name, first, size in zip(
        problem.running_ids, problem.running_first.tolist(), problem.running_gpus.tolist(), strict=True
    ):
        if name in found:
            found[name].append((first, size))
    return found


def _overlaps(blocks: list[tuple[int, int]], first: int, size: int) -> bool:
    return any(begin < first + size and first < begin + gpus for begin, gpus in blocks)

"""Which running jobs, moved elsewhere, would free larger blocks, and what the move would cost. Proposals for people, never forced. Pure.

Only jobs that checkpoint, each to a free block of its size where it may stay as long as it is expected to run: one job alone, or all
jobs of a node. The cost is what may be lost: GPU time since the last checkpoint, and that of writing one, starting again and bringing
data. Refuses: moving anything. Read next: `fragmentation.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from schemas.jobs import CheckpointMode
from schemas.status import NodeGpus
from services.allocator.core.fragmentation import across_counts, inside_counts
from services.allocator.core.free_runs import runs_of
from services.allocator.core.gpu_states import GpuState
from services.allocator.core.near import staging_s
from services.allocator.core.pose import Posed
from services.allocator.core.state import PART_RUNNING, Job, State

RESTART_S = 120.0
"""To stop, to be placed and to load a checkpoint, where nothing has been measured."""
JOBS_MAX = 200
"""Running jobs looked at, the cheapest first: a person reads a handful of proposals."""
LOOKS_MAX = 500_000
"""Nodes counted in all: some seconds. In pools of thousands of nodes fewer jobs are looked at."""
TARGETS_MAX = 8
"""Places tried per job, the fullest nodes first: what fits into a gap there breaks nothing."""
TOGETHER_MAX = 4
"""Jobs moved at once to clear a node."""
PROPOSALS_MAX = 20
HELPED_MAX = 4


@dataclass(frozen=True, slots=True)
class Move:
    """One job from its block to another of the same size. `cost_s`: GPU-seconds at stake."""

    job_id: str
    gpus: int
    leaves: tuple[NodeGpus, ...]
    takes: tuple[NodeGpus, ...]
    cost_s: float


@dataclass(frozen=True, slots=True)
class Migration:
    """Moves made together. `frees`: by block size, how many more could be handed out than now; `helps`: waiting jobs that could start
    then and can't now."""

    pool: str
    moves: tuple[Move, ...]
    frees: dict[int, int]
    helps: tuple[str, ...]
    cost_s: float


def migrations_in(state: State, posed: Posed, now_ms: int) -> list[Migration]:
    """Proposals for one pool: those that free the largest block first, then the cheapest. `posed`: its problem now."""
    board = _Board(state, posed, now_ms)
    movable = sorted(board.movable(), key=lambda job: (board.cost_s(job, []), job.arrival))
    movable = movable[: min(JOBS_MAX, LOOKS_MAX // (TARGETS_MAX * max(1, len(posed.layout.nodes))))]
    groups: list[tuple[Job, ...]] = [(job,) for job in movable]
    groups += board.clearing(movable)
    found = [proposal for group in groups if (proposal := board.proposal(group)) is not None]
    found.sort(key=lambda one: (-max(one.frees), one.cost_s, one.moves[0].job_id))
    return found[:PROPOSALS_MAX]


class _Board:
    """Free GPUs of the pool now, by node, and until which step each may be used by somebody who moves there."""

    def __init__(self, state: State, posed: Posed, now_ms: int) -> None:
        self._state, self._posed, self._now_ms = state, posed, now_ms
        problem = posed.problem
        self._sizes = list(problem.topology.node_sizes)
        self._firsts = problem.topology.node_first.tolist()
        free = (problem.gpu_state == GpuState.USABLE) & (problem.held_app < 0)
        until = np.full(problem.gpus, problem.steps, np.int64)
        for first, size in zip(problem.running_first.tolist(), problem.running_gpus.tolist(), strict=True):
            free[first : first + size] = False
        for first, size, start, _ in problem.reservations.tolist():
            until[first : first + size] = np.minimum(until[first : first + size], start)
        self._free: list[bool] = (free & (until > 0)).tolist()
        self._until: list[int] = until.tolist()
        self._classes = max(1, problem.gpus).bit_length()
        self._counts = self._counted(self._free)
        self._hold = dict(zip(problem.running_ids, problem.running_hold.tolist(), strict=True))

    def movable(self) -> list[Job]:
        """Running jobs of the pool that checkpoint, on one unbroken block, and that nobody stops already."""
        found = []
        for job_id, blocks in Counter(self._posed.problem.running_ids).items():
            job = self._state.jobs.get(job_id)
            if job is None or job.pool != self._posed.pool or job.stop_cause or job.started_ms is None:
                continue
            alive = all(part.status == PART_RUNNING for part in job.parts)
            if alive and blocks == 1 and job.spec.checkpoint.mode is not CheckpointMode.NONE:
                found.append(job)
        return found

    def clearing(self, movable: Sequence[Job]) -> list[tuple[Job, ...]]:
        """Nodes on which several movable jobs, and nothing else, stand in the way of a whole free node."""
        on_node: dict[int, list[Job]] = {}
        for job in movable:
            nodes = {self._node_of(number) for number in self._numbers(job)}
            for node in nodes:
                on_node.setdefault(node, []).append(job)
        groups = []
        for node, jobs in sorted(on_node.items()):
            first, size = self._firsts[node], self._sizes[node]
            held = {number for job in jobs for number in self._numbers(job)}
            inside = all(first <= number < first + size for number in held)
            rest = [number for number in range(first, first + size) if number not in held]
            if 2 <= len(jobs) <= TOGETHER_MAX and inside and all(self._free[number] for number in rest):
                groups.append(tuple(jobs))
        return groups

    def proposal(self, jobs: tuple[Job, ...]) -> Migration | None:
        """The best places for these jobs, and what that frees; None: they have none, or it frees nothing."""
        free = list(self._free)
        own = {number for job in jobs for number in self._numbers(job)}
        moves: list[Move] = []
        for job in sorted(jobs, key=lambda job: (-job.gpus, job.arrival)):
            taken = self._best_place(job, free, own, last=len(moves) == len(jobs) - 1)
            if taken is None:
                return None
            for number in taken:
                free[number] = False
            takes = self._posed.layout.local(taken)
            leaves = tuple(NodeGpus(node=part.node, gpus=part.gpus) for part in job.parts)
            moves.append(Move(job.job_id, job.gpus, leaves, tuple(takes), self.cost_s(job, takes)))
        counts = self._counted([open_now or number in own for number, open_now in enumerate(free)])
        frees = {
            1 << k: more - now for k, (now, more) in enumerate(zip(self._counts, counts, strict=True)) if more > now
        }
        if not frees:
            return None
        cost = sum(move.cost_s for move in moves)
        return Migration(self._posed.pool, tuple(moves), frees, self._helped(counts), cost)

    def cost_s(self, job: Job, takes: Sequence[NodeGpus]) -> float:
        """GPU-seconds at stake: since the last checkpoint, writing one, starting again, and bringing data to the new place."""
        unsaved_s = max(0, self._now_ms - max(job.started_ms or 0, job.saved_ms)) / 1000
        again_s = job.spec.checkpoint.cost_s + RESTART_S + staging_s(self._state, job, takes)
        return job.gpus * (unsaved_s + again_s)

    def _best_place(self, job: Job, free: list[bool], own: set[int], last: bool) -> list[int] | None:
        """Of the fullest nodes that have room the place after which the largest blocks are left; before the last job the first one."""
        places = self._places(job, free, own)
        if not places:
            return None
        if not last:
            return places[0]

        def after(place: list[int]) -> list[int]:
            left = [open_now or number in own for number, open_now in enumerate(free)]
            for number in place:
                left[number] = False
            return self._counted(left)[::-1]

        return max(places, key=after)

    def _places(self, job: Job, free: list[bool], own: set[int]) -> list[list[int]]:
        """Free blocks of the job's size outside what is being cleared, where it may stay as long as it may run."""
        size, hold = job.gpus, min(self._hold[job.job_id], self._posed.problem.steps)
        open_now = [free[number] and number not in own and self._until[number] >= hold for number in range(len(free))]
        found: list[tuple[int, list[int]]] = []
        if size > max(self._sizes, default=0):
            return list(islice(self._rows(size, open_now), TARGETS_MAX))
        for first, length in zip(self._firsts, self._sizes, strict=False):
            runs = [run for run in runs_of(open_now[first : first + length]) if run[1] >= size]
            if runs:
                start = first + min(runs, key=lambda run: (run[1], run[0]))[0]
                found.append((sum(open_now[first : first + length]), list(range(start, start + size))))
        return [place for _, place in sorted(found)[:TARGETS_MAX]]

    def _rows(self, size: int, open_now: list[bool]) -> Iterable[list[int]]:
        """Blocks of whole nodes."""
        topology = self._posed.problem.topology
        level = size.bit_length() - 1
        for at in range(int(topology.multi_ptr[level]), int(topology.multi_ptr[level + 1])):
            first = self._firsts[int(topology.multi_node[at])]
            if all(open_now[first : first + size]):
                yield list(range(first, first + size))

    def _counted(self, free: list[bool]) -> list[int]:
        nodes = [free[first : first + size] for first, size in zip(self._firsts, self._sizes, strict=False)]
        counts = across_counts(self._sizes, [all(node) and bool(node) for node in nodes], self._classes)
        for node in nodes:
            for k, count in enumerate(inside_counts(node, self._classes)):
                counts[k] += count
        return counts

    def _helped(self, counts: list[int]) -> tuple[str, ...]:
        """Waiting jobs, best first as they are posed, of whose sizes none has a block now and some would."""
        found = []
        for job in self._posed.queued:
            levels = [size.bit_length() - 1 for size in job.spec.sizes if size.bit_length() <= self._classes]
            if not any(self._counts[k] for k in levels) and any(counts[k] for k in levels):
                found.append(job.job_id)
        return tuple(found[:HELPED_MAX])

    def _numbers(self, job: Job) -> list[int]:
        layout = self._posed.layout
        return [number for part in job.parts for number in layout.numbers(part.node, part.gpus)]

    def _node_of(self, number: int) -> int:
        return self._posed.problem.topology.node_of(number)

"""Full mode beside the loop: one question at a time, asked when nothing else is to be done, answered by somebody else.

Owns what is asked when, and what becomes of the answers. The solver is a port: a child process in production
(`full_process.py`: the heuristic's long searches and the building of models hold the interpreter for tenths of a second,
so a thread would stop decisions), computed inline with a drawn-out wait in simulation. Questions and answers are core
data (`core/advice.py`); an answer enters the state only as an input of a recorded decision. Losing one loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from schemas.decisions import PlanImproved
from schemas.records import Now
from services.allocator.core.advice import Question, improved, is_stale, question_of
from services.allocator.core.decide import Settings
from services.allocator.core.heuristic import decision_iterations, plan_fast, plan_followed
from services.allocator.core.layout import pools_of
from services.allocator.core.plan import Plan
from services.allocator.core.pool_choice import choose_pools
from services.allocator.core.problem import Ints, Problem
from services.allocator.core.verify import verify_plan
from services.allocator.shell.owner import ClusterOwner
from services.runtime.clock import Clock

GAIN_MIN = 1e-4
"""A plan better by less isn't worth a record."""
LOOK_AGAIN_S = 1.0
"""After finding nothing to ask: looking costs as much as posing a decision's problem."""
FAILURES_MAX = 3
"""Failed answers in a row after which questions pause: the solver is broken on this machine, not unlucky."""
PAUSE_S = 600.0

FOLLOWED, OUTDONE, NO_BETTER, STALE, FAILED = "followed", "outdone", "no_better", "stale", "failed"
"""What becomes of an answer: the decision that took it in follows it, or fast mode's plan of that moment was worth more; it
was no better than what was known; the state had moved on; there was none."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a solver gets: the problem, what is known of a plan, fast mode's budget, and the limit."""

    problem: Problem
    kept: Ints
    segments: Ints
    iterations: int
    seed: int
    seconds: float
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A verified plan; `gain` over the better of fast mode's and the followed plan; `bound_gap` None: nothing proven."""

    plan: Plan
    gain: float
    bound_gap: float | None


class SolverError(Exception):
    """No answer; the message says why."""


class Solver(Protocol):
    """Whoever computes answers. `solve` raises SolverError; after `stop` nothing runs any more."""

    async def solve(self, task: Task) -> Answer: ...

    async def stop(self) -> None: ...


def answer_of(task: Task) -> Answer:
    """Solve the task here and now."""
    from services.allocator.shell.cp_sat import Limit
    from services.allocator.shell.solver import plan_full

    problem = task.problem
    known = plan_fast(problem, task.iterations, task.seed)
    if (task.kept[:, 0] >= 0).any():
        for plan in plan_followed(problem, task.kept, task.segments, task.iterations, task.seed):
            if plan.value > known.value and not verify_plan(problem, plan):
                known = plan
    full = plan_full(problem, Limit(task.seconds, task.deterministic), known, workers=1)
    gain = (full.plan.value - known.value) / max(1, abs(known.value))
    return Answer(full.plan, gain, full.gap(problem))


class InlineSolver:
    """For simulation: the answer is computed at once under a deterministic limit and comes `delay_s` (wall) later, the same
    every time."""

    def __init__(self, clock: Clock, delay_s: float) -> None:
        self._clock = clock
        self._delay_s = delay_s

    async def solve(self, task: Task) -> Answer:
        answer = answer_of(replace(task, deterministic=True))
        await self._clock.sleep_wall(self._delay_s)
        return answer

    async def stop(self) -> None:
        """Nothing runs between two awaits."""


@dataclass(frozen=True, slots=True)
class FullMode:
    """What the loop is given to use full mode. `observe(outcome, wall_s)` counts answers."""

    solver: Solver
    seconds: float
    every_s: float
    observe: Callable[[str, float], None] = lambda outcome, wall_s: None


class Improvement:
    """The loop's side: `ask` when idle, `pending` to wait on, `take` the answers that came."""

    def __init__(self, full: FullMode, clock: Clock) -> None:
        self._full = full
        self._clock = clock
        self._asked: dict[tuple[str, str], int] = {}
        self._next_s = clock.wall_s() + full.every_s
        self._failures = 0
        self._question: Question | None = None
        self._asked_s = 0.0
        self.pending: asyncio.Task[Answer] | None = None

    def due_in_s(self, owned: Mapping[str, ClusterOwner]) -> float | None:
        """Seconds until something may be asked; None if there is nothing new to ask about, or a question is open."""
        if self.pending is not None or self._candidate(owned) is None:
            return None
        return max(0.0, self._next_s - self._clock.wall_s())

    def ask(self, owned: Mapping[str, ClusterOwner], settings: Callable[[str], Settings]) -> None:
        """Ask about the pool whose last question is the longest ago, if it is time to. At most one question is open."""
        if self.due_in_s(owned) != 0.0:
            return
        cluster, pool = self._candidate(owned) or ("", "")
        owner, chosen = owned[cluster], settings(cluster)
        now = Now(max(self._clock.now_ms(), owner.state.now_ms), self._clock.wall_ms())
        self._asked.pop((cluster, pool), None)  # to the end of the line
        self._asked[cluster, pool] = owner.state.sequence
        elsewhere = choose_pools(owner.state, chosen.memory_mib, chosen.policy, now).elsewhere(pool)
        question = question_of(owner.state, pool, chosen.memory_mib.get(pool, 0), chosen.policy, now, elsewhere)
        if question is None:
            self._next_s = self._clock.wall_s() + LOOK_AGAIN_S
            return
        problem, policy = question.posed.problem, chosen.policy
        task = Task(
            problem=problem,
            kept=question.kept,
            segments=question.segments,
            iterations=decision_iterations(problem, policy.iterations),
            seed=policy.seed,
            seconds=self._full.seconds,
        )
        self._question, self._asked_s = question, self._clock.wall_s()
        self._next_s = self._asked_s + self._full.every_s
        self.pending = asyncio.ensure_future(self._full.solver.solve(task))

    def take(self, owned: Mapping[str, ClusterOwner], settings: Callable[[str], Settings]) -> PlanImproved | None:
        """The answer that came, if it is worth recording; the caller decides with it and calls `report`."""
        if self.pending is None or not self.pending.done() or self._question is None:
            return None
        pending, question = self.pending, self._question
        self.pending, self._question = None, None
        try:
            answer = pending.result()
        except (SolverError, asyncio.CancelledError):
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                self._next_s, self._failures = self._clock.wall_s() + PAUSE_S, 0
            self.report(FAILED)
            return None
        self._failures = 0
        owner = owned.get(question.cluster)
        if owner is None:
            self.report(STALE)
            return None
        if answer.gain < GAIN_MIN:
            self.report(NO_BETTER)
            return None
        policy = settings(question.cluster).policy
        event = improved(question, answer.plan, answer.gain, answer.bound_gap, policy)
        if is_stale(event, owner.state, self._clock.now_ms()):
            self.report(STALE)
            return None
        return event

    def report(self, outcome: str) -> None:
        """Count what became of the last answer."""
        self._full.observe(outcome, self._clock.wall_s() - self._asked_s)

    async def stop(self) -> None:
        """Drop the open question and end the solver."""
        if self.pending is not None:
            self.pending.cancel()
            await asyncio.gather(self.pending, return_exceptions=True)
            self.pending = None
        await self._full.solver.stop()

    def _candidate(self, owned: Mapping[str, ClusterOwner]) -> tuple[str, str] | None:
        """A pool whose cluster has decided something since it was asked about; those never asked about first."""
        keys = [(name, pool) for name, owner in owned.items() for pool in pools_of(owner.state)]
        order = {key: at for at, key in enumerate(self._asked)}
        for key in sorted(keys, key=lambda key: (order.get(key, -1), key)):
            if self._asked.get(key) != owned[key[0]].state.sequence:
                return key
        return None

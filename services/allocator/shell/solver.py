"""Full mode: OR-tools CP-SAT improves the heuristic's grid within a limit, and proves how far it can be from the best.

First a generous heuristic search, then the counts model for the bound, then the cards model started from the best plan
so far: whole where it is small, one neighbourhood after the other where it isn't. Never worse than the heuristic.
Holds no lock and touches no global state: call it from any thread, it leaves the interpreter free while it solves.
Deterministic under a deterministic limit; under wall time alone the machine decides how far it gets.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.heuristic import default_iterations, plan_fast
from services.allocator.core.model import CountsModel, counts_model
from services.allocator.core.model_bound import priced_bound
from services.allocator.core.model_cards import Blocks, CardsModel, blocks_of, cards_model, plan_of, values_of
from services.allocator.core.neighbourhood import Guide, Kind, neighbourhood
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Problem
from services.allocator.core.verify import verify_plan
from services.allocator.shell.cp_sat import Limit, Outcome, solve
from services.allocator.shell.prices import row_prices

WORKERS = 2
STARTS_SHARE = 0.25  # of the limit goes to the heuristic from many seeds: no solver finds good plans as fast
START_FACTORS = (5, 30, 30, 30, 300)  # default budgets per seed, in turn: few long searches, many short ones
STARTS_KEPT = 3  # different plans to improve in turn: the best one may be a dead end
STARTS_MAX = 400  # by then new seeds find old plans
PRICES_S_MAX = 60.0  # the linear relaxation takes hundredths of a second at 64 GPUs; only a net
BOUND_SHARE = 0.25  # of the limit goes to the bound; most problems need less
WHOLE_BLOCKS_MAX = 1500  # up to here the whole exact model is tried first
ROUND_SHARE = 0.08  # of the limit for one neighbourhood: enough rounds to visit every kind several times
ROUND_S_MIN = 0.02
DEFAULT_SEARCH_S = 0.001  # what one default budget counts for under a deterministic limit
SHARE_FIRST, SHARE_MIN, SHARE_MAX = 0.3, 0.05, 1.0
EXACT_SIZE_MAX = 64 * 128  # GPUs × queued jobs; beyond, exact neighbourhoods are too small to find anything
MODEL_CANDIDATES_MAX = 100_000  # a larger problem is left to the heuristic: building the model alone takes the limit

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FullPlan:
    """A verified plan, the proven upper bound in the problem's fixed point (None: not proven in time), and whether
    the plan is proven best."""

    plan: Plan
    bound: int | None
    optimal: bool
    rounds: int

    def gap(self, problem: Problem) -> float | None:
        """(bound − value) ÷ |bound|."""
        if self.bound is None:
            return None
        return (self.bound - self.plan.value) / max(1, abs(self.bound))


class _Budget:
    """What is left of a limit, in its own kind of seconds."""

    def __init__(self, limit: Limit) -> None:
        self._limit, self._begin, self._used_s = limit, time.perf_counter(), 0.0

    def left_s(self) -> float:
        used = self._used_s if self._limit.deterministic else time.perf_counter() - self._begin
        return self._limit.seconds - used

    def charge(self, deterministic_s: float) -> None:
        self._used_s += max(ROUND_S_MIN, deterministic_s)

    def part(self, seconds: float) -> Limit:
        return Limit(max(ROUND_S_MIN, min(seconds, self.left_s())), self._limit.deterministic)


def plan_full(problem: Problem, limit: Limit, start: Plan | None = None, workers: int = WORKERS) -> FullPlan:
    """The best plan found within the limit, and the bound."""
    budget = _Budget(limit)
    starts = _starts(problem, budget, STARTS_SHARE * limit.seconds)
    if start is not None:
        starts = sorted([*starts, start], key=lambda plan: -plan.value)
    starts = [_named_full(plan) for plan in starts]
    if len(problem.option_gpus) * problem.steps > MODEL_CANDIDATES_MAX:
        return FullPlan(starts[0], None, False, 0)
    floors = np.minimum(problem.app_floor[:, None], starts[0].app_counts(problem))
    counts = counts_model(problem, floors)
    search = _Search(problem, floors, starts, _rounding(counts.model.shift, problem))
    guide = search.ask_counts(counts, budget, limit, workers)
    if problem.gpus * problem.jobs > EXACT_SIZE_MAX:
        return FullPlan(search.best, search.bound, search.finished(), 0)
    blocks = blocks_of(problem, guide.promising)
    if len(blocks) <= WHOLE_BLOCKS_MAX and not search.finished():
        search.whole(blocks, budget, workers)
    rounds = search.rounds(guide, budget, limit, workers)
    return FullPlan(search.best, search.bound, search.finished(), rounds)


def _starts(problem: Problem, budget: _Budget, share_s: float) -> list[Plan]:
    """The best plans of heuristic searches from many seeds, best first; at least fast mode's own."""
    iterations, floor_s = default_iterations(problem), budget.left_s() - share_s
    found = {(plan := plan_fast(problem, iterations)).value: plan}
    cost_s = 0.0  # of one default budget, as far as known
    for seed in range(STARTS_MAX if iterations else 0):
        left_s = budget.left_s() - floor_s
        factor = START_FACTORS[seed % len(START_FACTORS)]
        if left_s <= 0:  # a slow machine may have spent the share on fast mode's own plan
            break
        if factor * cost_s > left_s:
            factor = int(left_s / cost_s)
        if factor < 1:
            break
        plan = plan_fast(problem, iterations * factor, seed)
        budget.charge(factor * DEFAULT_SEARCH_S)
        cost_s = (left_s - (budget.left_s() - floor_s)) / factor
        found.setdefault(plan.value, plan)
    return [found[value] for value in sorted(found, reverse=True)[:STARTS_KEPT]]


def _rounding(shift: int, problem: Problem) -> int:
    """How much a model's bound may lie above the best plan because objective units are rounded."""
    return (problem.jobs + problem.apps * problem.steps * max(1, problem.gpus)) << shift


def _named_full(plan: Plan) -> Plan:
    return Plan("full", plan.start, plan.first_gpu, plan.option, plan.segments, plan.value, plan.reason)


class _Search:
    """The best plans so far and what is proven about them."""

    def __init__(self, problem: Problem, floors: Ints, starts: list[Plan], rounding: int) -> None:
        self.problem, self.floors, self.plans = problem, floors, starts
        self.bound: int | None = None
        self._rounding = rounding

    @property
    def best(self) -> Plan:
        return self.plans[0]

    def ask_counts(self, counts: CountsModel, budget: _Budget, limit: Limit, workers: int) -> Guide:
        """Bounds from the relaxation: prices first (a fraction of a second), then the solver."""
        problem, model, candidates = self.problem, counts.model, counts.candidates
        option, start = np.full(problem.jobs, -1, np.int64), np.full(problem.jobs, -1, np.int64)
        promising = np.ones(len(candidates.job), np.bool_)
        prices = row_prices(model, PRICES_S_MAX)
        if prices is not None:
            priced = priced_bound(model, prices)
            self._bounded(model.bound_of(priced.bound))  # proven here, not believed
            with_candidate = (priced.with_variable[: len(promising)] << model.shift) + model.constant
            promising = with_candidate > self.best.value
        if not self.finished():
            outcome = solve(model, budget.part(BOUND_SHARE * limit.seconds), workers)
            budget.charge(outcome.deterministic_s)
            if outcome.bound is not None and model.bound_of(outcome.bound) >= self.best.value - self._rounding:
                self._bounded(model.bound_of(outcome.bound))  # a bound below a verified plan would prove nothing
            if outcome.values is not None:
                chosen = np.flatnonzero(outcome.values[: len(candidates.job)])
                option[candidates.job[chosen]] = candidates.option[chosen]
                start[candidates.job[chosen]] = candidates.start[chosen]
        return Guide(option, start, promising)

    def _bounded(self, proven: int) -> None:
        proven = max(self.best.value, proven)
        self.bound = proven if self.bound is None else min(self.bound, proven)

    def finished(self) -> bool:
        """Nothing better exists, but for rounding."""
        return self.bound is not None and self.bound - self.best.value <= self._rounding

    def whole(self, blocks: Blocks, budget: _Budget, workers: int) -> None:
        """Solve the exact model over every block that can be in a better plan; its bound counts too."""
        cards = cards_model(
            self.problem, self.floors, blocks, np.ones((self.problem.apps, self.problem.gpus), np.bool_)
        )
        outcome = solve(cards.model, budget.part(budget.left_s()), workers, values_of(self.problem, cards, self.best))
        budget.charge(outcome.deterministic_s)
        self._take(cards, outcome)
        if outcome.bound is not None:
            self._bounded(cards.model.bound_of(outcome.bound))
        elif outcome.infeasible:
            self._bounded(self.best.value)

    def rounds(self, guide: Guide, budget: _Budget, limit: Limit, workers: int) -> int:
        """Neighbourhoods, `workers` at a time from the same plan, until nothing is left of the budget."""
        done, share = 0, SHARE_FIRST
        round_s = ROUND_SHARE * limit.seconds
        with ThreadPoolExecutor(workers, thread_name_prefix="full-mode") as pool:
            while budget.left_s() > ROUND_S_MIN and not self.finished():
                tasks = [pool.submit(self._explore, guide, done + i, share, budget, round_s) for i in range(workers)]
                results = [task.result() for task in tasks]
                for cards, outcome in results:
                    self._take(cards, outcome)
                budget.charge(max(outcome.deterministic_s for _, outcome in results))
                grown = 1.15 if all(outcome.optimal for _, outcome in results) else 0.9
                share = min(SHARE_MAX, max(SHARE_MIN, share * grown))
                done += workers
        return done

    def _explore(
        self, guide: Guide, number: int, share: float, budget: _Budget, round_s: float
    ) -> tuple[CardsModel, Outcome]:
        problem = self.problem
        best = self.plans[number // len(Kind) % len(self.plans)]
        near = neighbourhood(problem, best, guide, number, share)
        cards = cards_model(problem, self.floors, near.blocks, near.cards)
        return cards, solve(cards.model, budget.part(round_s), 1, values_of(problem, cards, best))

    def _take(self, cards: CardsModel, outcome: Outcome) -> None:
        """Keep the outcome's plan if it is better, and legal for the verifier too."""
        if outcome.values is None:
            return
        plan = plan_of(self.problem, cards, outcome.values)
        if plan.value > self.best.value and not verify_plan(self.problem, plan):
            self.plans = [plan, *self.plans[: STARTS_KEPT - 1]]

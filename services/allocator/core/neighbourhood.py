"""Parts of the problem near a known plan, small enough for the exact model: which jobs may move, and how far.

Deterministic for (plan, round). Kinds take turns; `share` says how much of the plan a neighbourhood frees.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.model import candidates_of
from services.allocator.core.model_cards import Blocks, blocks_of
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Problem

ALIGNED_FROM_GPUS = 17  # beyond a node or two, blocks at every offset make models too large to help
SHIFT_STEPS_MAX = 2
GUIDED_ROUNDS = 1  # the guide stays the same, the plans it is combined with are few
APP_SPARE_GPUS = 2  # cards beyond those an application uses in the known plan, in larger pools

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Kind(IntEnum):
    """What a neighbourhood frees."""

    GUIDED = 0  # near the known plan and near what the counts model chose; every block
    JOBS = 1  # some jobs entirely; the others stay in their steps, on any block
    WINDOW = 2  # every job that runs in some steps entirely; the others stay where they are
    SHIFT = 3  # all jobs by a few steps, sizes kept for most


@dataclass(frozen=True, slots=True)
class Guide:
    """What the counts model knows: option row and start per job in its solution (-1: left out, or no solution), and
    which of `candidates_of(problem)` can be in a better plan than the one known when it was asked."""

    option: Ints
    start: Ints
    promising: Bools


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Blocks the exact model may choose from, and cards per application."""

    blocks: Blocks
    cards: Bools


def neighbourhood(problem: Problem, plan: Plan, guide: Guide, step: int, share: float) -> Neighbourhood:
    """The neighbourhood number `step` of the plan; 0 < share <= 1."""
    kind = Kind(step % len(Kind))
    if kind is Kind.GUIDED and step >= GUIDED_ROUNDS * len(Kind):
        kind = Kind.JOBS
    chance = np.random.default_rng(step)
    every = candidates_of(problem)
    stays = (plan.option[every.job] == every.option) & (plan.start[every.job] == every.start)
    near = (plan.option[every.job] == every.option) & (np.abs(plan.start[every.job] - every.start) <= SHIFT_STEPS_MAX)
    pinned = np.zeros(problem.jobs, np.bool_)
    if kind is Kind.GUIDED:
        lead = (guide.option[every.job] == every.option) & (np.abs(guide.start[every.job] - every.start) <= 1)
        kept = near | lead
    elif kind is Kind.WINDOW:
        free = _in_window(problem, plan, chance, share)
        kept, pinned = stays | free[every.job], ~free
    else:
        free = _some_jobs(problem, plan, chance, share if kind is Kind.JOBS else share / 2)
        kept = stays | free[every.job] | (near if kind is Kind.SHIFT else stays)
    kept &= guide.promising | stays
    blocks = blocks_of(problem, kept, problem.gpus >= ALIGNED_FROM_GPUS, plan)
    inside = ~pinned[blocks.job] | (plan.first_gpu[blocks.job] == blocks.first)
    chosen = Blocks(*(getattr(blocks, name)[inside] for name in ("job", "option", "start", "first", "gain")))
    return Neighbourhood(chosen, cards_near(problem, plan))


def cards_near(problem: Problem, plan: Plan) -> Bools:
    """Cards each application may use: all on a node or two, else those it uses or holds and a few spare ones."""
    if problem.gpus < ALIGNED_FROM_GPUS:
        return np.ones((problem.apps, problem.gpus), np.bool_)
    cards = np.zeros((problem.apps, problem.gpus), np.bool_)
    for app in range(problem.apps):
        cards[app, plan.segments[plan.segments[:, 0] == app, 1]] = True
        cards[app, problem.held_app == app] = True
        unused = np.flatnonzero(~cards[app])
        centre = int(np.flatnonzero(cards[app])[0]) if cards[app].any() else problem.gpus - 1
        order = np.argsort(np.abs(unused - centre), kind="stable")
        cards[app, unused[order[:APP_SPARE_GPUS]]] = True
    return cards


def _some_jobs(problem: Problem, plan: Plan, chance: np.random.Generator, share: float) -> Bools:
    """Random jobs, at least two."""
    free = np.zeros(problem.jobs, np.bool_)
    count = min(problem.jobs, max(2, round(share * problem.jobs)))
    free[chance.permutation(problem.jobs)[:count]] = True
    return free


def _in_window(problem: Problem, plan: Plan, chance: np.random.Generator, share: float) -> Bools:
    """Jobs that run in a random span of steps, and those without a place."""
    width = max(1, round(share * problem.steps))
    begin = int(chance.integers(0, max(1, problem.steps - width + 1)))
    ends = plan.start + np.where(plan.option >= 0, problem.option_steps[plan.option], 0)
    return (plan.start < 0) | ((plan.start < begin + width) & (ends > begin))

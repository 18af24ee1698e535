"""The problem itself as an integer model: which block each job gets, which cards each application holds when.

`cards_model` covers exactly the legal plans that use the offered candidates and cards: all of them on a node or two,
a neighbourhood of a known plan in larger pools. `plan_of` turns a solution into a `Plan`, `values_of` a plan into a
starting point. Formulas: docs/model.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.gpu_states import GpuState
from services.allocator.core.heuristic import finished_plan
from services.allocator.core.model import (
    UNLIMITED,
    AppVariables,
    Candidates,
    IntegerModel,
    app_variables,
    candidates_of,
    cap_rows,
    empty_model,
    one_way_per_job,
)
from services.allocator.core.model_cells import OpenCells, open_cells
from services.allocator.core.plan import Plan
from services.allocator.core.problem import Problem

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Candidates with a block each; entry i is variable i of the cards model."""

    job: Ints
    option: Ints
    start: Ints
    first: Ints
    gain: Ints

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True, slots=True)
class CardsModel:
    """`card[app, step, gpu]` is the variable "application holds this GPU in this step", -1 where it may not;
    `change[app, step, gpu]` the one that counts a switch there, -1 where no cap binds."""

    model: IntegerModel
    blocks: Blocks
    apps: AppVariables
    card: Ints
    change: Ints


def blocks_of(problem: Problem, kept: Bools | None = None, aligned: bool = False, also: Plan | None = None) -> Blocks:
    """Legal blocks for every candidate `kept`. `aligned`: inside nodes only offsets that are multiples of the size,
    and what the plan `also` uses."""
    candidates, cells = candidates_of(problem, kept), open_cells(problem)
    parts = []
    covered_batch, covered_promise = (_prefix(~cells.batch), _prefix(~cells.promise))
    borders = problem.topology
    for index in range(len(candidates.job)):
        option, start = int(candidates.option[index]), int(candidates.start[index])
        level, size = int(problem.option_class[option]), int(problem.option_gpus[option])
        first = borders.blocks(level)
        if aligned:
            chosen = (first - borders.node_first[borders.gpu_node[first]]) % size == 0
            if also is not None and also.start[candidates.job[index]] >= 0:
                chosen |= first == also.first_gpu[candidates.job[index]]
            first = first[chosen]
        end = min(start + int(problem.option_steps[option]), problem.steps)
        hold = min(start + int(problem.option_hold[option]), problem.steps)
        closed = _covered(covered_batch, start, end, first, size) + _covered(covered_promise, start, hold, first, size)
        first = first[closed == 0]
        parts.append((np.full(len(first), index, np.int64), first))
    chosen_of = np.concatenate([part[0] for part in parts]) if parts else np.zeros(0, np.int64)
    firsts = np.concatenate([part[1] for part in parts]) if parts else np.zeros(0, np.int64)
    return _grouped(candidates, chosen_of, firsts)


def _grouped(candidates: Candidates, of: Ints, first: Ints) -> Blocks:
    return Blocks(candidates.job[of], candidates.option[of], candidates.start[of], first, candidates.gain[of])


def _prefix(closed: Bools) -> Ints:
    return np.pad(closed.astype(np.int64).cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))


def _covered(prefix: Ints, start: int, end: int, first: Ints, size: int) -> Ints:
    """Closed cells inside steps start..end of blocks of `size` at each `first`."""
    inside = prefix[end, first + size] - prefix[start, first + size] - prefix[end, first] + prefix[start, first]
    return np.asarray(inside, np.int64)


def cards_model(problem: Problem, floors: Ints, blocks: Blocks, cards: Bools) -> CardsModel:
    """The model over these blocks; `cards[app, gpu]`: GPUs an application may use at all."""
    model, cells = empty_model(problem), open_cells(problem)
    for gain in blocks.gain.tolist():
        model.add(1, gain)
    one_way_per_job(model, blocks.job)
    apps = app_variables(problem, model, floors)
    card = _card_variables(problem, model, cells, cards)
    for app in range(problem.apps):
        for step in range(problem.steps):
            used = card[app, step][card[app, step] >= 0].tolist()
            both = [*used, int(apps.met[app, step]), int(apps.excess[app, step])]
            model.row(both, [1] * len(used) + [-1, -1], 0, 0)
    change = _switch_rows(problem, model, cells, card)
    _cell_rows(problem, model, blocks, card)
    cap_rows(problem, model, blocks.job, blocks.option, blocks.start)
    return CardsModel(model, blocks, apps, card, change)


def _card_variables(problem: Problem, model: IntegerModel, cells: OpenCells, cards: Bools) -> Ints:
    card = np.full((problem.apps, problem.steps, problem.gpus), -1, np.int64)
    for app in range(problem.apps):
        held = problem.held_app == app
        usable = cells.app & cards[app][None, :] & (held | (problem.gpu_state == GpuState.USABLE))[None, :]
        for step, gpu in np.argwhere(usable).tolist():
            kept_only = problem.gpu_state[gpu] == GpuState.HELD_ONLY
            if kept_only and step > 0 and card[app, step - 1, gpu] < 0:
                continue
            card[app, step, gpu] = model.add(1)
            if kept_only and step > 0:  # never taken back once it is given up
                model.row([int(card[app, step, gpu]), int(card[app, step - 1, gpu])], [1, -1], -1, 0)
    return card


def _switch_rows(problem: Problem, model: IntegerModel, cells: OpenCells, card: Ints) -> Ints:
    """Gains and chosen losses per step, a variable each, under the cap; losses to what is blocked are free."""
    change = np.full_like(card, -1)
    for app in range(problem.apps):
        held = problem.held_app == app
        for step in range(problem.steps):
            cap = int((problem.app_switch_left if step == 0 else problem.app_switch_max)[app])
            if cap >= 2 * problem.gpus:
                continue
            for gpu in range(problem.gpus):
                now = int(card[app, step, gpu])
                before = int(card[app, step - 1, gpu]) if step else -1
                if now < 0 and before < 0 and not (step == 0 and held[gpu]):
                    continue
                if now < 0 and cells.blocked[step, gpu]:
                    continue
                variable = change[app, step, gpu] = model.add(1)
                was = int(step == 0 and held[gpu])
                terms = [(now, 1), (before, -1)]
                known = [(v, sign) for v, sign in terms if v >= 0]
                ids, signs = [v for v, _ in known], [sign for _, sign in known]
                model.row([*ids, variable], [*signs, -1], -UNLIMITED, was)
                model.row([*ids, variable], [*signs, 1], was, UNLIMITED)
            switches = change[app, step][change[app, step] >= 0]
            model.row(switches, np.ones(len(switches), np.int64), 0, cap)
    return change


def _cell_rows(problem: Problem, model: IntegerModel, blocks: Blocks, card: Ints) -> None:
    """At most one job or application per cell; and no application where a job may still be (its P90)."""
    ends = np.minimum(blocks.start + problem.option_steps[blocks.option], problem.steps)
    holds = np.minimum(blocks.start + problem.option_hold[blocks.option], problem.steps)
    sizes = problem.option_gpus[blocks.option]
    late = bool((holds > ends).any())
    for step in range(problem.steps):
        running = np.flatnonzero((blocks.start <= step) & (step < ends))
        maybe = np.flatnonzero((ends <= step) & (step < holds)) if late else running[:0]
        for gpu in range(problem.gpus):
            here = running[(blocks.first[running] <= gpu) & (gpu < blocks.first[running] + sizes[running])]
            holders = card[:, step, gpu]
            holders = holders[holders >= 0]
            model.at_most_one(np.concatenate((here, holders)))
            if not len(maybe) or not len(holders):
                continue
            there = maybe[(blocks.first[maybe] <= gpu) & (gpu < blocks.first[maybe] + sizes[maybe])]
            for job in np.unique(blocks.job[there]).tolist():
                model.at_most_one(np.concatenate((there[blocks.job[there] == job], holders)))


def values_of(problem: Problem, cards: CardsModel, plan: Plan) -> list[int]:
    """The plan as a starting point; what it does outside the model's candidates is left out."""
    values = [0] * len(cards.model.upper)
    blocks = cards.blocks
    same = (
        (plan.start[blocks.job] == blocks.start)
        & (plan.option[blocks.job] == blocks.option)
        & (plan.first_gpu[blocks.job] == blocks.first)
    )
    for index in np.flatnonzero(same).tolist():
        values[index] = 1
    owner = np.full((problem.steps + 1, problem.gpus), -1, np.int64)
    owner[0] = problem.held_app
    for app, gpu, start, end in plan.segments.tolist():
        owner[start + 1 : end + 1, gpu] = app
    for app, step, gpu in np.argwhere(cards.card >= 0).tolist():
        values[int(cards.card[app, step, gpu])] = int(owner[step + 1, gpu] == app)
    for app, step, gpu in np.argwhere(cards.change >= 0).tolist():
        values[int(cards.change[app, step, gpu])] = int((owner[step + 1, gpu] == app) != (owner[step, gpu] == app))
    for app in range(problem.apps):
        for step in range(problem.steps):
            count = int((owner[step + 1] == app).sum())
            met = min(count, cards.model.upper[int(cards.apps.met[app, step])])
            values[int(cards.apps.met[app, step])] = met
            values[int(cards.apps.excess[app, step])] = count - met
    return values


def plan_of(problem: Problem, cards: CardsModel, values: Ints) -> Plan:
    """The legal plan a solution stands for."""
    place = np.full((problem.jobs, 4), -1, np.int64)
    blocks = cards.blocks
    for index in np.flatnonzero(values[: len(blocks)]).tolist():
        place[blocks.job[index], :3] = (blocks.start[index], blocks.first[index], blocks.option[index])
    segments = []
    for app in range(problem.apps):
        for gpu in range(problem.gpus):
            column = cards.card[app, :, gpu]
            held = np.where(column >= 0, values[column], 0)
            edges = np.diff(np.concatenate(([0], held, [0])))
            starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
            segments += [(app, gpu, int(a), int(b)) for a, b in zip(starts, ends, strict=True)]
    rows = np.array(segments, dtype=np.int64).reshape(-1, 4)
    return finished_plan(problem, "full", place, rows)
